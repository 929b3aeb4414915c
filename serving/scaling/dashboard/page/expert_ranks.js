// A group's ranks, a row each: what they are, what they compute, how long they wait and for whom.

import { bar, keep, make, write } from "./dom.js";
import { count, dash, percent, seconds } from "./words.js";

const COLUMNS = ["rank", "NPUs", "epoch", "map", "rows computed", "experts", "waits", "mostly for", "pace", ""];

/** drain(rank) has a rank replaced without a loss. */
export function rankTable(group, drain) {
  const body = make("tbody");
  const head = make("tr", {}, ...COLUMNS.map((name) => make("th", { scope: "col" }, name)));
  const table = make("table.ranks", {}, make("caption.hidden", {}, `Ranks of ${group}`), make("thead", {}, head), body);
  const element = make("section", { "aria-label": `Ranks of ${group}` }, make("h3", {}, "Ranks"), make("div.scroll.wide", {}, table));
  element.update = (state, controls) => keep(body, rowsOf(state, controls), ({ rank }) => rank, (one) => row(one, drain));
  return element;
}

/** A rank that is missing has a row, too. */
function rowsOf({ ranks, rank_numbers: numbers, rank_rows: rows, exchange, paces, treated }, controls) {
  const most = Math.max(1, ...rows);
  return numbers.map((rank) => ({
    rank, controls: controls && numbers.length > 1, told: ranks.find((one) => one.rank === rank), rows: rows[rank] ?? 0, share: (rows[rank] ?? 0) / most,
    waited: exchange.waited_s[rank] ?? [], worked: exchange.worked_s[rank] ?? 0,
    pace: paces[rank], treated: treated[rank],
  }));
}

function row({ rank }, drain) {
  const state = make("span.chip");
  const load = bar(`Rows that r${rank} computed, of the busiest rank's`);
  const waits = bar(`Share of its time that r${rank} waits`);
  const leave = make("button.small-button", { type: "button", "aria-label": `Drain rank ${rank}`, onclick: () => drain(rank) }, "Drain");
  const cells = { pid: make("span.quiet"), npus: make("td"), epoch: make("td"), map: make("td"), rows: make("span"), experts: make("td"), waited: make("span"), late: make("td"), pace: make("td") };
  const line = make("tr", {},
    make("th", { scope: "row" }, make("div.chips", {}, make("span.name", {}, `r${rank}`), cells.pid, state)), cells.npus, cells.epoch, cells.map,
    make("td.fill-cell", {}, load, cells.rows), cells.experts, make("td.fill-cell", {}, waits, cells.waited), cells.late, cells.pace, make("td", {}, leave));
  line.update = ({ told, controls, rows, share, waited, worked, pace, treated }) => {
    const missing = told === undefined;
    line.dataset.state = missing ? "dead" : told.state ?? "";
    write(state, missing ? "missing" : ["serving", null].includes(told.state) ? "" : told.state);
    leave.disabled = !controls || missing || told.state !== "serving";
    write(cells.pid, missing ? "" : `${told.role === "both" ? "" : `${told.role}, `}pid ${told.pid}`);
    write(cells.npus, missing ? dash : told.npus.join(", ") || dash);
    write(cells.epoch, missing ? dash : told.epoch);
    write(cells.map, missing ? dash : told.map_version);
    load.set(share);
    write(cells.rows, count(rows));
    write(cells.experts, missing ? dash : `${count(told.held_count)}${told.borrowed_count ? ` + ${count(told.borrowed_count)} for a lost rank` : ""}`);
    const total = waited.reduce((sum, one) => sum + one, 0);
    const part = total + worked ? total / (total + worked) : null;
    waits.set(part);
    write(cells.waited, percent(part));
    const latest = waited.indexOf(Math.max(...waited));
    write(cells.late, total ? `r${latest}, ${seconds(waited[latest])}` : dash);
    cells.pace.title = "time of its experts for the same work, of the median rank's";
    write(cells.pace, pace === undefined ? dash : `${pace.toFixed(2)}${treated ? `: ${treated.replace("_", " ")}` : ""}`);
  };
  return line;
}
