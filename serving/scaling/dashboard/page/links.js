// Ways from this page to the requests behind it, and to logs.

import { make } from "./dom.js";

const EVERYWHERE = new Set(["0.0.0.0", "::"]);

/** The endpoint, which has the pages of the chat and of requests. */
export function endpointAddress({ host, port }) {
  const name = EVERYWHERE.has(host) ? location.hostname : host.includes(":") ? `[${host}]` : host;
  return `http://${name}:${port}/`;
}

/** The page of requests. query: `from` and `to` [s since 1970], and `find`, words such as a replica's name. */
export function requestsAddress(gateway, query) {
  return `${endpointAddress(gateway)}requests?${new URLSearchParams(query)}`;
}

export function requestsLink(address, words = "requests") {
  return make("a", { href: address, target: "_blank", rel: "noopener" }, words);
}

/** A command that a press copies. */
export function commandButton(command) {
  const button = make("button.command", { type: "button", title: "Copy this command", onclick: async () => {
    button.textContent = (await copied(command)) ? "copied" : command;
    setTimeout(() => { button.textContent = command; }, 1500);
  } }, command);
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // refused, or not there: a page without TLS on another host has no clipboard
    const box = make("textarea", {}, text);
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}
