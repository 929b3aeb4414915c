// Curves of the last 5 minutes to 1 hour, which share their range, their time axis and the pointer.

import { changes, history } from "./client.js";
import { make, show, write } from "./dom.js";
import { requestsAddress } from "./links.js";
import { poolColour } from "./npu_map.js";
import { Plot } from "./plot.js";
import { count, percent, rate, seconds } from "./words.js";

const RANGES = { "5 min": 300, "15 min": 900, "1 h": 3600 };
const USUAL = "15 min";
const MOST_S = RANGES["1 h"];
const PERIOD_MS = 5000;

/** Kinds of marks, by the kinds of events that they show. */
const MARKS = { died: new Set(["died", "frozen", "host lost", "poison"]), started: new Set(["started", "replaced", "back"]) };

const CURVES = [
  { title: "TTFT p99", window: "of each last minute", unit: seconds, values: ({ ttft_s: value }) => ({ all: value }), now: ({ slo }) => ({ all: slo.ttft_p99_s }), limit: ({ slo }) => slo.ttft_s },
  { title: "TPOT p99", window: "of each last minute", unit: seconds, values: ({ tpot_s: value }) => ({ all: value }), now: ({ slo }) => ({ all: slo.tpot_p99_s }), limit: ({ slo }) => slo.tpot_s },
  { title: "Prompt tokens/s", window: "means of 5 s", unit: count, values: ({ prompt_tokens_per_s: value }) => ({ all: value }) },
  { title: "Output tokens/s", window: "means of 5 s", unit: count, values: ({ output_tokens_per_s: value }) => ({ all: value }) },
  { title: "Replicas", window: "that serve", unit: count, values: ({ running }) => running, now: ({ pools }) => Object.fromEntries(pools.map(({ pool, running }) => [pool, running])), whole: true },
  { title: "Hit rate", window: "of prompt tokens, 5 s", unit: percent, values: ({ hit_rate: value }) => ({ all: value }), top: 1 },
];

export class Curves {
  constructor(section, template) {
    this.section = section;
    this.samples = [];
    this.entries = new Map();
    this.flow = section.ownerDocument.getElementById("kv-flow");
    this.asked = -Infinity;
    this.state = null;
    const wanted = new URLSearchParams(location.search).get("range");
    this.range = wanted in RANGES ? wanted : USUAL;
    this.buttons = Object.keys(RANGES).map((name) => make("button.range", { type: "button", onclick: () => this.choose(name) }, name));
    this.legend = make("p", { id: "curve-legend" });
    this.plots = CURVES.map((curve) => new Plot(curve, template, (share) => this.point(share)));
    section.append(make("div.ranges", { role: "group", "aria-label": "Range of the curves" }, ...this.buttons), this.legend, ...this.plots.map(({ element }) => element));
    this.mark();
  }

  /** In the address, so that a reload and a link show the same. */
  choose(name) {
    this.range = name;
    const address = new URL(location.href);
    address.searchParams.set("range", name);
    window.history.replaceState(null, "", address);
    this.mark();
    if (this.state) this.draw();
  }

  mark() {
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.textContent === this.range));
  }

  point(share) {
    for (const plot of this.plots) plot.point(share);
  }

  /** Stands in the page from the first look on: curves that come later must not move the controls below. */
  async update(state) {
    this.state = state;
    show(this.section, true);
    const first = this.asked === -Infinity;
    if (first) this.draw();
    if (performance.now() - this.asked >= PERIOD_MS) {
      this.asked = performance.now();
      try {
        const [{ samples }, older] = await Promise.all([history(this.samples.at(-1)?.at ?? 0), first ? changes() : []]);
        this.samples.push(...samples);
        this.remember(older);
      } catch (error) {
        if (!error.kind) throw error; // the next look at the pools says what is wrong
      }
    }
    this.remember([...state.decisions.map((one) => ({ ...one, sort: "decision" })), ...state.events.map((one) => ({ ...one, sort: "event" }))]);
    this.samples = this.samples.filter(({ at }) => at > state.now - MOST_S);
    this.draw();
  }

  /** Decisions and events of the hour: the state has only the latest of each. */
  remember(entries) {
    for (const one of entries) this.entries.set(`${one.sort} ${one.id}`, one);
    for (const [key, { at }] of this.entries) if (at <= this.state.now - MOST_S) this.entries.delete(key);
  }

  draw() {
    const { state } = this;
    const marks = [...this.entries.values()].map(markOf).filter(({ kind }) => kind);
    const requests = (at) => requestsAddress(state.gateway, { from: Math.floor(at - 60), to: Math.ceil(at) });
    for (const plot of this.plots) plot.draw({ samples: this.samples, marks, state, span: RANGES[this.range], requests });
    const names = state.pools.map(({ pool }) => pool).join();
    if (this.legend.dataset.pools !== names) this.legend.replaceChildren(...signs(state.pools));
    this.legend.dataset.pools = names;
    write(this.flow, flow(this.samples.at(-1), state.pools));
  }
}

/** What a decision or an event is on the time axis; a kind of "" = nothing. */
function markOf({ sort, at, kind, pool, before, target, replica }) {
  if (sort === "decision") return { at, kind: before === target ? "" : "scaled", words: `${pool} ${before} → ${target}` };
  const found = Object.keys(MARKS).find((one) => MARKS[one].has(kind)) ?? "";
  return { at, kind: found, words: `${replica || pool} ${kind}` };
}

/** What lines and marks mean. */
function signs(pools) {
  const sign = (attributes, words) => make("span.swatch", {}, make("span.sign", { "aria-hidden": "true", ...attributes }), words);
  return [sign({ "data-mark": "scaled" }, "scaled"), sign({ "data-mark": "started" }, "started"), sign({ "data-mark": "died" }, "died or frozen"),
    sign({ "data-mark": "slo" }, "SLO"), ...pools.map(({ pool }) => sign({ "data-pool": poolColour(pool) }, `${pool} replicas`))];
}

/** KV that moves between the pools, as means of the last 5 s; dashes until a sample is there. */
function flow(sample, pools) {
  const { handed_off_bytes_per_s: handedOff, read_bytes_per_s: read, written_bytes_per_s: written } = sample ?? {};
  const told = pools.some(({ pool }) => pool === "prefill") ? [`prefill → decode ${rate(handedOff)}`] : [];
  if (pools.some(({ kind }) => kind === "cache")) told.push(`kvcache → instances ${rate(read)}`, `instances → kvcache ${rate(written)}`);
  return told.length ? `KV over 5 s: ${told.join(" · ")}` : "";
}
