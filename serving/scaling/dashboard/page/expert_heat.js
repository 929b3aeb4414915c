// Who holds each expert and its rows, by layer; of a large model rows by layer and rank. One table for eyes and for screen readers.

import { make, write } from "./dom.js";
import { count, dash, layerName } from "./words.js";

export function heatMap(group) {
  const body = make("tbody");
  const head = make("tr");
  const caption = make("caption.hidden");
  const legend = make("p.quiet.heat-legend");
  const table = make("table.heat", {}, caption, make("thead", {}, head), body);
  const element = make("section.heat-part", { "aria-label": `Load of ${group}` }, make("h3"), make("div.scroll.wide", {}, table), legend);
  let size = "";
  let cells = [];
  element.update = (state) => {
    const shown = state.rows ? byExpert(state) : byRank(state);
    const { title, columns, rows } = shown;
    if (`${columns.length} ${state.layer_names}` !== size) {
      size = `${columns.length} ${state.layer_names}`;
      cells = build(head, body, state.layer_names, columns);
      element.style.setProperty("--columns", columns.length);
      write(caption, `${title}, and balancedness of each layer`);
      write(element.querySelector("h3"), title);
    }
    rows.forEach((row, layer) => {
      row.forEach((cell, column) => paint(cells[layer].cells[column], cell));
      write(cells[layer].balance, state.rank_layer_rows[layer].some(Boolean) ? state.balancedness[layer].toFixed(2) : dash);
    });
    write(legend, `${shown.legend} ${numbering(state.layer_names)}`.trim());
  };
  return element;
}

/** Commands count the layers with experts from 0, whatever the model calls them. */
function numbering(names) {
  const same = names.every((name, number) => name === `${number}`);
  return same ? "" : `Layers are numbered as in the model's config, without those that have no experts; cloudmatrix experts move counts these rows from 0: 0 is ${layerName(names[0])}.`;
}

function build(head, body, names, columns) {
  head.replaceChildren(make("th", { scope: "col" }, "layer"), ...columns.map((name, at) => make("th", { scope: "col" }, labelled(name, at, columns.length))), make("th", { scope: "col", title: "balancedness: mean over largest of the ranks' rows" }, "balance"));
  const rows = names.map((name, number) => {
    const cells = columns.map(() => make("td.cell", {}, make("span.hidden")));
    const balance = make("td.balance");
    return { line: make("tr", {}, make("th", { scope: "row", title: `number ${number} in commands` }, layerName(name)), ...cells, balance), cells, balance };
  });
  body.replaceChildren(...rows.map(({ line }) => line));
  return rows;
}

/** Of many columns every eighth has its name on show; screen readers have all of them. */
function labelled(name, at, all) {
  return all <= 16 || at % 8 === 0 ? name : make("span.hidden", {}, name);
}

function paint(cell, { heat, mark, words, homes = "" }) {
  const share = `${Math.round(heat * 100)}%`;
  if (cell.style.getPropertyValue("--heat") !== share) cell.style.setProperty("--heat", share);
  if (cell.dataset.mark !== mark) cell.dataset.mark = mark;
  if (cell.title !== words) {
    cell.title = words;
    cell.dataset.homes = homes;
    write(cell.firstChild, words);
  }
}

function byExpert({ rows, ranks, layer_names: names }) {
  const homes = rows.map((row, layer) => homesIn(ranks, layer, row.length));
  return {
    title: "Which rank holds which expert",
    columns: rows[0].map((_, expert) => `${expert}`),
    rows: rows.map((row, layer) => shades(row).map((heat, expert) => expertCell(heat, row[expert], names[layer], expert, homes[layer][expert]))),
    legend: "Columns are experts, numbers in cells are ranks. Framed: several ranks have a copy; framed in red: it stands in for a lost rank. The fuller the colour, the more rows in its layer.",
  };
}

/** Of each expert of a layer the ranks that hold it. */
export function homesIn(ranks, layer, experts) {
  const homes = Array.from({ length: experts }, () => []);
  for (const { rank, held, borrowed } of ranks) {
    for (const expert of held[layer] ?? []) homes[expert].push({ rank, borrowed: false });
    for (const [at, expert] of borrowed) if (at === layer) homes[expert].push({ rank, borrowed: true });
  }
  return homes;
}

/** Copies beyond the first, or one in place of a lost rank. */
export function markOf(homes) {
  if (homes.some((home) => home.borrowed)) return "borrowed";
  return homes.length > 1 ? "redundant" : "";
}

function expertCell(heat, rows, layer, expert, homes) {
  const where = homes.map((home) => `r${home.rank}${home.borrowed ? " in place of a lost rank" : ""}`).join(", ") || "no rank";
  const words = `${layerName(layer)}, expert ${expert}: ${count(rows)} rows; held by ${where}`;
  return { heat, mark: markOf(homes), words, homes: homes.map((home) => home.rank).join(" ") || "?" };
}

function byRank({ rank_layer_rows: rows, members, layer_names: names }) {
  return {
    title: "Rows by layer and rank",
    columns: rows[0].map((_, rank) => `r${rank}`),
    rows: rows.map((row, layer) => shades(row).map((heat, rank) => rankCell(heat, row[rank], names[layer], rank, members))),
    legend: "The fuller the colour, the more rows in its layer. The model has too many experts for one table of all layers.",
  };
}

function rankCell(heat, rows, layer, rank, members) {
  return { heat, mark: members.includes(rank) ? "" : "borrowed", words: `${layerName(layer)}, r${rank}: ${count(rows)} rows` };
}

/** Of the busiest one of the layer. */
function shades(row) {
  const most = Math.max(...row, 1);
  return row.map((rows) => rows / most);
}
