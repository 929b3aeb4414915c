// One curve: value axis, time axis of the clock, lines, marks, and the values under the pointer.

import { make, show, write } from "./dom.js";
import { requestsLink } from "./links.js";
import { poolColour } from "./npu_map.js";
import { clock, dash } from "./words.js";

const HEIGHT = 100;
const WIDTH = 1000;
const GAP_S = 12; // samples come every 5 s: where one is missing, so is the line
const HEADROOM = 1.05;
const STEPS = [1, 2, 5, 10]; // distances of the values on an axis, times a power of ten
const MOST_STEPS = 3;
const TIME_STEPS_S = [60, 120, 300, 600, 900];
const MOST_TIMES = 5;
const FAR = 0.2; // values below this share of their SLO are drawn without its line
const NEAR = 0.012; // how far from a mark the pointer still shows it, as a share of the width

export class Plot {
  /** point(share) points at this share of the width in every curve, null = nowhere. */
  constructor(curve, template, point) {
    this.curve = curve;
    this.now = null;
    this.points = [];
    this.pointed = null;
    const svg = template.content.firstElementChild.cloneNode(true);
    this.svg = svg;
    [this.line, this.grid, this.limit, this.cross] = [".line", ".grid", ".limit", ".cross"].map((name) => svg.querySelector(name));
    this.marks = new Map(["scaled", "started", "died"].map((kind) => [kind, svg.querySelector(`.${kind}`)]));
    this.lines = new Map();
    [this.value, this.aside, this.link] = [make("span.big"), make("span.small"), requestsLink("")];
    [this.scale, this.times, this.tip] = [make("div.curve-scale"), make("div.curve-times"), make("div.tip", { hidden: true })];
    const area = make("div.curve-area", {}, svg, this.tip);
    this.element = make("figure.curve", {},
      make("figcaption", {}, make("h2", {}, curve.title), make("span.small", { title: curve.window }, curve.window), make("span.small.more", {}, this.link)),
      make("div.curve-head", {}, this.value, this.aside), make("div.curve-plot", {}, this.scale, area, this.times));
    const share = (event) => {
      const box = svg.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, (event) => { point(share(event)); this.hint(); });
    svg.addEventListener("pointerleave", (event) => { this.tip.hidden = true; if (event.pointerType !== "touch") point(null); });
    svg.addEventListener("click", (event) => { if (event.pointerType !== "touch") this.link.click(); });
  }

  /** now: the samples, the marks, the state, the span [s], and requests(at), an address. */
  draw(now) {
    this.now = now;
    const { curve } = this;
    const { state, span } = now;
    this.points = pointsOf(curve, now);
    const high = Math.max(0, ...numbersOf(this.points));
    const goal = curve.limit?.(state) ?? null;
    const far = goal !== null && high > 0 && high < goal * FAR; // the curve would be a line at zero
    const [step, top] = valueAxis(curve, far ? high : Math.max(goal ?? 0, high));
    const x = (at) => (WIDTH * (at - state.now + span)) / span;
    const y = (one) => HEIGHT * (1 - Math.min(1, one / top));
    const values = Array.from({ length: Math.round(top / step) + 1 }, (_, place) => place * step);
    const times = timeAxis(state.now, span);
    this.grid.setAttribute("d", [...values.map((one) => `M0 ${y(one)}H${WIDTH}`), ...times.map((at) => `M${x(at).toFixed(1)} 0V${HEIGHT}`)].join(""));
    labels(this.scale, values.map((one) => [one ? curve.unit(one) : "0", "bottom", one / top]));
    labels(this.times, times.map((at) => [clock(at).slice(0, 5), "left", x(at) / WIDTH]));
    for (const name of new Set(this.points.flatMap(({ values: all }) => Object.keys(all)))) this.lineOf(name).setAttribute("d", path(this.points, name, x, y, curve.whole));
    this.limit.setAttribute("d", goal === null || far ? "" : `M0 ${y(goal)}H${WIDTH}`);
    for (const [kind, element] of this.marks) element.setAttribute("d", now.marks.filter((one) => one.kind === kind && one.at > state.now - span).map(({ at }) => `M${x(at).toFixed(1)} 0V${HEIGHT}`).join(""));
    this.tell();
    this.svg.setAttribute("aria-label", `${curve.title}, last ${span / 60} minutes: ${this.value.title || this.value.textContent} now`);
  }

  point(share) {
    this.pointed = share;
    if (this.now) this.tell();
  }

  /** The values under the pointer, or the latest. */
  tell() {
    const { curve, now: { state, span, requests }, pointed } = this;
    const at = pointed === null ? null : state.now - span * (1 - pointed);
    const shown = at === null ? this.points.at(-1) : nearest(this.points, at);
    tellValues(this.value, shown?.values ?? {}, curve.unit);
    const goal = curve.limit?.(state) ?? null;
    const most = Math.max(...numbersOf(this.points));
    write(this.aside, at !== null ? `at ${clock(shown?.at ?? at)}` : goal !== null ? `SLO ${curve.unit(goal)}` : `up to ${most > -Infinity ? curve.unit(most) : dash}`);
    this.cross.setAttribute("d", at === null ? "" : `M${WIDTH * pointed} 0V${HEIGHT}`);
    this.link.href = requests(at ?? state.now);
    this.link.title = `Requests of the minute before ${clock(at ?? state.now)}`;
    if (!this.tip.hidden) this.hint();
  }

  /** A box by the pointer: time, values, marks. */
  hint() {
    if (!this.now || this.pointed === null) return;
    const { now: { state, span, marks }, pointed } = this;
    const at = state.now - span * (1 - pointed);
    const shown = nearest(this.points, at);
    const values = Object.entries(shown?.values ?? {}).map(([name, one]) => `${name === "all" ? "" : `${name} `}${this.curve.unit(one)}`);
    const near = marks.filter((one) => Math.abs(one.at - at) < NEAR * span).map(({ at: when, words }) => `${clock(when)} ${words}`);
    const lines = [clock(shown?.at ?? at), ...values, ...near];
    if (this.tip.textContent !== lines.join("")) this.tip.replaceChildren(...lines.map((one) => make("div", {}, one)));
    this.tip.style.left = pointed < 0.5 ? `calc(${100 * pointed}% + 8px)` : "";
    this.tip.style.right = pointed < 0.5 ? "" : `calc(${100 * (1 - pointed)}% + 8px)`;
    show(this.tip, true);
  }

  lineOf(name) {
    if (!this.lines.has(name)) {
      const own = this.line.cloneNode();
      if (name !== "all") own.dataset.pool = poolColour(name);
      this.line.before(own);
      this.lines.set(name, own);
    }
    return this.lines.get(name);
  }
}

/** The card above shows the latest value, so the curve ends with it, not with the last sample. */
function pointsOf(curve, { samples, state, span }) {
  const points = samples.filter(({ at }) => at > state.now - span).map((sample) => ({ at: sample.at, values: curve.values(sample) }));
  return curve.now ? [...points, { at: state.now, values: curve.now(state) }] : points;
}

/** Round values on an axis that ends above all values: their distance, and the last. */
function valueAxis(curve, high) {
  if (curve.top) return [curve.top / 2, curve.top];
  const top = curve.whole ? Math.max(1, high) : high * HEADROOM || 1;
  const power = 10 ** Math.floor(Math.log10(top / MOST_STEPS));
  const step = power * STEPS.find((one) => one * power * MOST_STEPS >= top * (1 - 1e-9));
  const whole = curve.whole ? Math.max(1, Math.ceil(step)) : step;
  return [whole, whole * Math.ceil(top / whole - 1e-9)];
}

/** Round times of the reader's clock. */
function timeAxis(now, span) {
  const step = TIME_STEPS_S.find((one) => span / one <= MOST_TIMES);
  const zone = new Date(now * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((now - span - zone) / step) * step + zone;
  return Array.from({ length: Math.ceil((now - first) / step) }, (_, place) => first + place * step);
}

/** Words along an axis, each [words, side, share of the length from that side]. */
function labels(axis, wanted) {
  while (axis.children.length > wanted.length) axis.lastElementChild.remove();
  while (axis.children.length < wanted.length) axis.append(make("span"));
  wanted.forEach(([words, side, share], place) => {
    write(axis.children[place], words);
    axis.children[place].classList.toggle("last", side === "left" && share > 0.94);
    axis.children[place].style[side] = `${(100 * share).toFixed(2)}%`;
  });
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
