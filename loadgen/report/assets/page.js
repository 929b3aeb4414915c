// Puts every chart into its figure, follows the page's width and the chosen colours.

const root = document.documentElement;

const specs = new Map(JSON.parse(document.getElementById("chart-data").textContent).map((spec) => [spec.id, spec]));
const figures = [...document.querySelectorAll("figure.chart")].map((figure) => openView(figure, specs.get(figure.id)));

// A chart inside closed details has no width yet; it is drawn when it gets one.
const watcher = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const view = figures.find((one) => one.plotBox === entry.target);
    const width = Math.floor(entry.contentRect.width);
    if (!width) continue;
    if (!view.plot) build(view);
    else if (view.plot.width !== width) view.plot.setSize({ width, height: view.height });
  }
});
figures.forEach((view) => { if (view.plotBox.clientWidth) build(view); watcher.observe(view.plotBox); });

const preference = window.matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");

function setTheme(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  themeButton.textContent = dark ? "Light" : "Dark";
  views.forEach((view) => view.plot && view.plot.redraw(false, true));
}
themeButton.addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
preference.addEventListener("change", () => setTheme(preference.matches));
setTheme(preference.matches);
// Paper is light whatever the page is.
let darkOnScreen = false;
addEventListener("beforeprint", () => { darkOnScreen = root.dataset.theme === "dark"; setTheme(false); });
addEventListener("afterprint", () => setTheme(darkOnScreen));
root.dataset.ready = "yes";
