// The last 15 minutes as small curves, with marks where somebody scaled or something died.

import { history } from "./client.js";
import { make, show, write } from "./dom.js";
import { poolColour } from "./npu_map.js";
import { count, dash, percent, rate, seconds } from "./words.js";

const SPAN_S = 900;
const PERIOD_MS = 5000;
const HEIGHT = 40;
const WIDTH = 180;
const GAP_S = 12; // samples come every 5 s: where one is missing, so is the line
const HEADROOM = 1.15;

const UNMARKED = new Set(["replaced", "back", "left", "audit", "deployed"]);

const CURVES = [
  { title: "TTFT p99", window: "of each last minute", unit: seconds, values: ({ ttft_s: value }) => ({ all: value }), limit: ({ slo }) => slo.ttft_s },
  { title: "TPOT p99", window: "of each last minute", unit: seconds, values: ({ tpot_s: value }) => ({ all: value }), limit: ({ slo }) => slo.tpot_s },
  { title: "Prompt tokens/s", window: "means of 5 s", unit: count, values: ({ prompt_tokens_per_s: value }) => ({ all: value }) },
  { title: "Output tokens/s", window: "means of 5 s", unit: count, values: ({ output_tokens_per_s: value }) => ({ all: value }) },
  { title: "Replicas", window: "that serve", unit: count, values: ({ running }) => running, steps: true },
  { title: "Hit rate", window: "of prompt tokens, 5 s", unit: percent, values: ({ hit_rate: value }) => ({ all: value }), top: 1 },
];

export class Curves {
  constructor(section, template) {
    this.section = section;
    this.samples = [];
    this.flow = section.ownerDocument.getElementById("kv-flow");
    this.asked = -Infinity;
    this.parts = CURVES.map((curve) => part(curve, template));
    section.append(...this.parts.map(({ element }) => element));
  }

  /** Stands in the page from the first look on: curves that come later must not move the controls below. */
  async update(state) {
    show(this.section, true);
    if (this.asked === -Infinity) this.draw(state);
    if (performance.now() - this.asked >= PERIOD_MS) {
      this.asked = performance.now();
      try {
        const { samples } = await history(this.samples.at(-1)?.at ?? 0);
        this.samples.push(...samples);
      } catch (error) {
        if (!error.kind) throw error; // the next look at the pools says what is wrong
      }
    }
    this.samples = this.samples.filter(({ at }) => at > state.now - SPAN_S);
    this.draw(state);
  }

  draw(state) {
    for (const one of this.parts) one.draw(this.samples, state);
    write(this.flow, flow(this.samples.at(-1), state.pools));
  }
}

/** KV that moves between the pools, as means of the last 5 s; dashes until a sample is there. */
function flow(sample, pools) {
  const { handed_off_bytes_per_s: handedOff, read_bytes_per_s: read, written_bytes_per_s: written } = sample ?? {};
  const told = pools.some(({ pool }) => pool === "prefill") ? [`prefill → decode ${rate(handedOff)}`] : [];
  if (pools.some(({ kind }) => kind === "cache")) told.push(`kvcache → instances ${rate(read)}`, `instances → kvcache ${rate(written)}`);
  return told.length ? `KV over 5 s: ${told.join(" · ")}` : "";
}

function part(curve, template) {
  const svg = template.content.firstElementChild.cloneNode(true);
  const line = svg.querySelector(".line");
  const [limit, scaled, happened] = [".limit", ".scaled", ".happened"].map((name) => svg.querySelector(name));
  const value = make("span.big");
  const top = make("span.small");
  const element = make("figure.curve", {}, make("figcaption", {}, make("h2", {}, curve.title), make("span.small", {}, curve.window)),
    make("div.curve-head", {}, value, top), svg);
  const lines = new Map();
  const lineOf = (name) => {
    if (!lines.has(name)) {
      const own = line.cloneNode();
      if (name !== "all") own.dataset.pool = poolColour(name);
      line.before(own);
      lines.set(name, own);
    }
    return lines.get(name);
  };
  const draw = (samples, state) => {
    const goal = curve.limit?.(state) ?? null;
    const named = samples.map((sample) => curve.values(sample));
    const known = named.flatMap((values) => Object.values(values)).filter((one) => one !== null);
    const high = curve.top ?? (Math.max(goal ?? 0, ...known) * HEADROOM || 1);
    const x = (at) => (WIDTH * (at - state.now + SPAN_S)) / SPAN_S;
    const y = (one) => HEIGHT * (1 - Math.min(1, one / high));
    const names = [...new Set(named.flatMap(Object.keys))];
    for (const name of names) lineOf(name).setAttribute("d", path(samples, (_, index) => named[index][name] ?? null, x, y, curve.steps));
    limit.setAttribute("d", goal === null ? "" : `M0 ${y(goal)}H${WIDTH}`);
    scaled.setAttribute("d", marks(state.decisions.filter(({ before, target }) => before !== target), x));
    happened.setAttribute("d", marks(state.events.filter(({ kind }) => !UNMARKED.has(kind)), x));
    write(value, latest(named.at(-1) ?? {}, curve.unit));
    write(top, goal === null ? `up to ${known.length ? curve.unit(Math.max(...known)) : dash}` : `SLO ${curve.unit(goal)}`);
    svg.setAttribute("aria-label", `${curve.title}, last 15 minutes: ${value.textContent} now`);
  };
  return { element, draw };
}

function path(samples, value, x, y, steps) {
  let told = "";
  let before = null;
  samples.forEach((sample, index) => {
    const one = value(sample, index);
    if (one === null) return;
    const [across, down] = [x(sample.at).toFixed(1), y(one).toFixed(1)];
    const joined = before !== null && sample.at - before.at < GAP_S && before.index === index - 1;
    told += joined ? (steps ? `H${across}V${down}` : `L${across} ${down}`) : `M${across} ${down}h0.1`;
    before = { at: sample.at, index };
  });
  return told;
}

function marks(entries, x) {
  return entries.map(({ at }) => x(at)).filter((across) => across >= 0).map((across) => `M${across.toFixed(1)} 0V${HEIGHT}`).join("");
}

function latest(values, unit) {
  const told = Object.values(values).map((one) => unit(one));
  return told.length ? told.join(" · ") : dash;
}
