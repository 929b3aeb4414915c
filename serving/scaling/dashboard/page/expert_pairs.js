// What goes from each rank to each other: a small matrix, of a large group its largest pairs.

import { keep, make, show, write } from "./dom.js";

const MOST_RANKS = 16;
const LISTED = 10;

export function pairs(title, explained, unit, between = "to") {
  const matrix = make("table.matrix");
  const list = make("ol.largest");
  const element = make("section.pair-part", {}, make("h3", {}, title), make("p.quiet", {}, explained), make("div.scroll.wide", {}, matrix), list);
  let built = "";
  let cells = [];
  element.update = (values, ranks) => {
    const large = ranks.length > MOST_RANKS;
    show(matrix, !large);
    show(list, large);
    if (large) return largest(list, values, unit, between);
    if (built !== ranks.join()) {
      built = ranks.join();
      cells = build(matrix, title, ranks, between);
    }
    const most = Math.max(1e-9, ...values.flat());
    ranks.forEach((from, line) => ranks.forEach((to, column) => {
      const cell = cells[line][column];
      const value = values[from]?.[to] ?? 0;
      cell.style.setProperty("--heat", `${Math.round((value / most) * 100)}%`);
      write(cell, from === to ? "" : unit(value));
    }));
    return undefined;
  };
  return element;
}

function build(matrix, title, ranks, between) {
  const names = ranks.map((rank) => `r${rank}`);
  const cells = names.map(() => names.map(() => make("td.shade")));
  const head = make("tr", {}, make("th", { scope: "col" }, between), ...names.map((name) => make("th", { scope: "col" }, name)));
  matrix.replaceChildren(make("caption.hidden", {}, title), make("thead", {}, head),
    make("tbody", {}, ...names.map((name, from) => make("tr", {}, make("th", { scope: "row" }, name), ...cells[from]))));
  return cells;
}

function largest(list, values, unit, between) {
  const all = values.flatMap((row, from) => row.map((value, to) => ({ from, to, value })));
  const top = all.filter(({ value }) => value > 0).sort((one, other) => other.value - one.value).slice(0, LISTED);
  keep(list, top, ({ from, to }) => `${from} ${to}`, ({ from, to }) => {
    const words = make("span");
    const item = make("li", {}, `r${from} ${between} r${to}: `, words);
    item.update = ({ value }) => write(words, unit(value));
    return item;
  });
}
