// How many replicas: minus, a number, plus, and how long the number stands against the autoscaler.
//
// Plus and minus do what Set does with one more or one less. Presses are collected for a moment and asked for together.

import { change } from "./client.js";
import { make, show, write } from "./dom.js";
import { left, plural } from "./words.js";

const COLLECT_MS = 450;
const ANSWER_MS = 30_000; // an answer of long ago is no longer one
const HOLDS = [["", "usual time"], ["60", "1 minute"], ["600", "10 minutes"], ["3600", "1 hour"], ["28800", "8 hours"], ["0", "no hold"]];

export class ScaleControl {
  constructor(pool, afterwards) {
    this.pool = pool;
    this.afterwards = afterwards;
    this.target = 0;
    this.held = null;
    this.controls = false;
    this.timer = null;
    this.asking = false;
    this.build();
  }

  build() {
    const { pool } = this;
    const step = (by, sign, words) => make("button.step", { type: "button", "aria-label": words, onclick: () => this.press(by) }, sign);
    this.minus = step(-1, "−", `One replica of ${pool} less`);
    this.plus = step(1, "+", `One replica of ${pool} more`);
    this.number = make("input", {
      type: "number", min: "0", max: "384", step: "1", inputmode: "numeric", "aria-label": `Replicas of ${pool}`,
      oninput: () => this.typed(), onkeydown: (event) => event.key === "Escape" && this.forget(),
    });
    this.set = make("button.set", { type: "submit" }, "Set");
    this.time = make("select", { "aria-label": `How long a number set by hand stands for ${pool}` },
      ...HOLDS.map(([value, words]) => make("option", { value }, words)));
    this.holdButton = make("button", { type: "button", onclick: () => this.hold() }, "Hold");
    this.release = make("button", { type: "button", onclick: () => this.letGo() }, "Release");
    this.holdWords = make("span.held");
    this.answer = make("p.answer", { role: "status" });
    this.fix = make("button", { type: "button", hidden: true, onclick: () => this.take() });
    const ask = make("form.ask", { novalidate: true, onsubmit: (event) => { event.preventDefault(); this.send(); } }, this.minus, this.number, this.plus, this.set);
    this.keep = make("div.keep", {}, make("label", {}, "hold ", this.time), this.holdButton, this.release, this.holdWords);
    this.element = make("div.control", {}, ask, this.keep, make("div.answers", {}, this.answer, this.fix));
  }

  get draft() {
    return this.number.dataset.draft !== undefined;
  }

  /** Without an autoscaler there is nobody to hold a number against. */
  update(pool, controls, scaled) {
    show(this.keep, scaled || Boolean(pool.hold));
    this.target = pool.target;
    this.held = pool.hold;
    if (!this.draft && !this.asking) this.follow();
    write(this.holdWords, pool.hold ? `held by ${pool.hold.by}, ${left(pool.hold.left_s)} left` : "");
    show(this.release, Boolean(pool.hold));
    for (const part of [this.number, this.set, this.plus, this.time, this.holdButton, this.release]) part.disabled = !controls;
    this.controls = controls;
    this.plus.title = pool.shortage || "";
    this.bound();
  }

  bound() {
    this.minus.disabled = !this.controls || this.number.valueAsNumber <= 0;
  }

  /** The number becomes what stands. Whoever is in it and types next means all of it, not digits after it. */
  follow() {
    if (this.number.valueAsNumber === this.target) return;
    this.number.value = this.target;
    if (document.activeElement === this.number) this.number.select();
  }

  press(by) {
    const now = Number.parseInt(this.number.value, 10);
    this.number.value = Math.min(384, Math.max(0, (Number.isNaN(now) ? this.target : now) + by));
    this.number.dataset.draft = "";
    this.bound();
    this.asks(this.number.valueAsNumber);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.send(), COLLECT_MS);
  }

  typed() {
    clearTimeout(this.timer);
    this.number.dataset.draft = "";
    this.bound();
  }

  forget() {
    clearTimeout(this.timer);
    delete this.number.dataset.draft;
    this.number.value = this.target;
    this.say("");
    this.bound();
  }

  async send() {
    clearTimeout(this.timer);
    const wanted = this.number.valueAsNumber;
    if (!Number.isInteger(wanted)) {
      this.say("A whole number, please.", "bad");
      return;
    }
    delete this.number.dataset.draft;
    this.asks(wanted);
    await this.ask(() => change(this.pool, "scale", { replicas: wanted, hold_s: this.time.value }));
  }

  asks(wanted) {
    this.say(`Asking for ${plural(wanted, "replica")} …`);
  }

  hold() {
    this.say("Asking …");
    return this.ask(() => change(this.pool, "hold", { hold_s: this.time.value }));
  }

  async letGo() {
    this.say("Asking …");
    await this.ask(() => change(this.pool, "release"));
    if (this.release.hidden || document.activeElement === document.body) this.holdButton.focus();
  }

  take() {
    this.number.value = this.fix.dataset.fits;
    this.number.focus();
    return this.send();
  }

  async ask(question) {
    this.asking = true;
    try {
      const answer = await question();
      this.say(answer.message || "Done.", "good");
    } catch (error) {
      this.refused(error);
    }
    this.asking = false;
    await this.afterwards();
  }

  refused({ kind, message, fits }) {
    this.say(kind === "no_room" ? `Refused: ${message}` : message, "bad");
    if (kind !== "no_room" || fits === null || fits === this.target) return;
    this.fix.dataset.fits = fits;
    write(this.fix, `Take ${fits}`);
    show(this.fix, true);
  }

  say(words, tone = "") {
    show(this.fix, false);
    this.answer.dataset.tone = tone;
    write(this.answer, words);
    clearTimeout(this.fading);
    if (words) this.fading = setTimeout(() => this.say(""), ANSWER_MS);
  }
}
