// Looks once a second while somebody looks at the page, and says how fresh that is. The same for every page.

import { show, write } from "./dom.js";
import { Login } from "./login.js";
import { seconds } from "./words.js";

const PERIOD_MS = 1000;
const PATIENT_PERIOD_MS = 3000;
const OLD_S = 5;
const READ_ONLY = "Ray's token authentication is off, so this page only shows. Scripts can POST.";

export class Live {
  /** look() fetches the state, draw(state) shows it, complain(state) says what is wrong, or "". */
  constructor(look, draw, complain) {
    this.look = look;
    this.draw = draw;
    this.complain = complain;
    this.main = document.querySelector("main");
    this.trouble = document.getElementById("trouble");
    this.words = document.getElementById("live-words");
    this.timer = null;
    this.looking = null;
    this.seen = null;
    this.login = new Login(document.getElementById("login"), () => this.now());
  }

  begin() {
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) return this.now();
      this.alive("paused", "paused");
      return clearTimeout(this.timer);
    });
    this.login.fromAddress().then(() => this.now());
  }

  /** One look at a time; whoever asks meanwhile gets the next one. */
  async now() {
    clearTimeout(this.timer);
    if (this.looking) await this.looking;
    this.looking = this.once();
    await this.looking;
  }

  async once() {
    let wait = PERIOD_MS;
    try {
      this.show(await this.look());
    } catch (error) {
      if (!error.kind) throw error;
      this.fail(error);
      wait = PATIENT_PERIOD_MS;
    } finally {
      this.looking = null;
      clearTimeout(this.timer);
      if (!document.hidden) this.timer = setTimeout(() => this.now(), wait);
    }
  }

  show(state) {
    this.seen = performance.now();
    this.login.close();
    show(this.main, true);
    this.draw(state);
    const old = state.seen_s > OLD_S;
    this.say(old ? "Ray's Serve controller does not answer: what you see is old." : this.complain(state) || (state.controls ? "" : READ_ONLY));
    this.alive(old ? "lost" : "live", old ? `as of ${seconds(state.seen_s)} ago` : "live");
  }

  fail(error) {
    const ago = this.seen === null ? "" : `, as of ${seconds((performance.now() - this.seen) / 1000)} ago`;
    this.alive("lost", `no answer${ago}`);
    if (error.kind !== "token") return this.say(error.message);
    this.say("");
    this.alive("lost", "not logged in");
    show(this.main, false);
    return this.login.open();
  }

  say(words) {
    write(this.trouble, words.charAt(0).toUpperCase() + words.slice(1));
    show(this.trouble, words !== "");
  }

  alive(state, words) {
    document.body.dataset.live = state;
    write(this.words, words);
  }
}
