(() => {
"use strict";
const $ = (id) => document.getElementById(id);
const [talk, form, message, send, clear] = ["talk", "ask", "message", "send", "clear"].map($);
const model = $("model").textContent;
let turns = [];
let running = null; // an AbortController while an answer comes

const isLocal = (host) => /^(localhost|127\.|\[::1\])/.test(host);
const pools = $("pools");
if (pools && isLocal(new URL(pools.href).hostname) && !isLocal(location.hostname)) pools.remove(); // not from here

function say(css, text) {
  const part = document.createElement("div");
  part.className = css;
  part.textContent = text;
  talk.append(part);
  return part;
}

function state() {
  send.textContent = running ? "Stop" : "Send";
  clear.hidden = running !== null || !talk.firstChild;
  $("questions").hidden = Boolean(talk.firstChild);
  message.required = running === null;
}

function body() {
  const opening = $("system").value.trim();
  const wishes = {};
  for (const name of ["max_tokens", "temperature", "seed"]) {
    if ($(name).value !== "") wishes[name] = Number($(name).value);
  }
  return JSON.stringify({
    model, stream: true, stream_options: { include_usage: true }, return_replicas: true, ...wishes,
    messages: [...(opening ? [{ role: "system", content: opening }] : []), ...turns],
  });
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The server has gone before the answer was complete.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((one) => one.startsWith("data: "))) {
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

async function answer(place, signal) {
  const asked = performance.now();
  let first = 0, last = 0, text = "", end = {};
  try {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("v1/chat/completions", { method: "POST", headers, body: body(), signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      for (const choice of event.choices) {
        const added = choice.delta.content || "";
        if (added) { last = performance.now(); first = first || last; }
        text += added;
        if (choice.finish_reason) end.finish = choice.finish_reason;
      }
      if (event.usage) end = { ...end, usage: event.usage, replicas: event.replicas };
      place.textContent = text;
    }
  } finally {
    if (text) turns.push({ role: "assistant", content: text }); // as far as it has come
    else { turns.pop(); place.remove(); }
  }
  return figures(end, first - asked, last - first);
}

function figures({ usage, replicas, finish }, firstMs, restMs) {
  if (!usage) return "";
  const details = usage.prompt_tokens_details, output = usage.completion_tokens;
  const pulled = details.pulled_tokens === undefined ? "" : `, ${details.pulled_tokens} of them pulled from the pool`;
  const parts = [`${usage.prompt_tokens} prompt tokens (${details.cached_tokens} cached${pulled})`, `${output} output tokens`];
  if (firstMs > 0) parts.push(`first after ${Math.round(firstMs)} ms`);
  if (restMs > 0 && output > 1) parts.push(`${Math.round((output - 1) / restMs * 1000)} tokens/s`);
  if (replicas && replicas.length) parts.push(replicas.join(" → "));
  if (usage.resumptions) parts.push(`resumed ${usage.resumptions} times`);
  if (finish === "length") parts.push("cut at its longest");
  return parts.join(", ");
}

async function ask(question) {
  turns.push({ role: "user", content: question });
  say("user", question);
  const place = say("answer", "");
  running = new AbortController();
  state();
  place.classList.add("coming");
  try {
    say("figures", await answer(place, running.signal));
  } catch (error) {
    if (error.name === "AbortError") say("figures", "stopped");
    else say("fault", error instanceof TypeError ? "The server does not answer." : error.message);
  }
  place.classList.remove("coming");
  running = null;
  state();
  form.scrollIntoView({ block: "nearest" });
  message.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) { running.abort(); return; }
  const question = message.value.trim();
  message.value = "";
  if (question) ask(question);
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) form.requestSubmit();
});
clear.addEventListener("click", () => { turns = []; talk.replaceChildren(); state(); message.focus(); });
for (const button of document.querySelectorAll(".question")) button.addEventListener("click", () => ask(button.textContent));
state();
})();
