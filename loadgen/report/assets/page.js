// Puts every chart into its figure, follows the page's width and the chosen colours.

const root = document.documentElement;

const specs = new Map(JSON.parse(document.getElementById("chart-data").textContent).map((spec) => [spec.id, spec]));
const figures = [...document.querySelectorAll("figure.chart")].map((figure) => openView(figure, specs.get(figure.id)));

// A chart inside closed details has no width yet; it is drawn when it gets one.
const watcher = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(figures.find((view) => view.plotBox === target))));
figures.forEach((view) => { fit(view); watcher.observe(view.plotBox); });

function fit(view) {
  const width = view.plotBox.clientWidth;
  if (!width) return;
  if (!view.plot) build(view);
  else if (view.plot.width !== width) view.plot.setSize({ width, height: view.height });
}

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
// Paper is light and of one width whatever the screen is, and cannot open what is closed.
let beforePaper = { dark: false, closed: [] };
addEventListener("beforeprint", () => {
  beforePaper = { dark: root.dataset.theme === "dark", closed: [...document.querySelectorAll("main > section details:not([open]), main > details:not([open])")] };
  for (const part of beforePaper.closed) part.open = true;
  root.dataset.paper = "yes";
  setTheme(false);
  figures.forEach(fit);
});
addEventListener("afterprint", () => {
  delete root.dataset.paper;
  for (const part of beforePaper.closed) part.open = false;
  setTheme(beforePaper.dark);
  figures.forEach(fit);
});
root.dataset.ready = "yes";
