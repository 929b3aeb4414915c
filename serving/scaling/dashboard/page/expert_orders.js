// What a person can have a group do. An answer stays for a while, in room that is kept for it.

import { orderGroup } from "./client.js";
import { make, write } from "./dom.js";
import { plural } from "./words.js";

const ANSWER_MS = 30_000;

export class Orders {
  constructor(group, afterwards) {
    this.group = group;
    this.afterwards = afterwards;
    this.asking = false;
    this.controls = false;
    this.size = 0;
    this.answer = make("p.answer", { role: "status" });
    this.rebalance = make("button", { type: "button", onclick: () => this.ask("rebalance", {}, "Asking for a rebalance …") }, "Rebalance");
    this.number = make("input", { type: "number", min: "1", max: "64", inputmode: "numeric", "aria-label": `Ranks of ${group}`, oninput: () => this.typed() });
    this.resize = make("button", { type: "submit" }, "Resize");
    this.form = make("form.ask", { onsubmit: (event) => { event.preventDefault(); this.send(); } }, make("label", {}, this.kind = make("span", {}, "ranks"), " ", this.number), this.resize);
    this.element = make("div.orders", {}, this.rebalance, this.form, this.answer);
  }

  update({ ranks_total: all, expert_ranks: experts }, controls) {
    const size = all - experts;
    this.controls = controls;
    this.size = size;
    write(this.kind, experts ? "attention ranks" : "ranks");
    if (!this.draft && document.activeElement !== this.number) this.number.value = size;
    this.bound();
  }

  get draft() {
    return this.number.dataset.draft !== undefined;
  }

  bound() {
    const off = !this.controls || this.asking;
    this.rebalance.disabled = off;
    this.number.disabled = !this.controls;
    this.resize.disabled = off || !this.draft;
  }

  typed() {
    this.number.dataset.draft = "";
    this.bound();
  }

  send() {
    const ranks = this.number.valueAsNumber;
    if (!Number.isInteger(ranks)) return this.say("A whole number, please.", "bad");
    delete this.number.dataset.draft;
    return this.ask("resize", { ranks }, `Asking for ${plural(ranks, "rank")} …`);
  }

  drain(rank) {
    return this.ask("drain", { rank }, `Asking r${rank} to drain …`);
  }

  async ask(verb, fields, words) {
    this.asking = true;
    this.bound();
    this.say(words);
    try {
      const { message } = await orderGroup(this.group, verb, fields);
      this.say(message || "Done.", "good");
    } catch (error) {
      if (!error.kind) throw error;
      this.say(error.message, "bad");
    } finally {
      this.asking = false;
      this.bound();
    }
    await this.afterwards();
  }

  say(words, tone = "") {
    this.answer.dataset.tone = tone;
    write(this.answer, words);
    clearTimeout(this.fading);
    if (words) this.fading = setTimeout(() => this.say(""), ANSWER_MS);
  }
}
