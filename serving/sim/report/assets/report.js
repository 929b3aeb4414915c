"use strict";
// Theme, the filter of the table of decisions, and one cursor through all plots over time. The page is whole without it.
const root = document.documentElement;
const themeButton = document.getElementById("theme");
const isDark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const nameTheme = () => { themeButton.textContent = isDark() ? "Light" : "Dark"; };
themeButton.hidden = false;
themeButton.addEventListener("click", () => { root.style.colorScheme = isDark() ? "light" : "dark"; nameTheme(); });
nameTheme();

const filter = document.getElementById("filter");
if (filter) {
  filter.hidden = false;
  const [words, kind, shown] = ["words", "kind", "shown"].map((id) => document.getElementById(id));
  const rows = [...document.querySelectorAll("#decision-rows tr")].map((row) => [row, row.textContent.toLowerCase()]);
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    let count = 0;
    for (const [row, text] of rows) {
      row.hidden = !((!kind.value || row.dataset.kind === kind.value) && wanted.every((word) => text.includes(word)));
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length} rows`;
  };
  words.addEventListener("input", apply);
  kind.addEventListener("change", apply);
  apply();
}

const plots = document.getElementById("time-plots");
if (plots) {
  const { left, right, end } = plots.dataset;
  const moment = document.getElementById("moment");
  const figures = [...plots.querySelectorAll("figure")];
  const cursors = figures.map((figure) => {
    const cursor = figure.appendChild(document.createElement("div"));
    cursor.className = "cursor"; cursor.hidden = true;
    return cursor;
  });
  const clock = (seconds) => seconds < 60 ? `${seconds.toFixed(1)} s`
    : new Date(1000 * seconds).toISOString().slice(seconds < 3600 ? 14 : 11, 19);
  const hide = () => { cursors.forEach((cursor) => { cursor.hidden = true; }); moment.textContent = ""; };
  plots.addEventListener("pointerleave", hide);
  plots.addEventListener("pointermove", (event) => {
    const figure = event.target.closest("figure");
    if (!figure) { hide(); return; }
    const box = figure.querySelector("svg").getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width - left) / (right - left);
    if (share < 0 || share > 1) { hide(); return; }
    figures.forEach((other, index) => {
      const svg = other.querySelector("svg");
      const inner = svg.getBoundingClientRect().left - other.getBoundingClientRect().left - other.clientLeft;
      cursors[index].style.left = `${inner + svg.clientWidth * (+left + share * (right - left))}px`;
      cursors[index].hidden = !svg.querySelector('[id$="axes_1"]');
    });
    moment.textContent = `at ${clock(share * end)}`;
  });
}
