// Login by a one-time pass in the address, or by the token in a form. Both yield Ray's cookie.

import { enter, enterOnce } from "./client.js";
import { make, show, write } from "./dom.js";

export class Login {
  constructor(form, afterwards) {
    this.form = form;
    this.token = make("input", { id: "login-token", type: "password", autocomplete: "current-password", required: true });
    this.why = make("p", { id: "login-why", role: "alert", hidden: true });
    form.append(make("h2", {}, "Log in"), this.why, make("label", { for: "login-token" }, "Ray's token"), this.token,
      make("button", { type: "submit" }, "Log in"), explained());
    this.afterwards = afterwards;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  /** The pass is removed from the address at once, so that it is not copied or bookmarked. */
  async fromAddress() {
    const pass = new URLSearchParams(location.hash.slice(1)).get("once");
    if (pass === null) return;
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await enterOnce(pass);
    } catch (error) {
      this.say(error.message);
    }
  }

  open() {
    if (!this.form.hidden) return;
    show(this.form, true);
    this.token.focus();
  }

  close() {
    this.say("");
    show(this.form, false);
  }

  async send() {
    try {
      const known = await enter(this.token.value.trim());
      if (!known) return this.say("That is not the token of this dashboard.");
    } catch (error) {
      return this.say(error.message);
    }
    this.token.value = "";
    return this.afterwards();
  }

  say(words) {
    write(this.why, words);
    show(this.why, words !== "");
  }
}

function explained() {
  const code = (text) => make("code", {}, text);
  return make("p.quiet", {}, code("cloudmatrix serve"), " prints it as ", make("i", {}, "dashboard token"),
    ", and an address that logs in by itself, once, as ", make("i", {}, "pools page"), ". On a Ray cluster of your own it is the value of ",
    code("RAY_AUTH_TOKEN"), ", or the content of the file that ", code("RAY_AUTH_TOKEN_PATH"), " names.");
}
