// The last 15 minutes as small curves, with marks where a pool was scaled or a replica or host was lost.

import { history } from "./client.js";
import { make, show, write } from "./dom.js";
import { poolColour } from "./npu_map.js";
import { clock, count, dash, percent, rate, seconds } from "./words.js";

const SPAN_S = 900;
const PERIOD_MS = 5000;
const HEIGHT = 40;
const WIDTH = 180;
const GAP_S = 12; // samples come every 5 s: where one is missing, so is the line
const HEADROOM = 1.15;
const ROUND = [1, 1.5, 2, 3, 4, 5, 6, 8, 10]; // ends of a scale, times a power of ten
const TICKS_MIN = [15, 10, 5, 0];

const LOSSES = new Set(["died", "frozen", "host lost", "poison"]);

const CURVES = [
  { title: "TTFT p99", window: "of each last minute", unit: seconds, values: ({ ttft_s: value }) => ({ all: value }), now: ({ slo }) => ({ all: slo.ttft_p99_s }), limit: ({ slo }) => slo.ttft_s },
  { title: "TPOT p99", window: "of each last minute", unit: seconds, values: ({ tpot_s: value }) => ({ all: value }), now: ({ slo }) => ({ all: slo.tpot_p99_s }), limit: ({ slo }) => slo.tpot_s },
  { title: "Prompt tokens/s", window: "means of 5 s", unit: count, values: ({ prompt_tokens_per_s: value }) => ({ all: value }) },
  { title: "Output tokens/s", window: "means of 5 s", unit: count, values: ({ output_tokens_per_s: value }) => ({ all: value }) },
  { title: "Replicas", window: "that serve", unit: count, values: ({ running }) => running, now: ({ pools }) => Object.fromEntries(pools.map(({ pool, running }) => [pool, running])), steps: true },
  { title: "Hit rate", window: "of prompt tokens, 5 s", unit: percent, values: ({ hit_rate: value }) => ({ all: value }), top: 1 },
];

export class Curves {
  constructor(section, template) {
    this.section = section;
    this.samples = [];
    this.flow = section.ownerDocument.getElementById("kv-flow");
    this.asked = -Infinity;
    this.parts = CURVES.map((curve) => part(curve, template));
    this.legend = make("p", { id: "curve-legend" });
    section.append(...this.parts.map(({ element }) => element), this.legend);
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
    const names = state.pools.map(({ pool }) => pool).join();
    if (this.legend.dataset.pools !== names) this.legend.replaceChildren(...signs(state.pools));
    this.legend.dataset.pools = names;
    write(this.flow, flow(this.samples.at(-1), state.pools));
  }
}

/** What lines and marks mean. */
function signs(pools) {
  const sign = (attributes, words) => make("span.swatch", {}, make("span.sign", { "aria-hidden": "true", ...attributes }), words);
  return [sign({ "data-mark": "scaled" }, "pool scaled"), sign({ "data-mark": "lost" }, "replica or host lost"), sign({ "data-mark": "slo" }, "SLO"),
    ...pools.map(({ pool }) => sign({ "data-pool": poolColour(pool) }, `${pool} replicas`)), "times in minutes"];
}

/** The card above shows the latest value, so the curve ends with it, not with the last sample. */
function pointsOf(curve, samples, state) {
  const points = samples.map((sample) => ({ at: sample.at, values: curve.values(sample) }));
  return curve.now ? [...points, { at: state.now, values: curve.now(state) }] : points;
}

/** Where a scale ends: a round number above all values. */
function ceiling(curve, high) {
  if (curve.top) return curve.top;
  if (curve.steps) return Math.ceil(high) + 1;
  const power = 10 ** Math.floor(Math.log10(high * HEADROOM || 1));
  return power * ROUND.find((one) => one * power >= high * HEADROOM * (1 - 1e-9));
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
  const [line, grid, limit, scaled, lost] = [".line", ".grid", ".limit", ".scaled", ".lost"].map((name) => svg.querySelector(name));
  const [value, aside, top] = [make("span.big"), make("span.small"), make("span")];
  const element = make("figure.curve", {}, make("figcaption", {}, make("h2", {}, curve.title), make("span.small", {}, curve.window)),
    make("div.curve-head", {}, value, aside), make("div.curve-plot", {}, make("div.curve-scale", {}, top, make("span", {}, "0")), svg,
      make("div.curve-times", {}, ...TICKS_MIN.map((minutes) => make("span", {}, minutes ? `\u2212${minutes}` : "now")))));
  grid.setAttribute("d", `M0 0H${WIDTH}${TICKS_MIN.map((minutes) => `M${WIDTH * (1 - (minutes * 60) / SPAN_S)} 0V${HEIGHT}`).join("")}`);
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
  let pointed = null; // where the pointer is, as a share of the width
  let [points, state] = [[], null];
  const tell = () => {
    const at = pointed === null ? null : state.now - SPAN_S * (1 - pointed);
    const shown = at === null ? points.at(-1) : nearest(points, at);
    tellValues(value, shown?.values ?? {}, curve.unit);
    const goal = curve.limit?.(state) ?? null;
    const most = Math.max(...numbersOf(points));
    write(aside, shown && at !== null ? `at ${clock(shown.at)}` : goal !== null ? `SLO ${curve.unit(goal)}` : `up to ${points.length && most > -Infinity ? curve.unit(most) : dash}`);
  };
  svg.addEventListener("pointermove", (event) => { pointed = event.offsetX / svg.clientWidth; if (state) tell(); });
  svg.addEventListener("pointerleave", () => { pointed = null; if (state) tell(); });
  const draw = (samples, newest) => {
    state = newest;
    points = pointsOf(curve, samples, state);
    const goal = curve.limit?.(state) ?? null;
    const high = ceiling(curve, Math.max(goal ?? 0, ...numbersOf(points)));
    const x = (at) => (WIDTH * (at - state.now + SPAN_S)) / SPAN_S;
    const y = (one) => HEIGHT * (1 - Math.min(1, one / high));
    for (const name of new Set(points.flatMap(({ values }) => Object.keys(values)))) lineOf(name).setAttribute("d", path(points, name, x, y, curve.steps));
    limit.setAttribute("d", goal === null ? "" : `M0 ${y(goal)}H${WIDTH}`);
    scaled.setAttribute("d", marks(state.decisions.filter(({ before, target }) => before !== target), x));
    lost.setAttribute("d", marks(state.events.filter(({ kind }) => LOSSES.has(kind)), x));
    write(top, curve.unit(high));
    tell();
    svg.setAttribute("aria-label", `${curve.title}, last 15 minutes: ${value.title || value.textContent} now`);
  };
  return { element, draw };
}

function numbersOf(points) {
  return points.flatMap(({ values }) => Object.values(values)).filter((one) => one !== null && one !== undefined);
}

function nearest(points, at) {
  return points.reduce((best, one) => (best && Math.abs(best.at - at) <= Math.abs(one.at - at) ? best : one), null);
}

/** Of several pools each number has its pool's colour, and all names are in the title. */
function tellValues(element, values, unit) {
  const named = Object.entries(values);
  const told = named.map(([, one]) => unit(one)).join(" · ") || dash;
  if (element.textContent === told) return;
  element.replaceChildren(...(named.length < 2 ? [told] : named.flatMap(([name, one], place) => [...(place ? [" · "] : []), make("span", { "data-pool": poolColour(name) }, unit(one))])));
  element.title = named.length < 2 ? "" : named.map(([name, one]) => `${name} ${unit(one)}`).join(", ");
}

function path(points, name, x, y, steps) {
  let told = "";
  let before = null;
  points.forEach(({ at, values }, index) => {
    const one = values[name] ?? null;
    if (one === null) return;
    const [across, down] = [x(at).toFixed(1), y(one).toFixed(1)];
    const joined = before !== null && at - before.at < GAP_S && before.index === index - 1;
    told += joined ? (steps ? `H${across}V${down}` : `L${across} ${down}`) : `M${across} ${down}h0.1`;
    before = { at, index };
  });
  return told;
}

function marks(entries, x) {
  return entries.map(({ at }) => x(at)).filter((across) => across >= 0).map((across) => `M${across.toFixed(1)} 0V${HEIGHT}`).join("");
}
