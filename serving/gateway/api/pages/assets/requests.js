(() => {
"use strict";
const $ = (id) => document.getElementById(id);
const GROUPS = /*groups*/[];
const ROUTES = { chatcmpl: "chat", cmpl: "completions", resp: "responses", msg: "messages" };
const asked = new URLSearchParams(location.search);
let span = asked.has("from") || asked.has("to") ? { from: Number(asked.get("from") ?? 0) || 0, to: Number(asked.get("to")) || Infinity } : null; // [s since 1970]
let rows = null, kept = [], turn = 0, order = { key: "arrived", down: true }, open = decodeURIComponent(location.hash.slice(1));

const seconds = (value) => value === null || value === undefined ? "–" : value >= 1 ? `${value.toFixed(2)} s` : value >= 1e-3 ? `${(value * 1e3).toFixed(1)} ms` : `${Math.round(value * 1e6)} µs`;
const clock = (value) => new Date(value * 1000).toLocaleTimeString([], { hour12: false });
const perToken = (row) => row.tokens > 1 && row.first_token_s !== null ? (row.total_s - row.first_token_s) / (row.tokens - 1) : null;
const route = (row) => ROUTES[row.request_id.split(/[-_]/)[0]] || "";
const COLUMNS = [
  ["arrived", "at", (row) => row.arrived, (row) => clock(row.arrived)],
  ["request_id", "request", (row) => row.request_id, (row) => row.request_id, "text id"],
  ["route", "route", route, route, "text"],
  ["namespace", "tenant", (row) => row.namespace, (row) => row.namespace || "–", "text"],
  ["total_s", "took", (row) => row.total_s, (row) => seconds(row.total_s)],
  ["first_token_s", "TTFT", (row) => row.first_token_s ?? -1, (row) => seconds(row.first_token_s)],
  ["tpot", "TPOT", (row) => perToken(row) ?? -1, (row) => seconds(perToken(row))],
  ["prompt_tokens", "prompt", (row) => row.prompt_tokens, (row) => row.prompt_tokens],
  ["cached_tokens", "cached", (row) => row.cached_tokens, (row) => row.cached_tokens],
  ["pulled_tokens", "pulled", (row) => row.pulled_tokens, (row) => row.pulled_tokens],
  ["tokens", "output", (row) => row.tokens, (row) => row.tokens],
  ["replicas", "replicas", (row) => row.replicas.join(), (row) => row.replicas.join(" → "), "text"],
  ["outcome", "outcome", (row) => row.outcome, (row) => row.resumed ? `${row.outcome}, resumed ${row.resumed}×` : row.outcome, "text"],
];

function made(tag, css, text = "") {
  const one = document.createElement(tag);
  one.className = css;
  one.textContent = text;
  return one;
}

function head() {
  $("rows").tHead.rows[0].replaceChildren(...COLUMNS.map(([key, title, , , css = ""]) => {
    const cell = made("th", css), press = made("button", "", title);
    cell.ariaSort = order.key === key ? (order.down ? "descending" : "ascending") : "none";
    press.addEventListener("click", () => { order = { key, down: order.key === key ? !order.down : key !== "request_id" }; draw(); });
    cell.append(press);
    return cell;
  }));
}

/** The filters are in the address, so that a link from the page of the pools, a reload and a copy show the same. */
function keep() {
  const wanted = { find: $("wanted").value, outcome: $("outcome").value, from: span?.from || "", to: span && span.to < Infinity ? span.to : "" };
  const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== "")).toString();
  history.replaceState(null, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
}

function timeSpan() {
  $("span").hidden = !span;
  if (span) $("span").textContent = `${span.from ? `${new Date(span.from * 1000).toLocaleDateString()} ${clock(span.from)}` : ""} – ${span.to < Infinity ? clock(span.to) : "now"} ×`;
  $("span").title = "Requests that ran in this time; press to see all";
}

/** How many rows are shown, and whether requests of the wanted time may be missing. */
function counted(found) {
  if (!rows) return "";
  const oldest = Math.min(...rows.map((row) => row.arrived));
  return `${found} of ${rows.length}${span && span.from < oldest && rows.length ? `; the oldest kept began at ${clock(oldest)}` : ""}`;
}

function shown() {
  const words = $("wanted").value.toLowerCase().split(/\s+/).filter(Boolean), outcome = $("outcome").value;
  const value = COLUMNS.find(([key]) => key === order.key)[2];
  const fits = (row) => {
    const failed = row.outcome === "abort" || row.outcome === "error";
    if (span && (row.arrived > span.to || row.arrived + row.total_s < span.from)) return false;
    if (outcome === "failed" ? !failed : outcome === "resumed" ? !row.resumed : outcome && row.outcome !== outcome) return false;
    const text = `${row.names.join(" ")} ${row.request_id} ${row.namespace} ${row.replicas.join(" ")} ${row.outcome} ${row.reason} ${route(row)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const sign = order.down ? -1 : 1;
  return (rows || []).filter(fits).sort((a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : 0));
}

function draw() {
  head();
  const found = shown();
  timeSpan();
  $("count").textContent = counted(found.length);
  $("rows").tBodies[0].replaceChildren(...found.map((row) => {
    const line = made("tr", row.outcome === "error" ? "bad" : "");
    line.tabIndex = 0;
    line.classList.toggle("best", row.request_id === open);
    for (const [, , , text, css = ""] of COLUMNS) line.append(made("td", css, text(row)));
    line.addEventListener("click", () => show(row.request_id));
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") show(row.request_id); });
    return line;
  }));
}

async function ask(path) {
  const response = await fetch(path);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ? answer.error.message : `HTTP ${response.status}`);
  return answer;
}

function fault(error) {
  $("fault").hidden = !error;
  $("fault").textContent = error ? (error instanceof TypeError ? "The server does not answer." : error.message) : "";
}

/** The latest requests, and every fifth time also those that are kept longest: the slow, the failed, the resumed. */
async function update() {
  try {
    const [{ data }, longest] = await Promise.all([ask("v1/requests?which=newest&limit=1000"), turn++ % 5 ? null : ask("v1/requests?which=slowest&limit=1000")]);
    fault(null);
    kept = longest ? longest.data : kept;
    const oldest = data.length ? data.at(-1).arrived : Infinity;
    data.push(...kept.filter((row) => row.arrived < oldest));
    if (JSON.stringify(data) === JSON.stringify(rows)) return; // a row that is drawn anew loses the focus
    rows = data;
    draw();
  } catch (error) { fault(error); }
}

const groupOf = (kind) => Math.max(0, GROUPS.findIndex((group) => group.kinds.includes(kind)));

function lane(choice, total) {
  const row = made("div", "lane");
  for (const one of choice.parts) {
    const bar = made("span", "");
    bar.style.left = `${100 * one.start_s / total}%`;
    bar.style.width = `${Math.max(0.15, 100 * one.seconds / total)}%`;
    bar.style.background = `var(--${GROUPS[groupOf(one.kind)].color})`;
    bar.style.opacity = GROUPS[groupOf(one.kind)].alpha;
    bar.title = `${one.kind}: ${seconds(one.seconds)}${one.replica ? `, ${one.replica}` : ""}`;
    row.append(bar);
  }
  return row;
}

function legend(times) {
  const used = new Set(times.choices.flatMap((choice) => choice.parts.map((one) => groupOf(one.kind))));
  const row = made("div", "legend");
  for (const number of [...used].sort((a, b) => a - b)) {
    const key = made("span", "key", GROUPS[number].name), block = made("i", "block");
    block.style.background = `var(--${GROUPS[number].color})`;
    block.style.opacity = GROUPS[number].alpha;
    key.prepend(block);
    row.append(key);
  }
  return row;
}

function parts(choice, total) {
  const table = document.createElement("table"), top = table.createTHead().insertRow(), body = table.createTBody();
  for (const [title, css] of [["part", ""], ["begins", ""], ["takes", ""], ["share", ""], ["tokens", ""], ["where", "text"]]) top.append(made("th", css, title));
  for (const one of choice.parts.filter((part) => part.seconds >= 1e-6)) {
    const row = body.insertRow(), where = [one.host, one.replica].filter(Boolean).join(", ");
    for (const [text, css] of [[one.kind, "text"], [seconds(one.start_s)], [seconds(one.seconds)], [`${(100 * one.seconds / total).toFixed(1)} %`], [one.tokens || ""], [where, "text"]]) row.append(made("td", css || "", text));
  }
  return table;
}

function title(id) {
  const head_ = made("h2", "", `${id} `), close = made("button", "", "Close");
  close.addEventListener("click", () => { open = ""; $("one").hidden = true; history.replaceState(null, "", " "); draw(); });
  head_.append(close);
  return head_;
}

async function show(id) {
  open = id;
  history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  draw();
  const place = $("one");
  place.hidden = false;
  try {
    const times = await ask(`v1/requests/${encodeURIComponent(id)}/timeline`);
    place.replaceChildren(title(times.request_id), made("p", "", times.cause || times.reason), legend(times));
    for (const choice of times.choices) {
      if (times.choices.length > 1) place.append(made("h3", "", `Choice ${choice.index}`));
      const panel = made("div", "panel scroll");
      panel.append(parts(choice, times.total_s));
      place.append(lane(choice, times.total_s), panel);
    }
  } catch (error) {
    place.replaceChildren(title(id), made("p", "bad", error.message));
  }
  place.scrollIntoView({ block: "nearest" });
}

for (const id of ["wanted", "outcome"]) $(id).addEventListener("input", () => { keep(); draw(); });
$("wanted").value = asked.get("find") ?? "";
$("outcome").value = asked.get("outcome") ?? "";
$("span").addEventListener("click", () => { span = null; keep(); draw(); });
setInterval(() => { if ($("live").checked && !document.hidden) update(); }, 2000);
addEventListener("hashchange", () => show(decodeURIComponent(location.hash.slice(1))));
update().then(() => { if (open) show(open); });
})();
