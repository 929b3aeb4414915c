(() => {
"use strict";
const $ = (id) => document.getElementById(id);
const [talk, form, message, send, clear] = ["talk", "ask", "message", "send", "clear"].map($);
const model = $("model").textContent;
const WISHES = ["max_tokens", "temperature", "top_p", "seed", "system", "tools", "choice"];
const NUMBERS = WISHES.slice(0, 4);
const KEPT = 50; // conversations
const invitation = message.placeholder;
let turns = []; // messages as the API takes them; `figures` is ours
let id = ""; // of the conversation that is shown
let running = null; // an AbortController while an answer comes

const isLocal = (host) => /^(localhost|127\.|\[::1\])/.test(host);
const pools = $("pools");
if (pools && isLocal(new URL(pools.href).hostname) && !isLocal(location.hostname)) pools.remove(); // not from here

// Conversations and settings, in the storage of this browser; without one the page works all the same.

function recall(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(`cloudmatrix-${name}`)) ?? otherwise; } catch { return otherwise; }
}

function keep(name, value) {
  try { localStorage.setItem(`cloudmatrix-${name}`, JSON.stringify(value)); return true; } catch { return false; }
}

function keepTalk() {
  let all = recall("talks", []).filter((one) => one.id !== id);
  const first = turns.find((turn) => turn.role === "user");
  if (first) {
    id = id || `${Date.now()}`;
    all.unshift({ id, title: first.content.slice(0, 80), turns });
  }
  all = all.slice(0, KEPT);
  while (!keep("talks", all) && all.length > 1) all.pop(); // the storage is full: the oldest goes
  listTalks();
}

function listTalks() {
  const all = recall("talks", []);
  $("history").hidden = !all.length;
  $("past").replaceChildren(...all.map((one) => {
    const row = document.createElement("li");
    row.append(
      button(one.title, () => { if (!running) { id = one.id; turns = one.turns; draw(); $("history").open = false; } }),
      button("Delete", () => { keep("talks", recall("talks", []).filter((other) => other.id !== one.id)); listTalks(); }),
    );
    row.classList.toggle("here", one.id === id);
    return row;
  }));
}

// What is shown.

function part(css, text = "", tag = "div") {
  const made = document.createElement(tag);
  made.className = css;
  made.textContent = text;
  return made;
}

function button(text, act) {
  const made = part("", text, "button");
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function say(css, text) {
  const made = part(css, text);
  talk.append(made);
  return made;
}

function folded(title, text) {
  const made = part("folded", "", "details");
  made.append(part("", title, "summary"), part("", text, "pre"));
  return made;
}

// A model's text is Markdown, and foreign: nothing of it may run or load anything. HTML is shown as text.
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
marked.use({ breaks: true, renderer: { html: ({ text }) => text.replace(/[&<>]/g, (one) => ESCAPES[one]) } });

function markdown(text) {
  const made = part("text");
  made.innerHTML = DOMPurify.sanitize(marked.parse(text), {
    USE_PROFILES: { html: true }, FORBID_TAGS: ["img", "style", "form", "input", "video", "audio"], FORBID_ATTR: ["style", "class", "id"],
  });
  for (const link of made.querySelectorAll("a")) { link.target = "_blank"; link.rel = "noopener noreferrer"; }
  for (const code of made.querySelectorAll("pre")) code.append(button("Copy", () => copy(code.querySelector("code").textContent)));
  return made;
}

function copy(text) {
  if (navigator.clipboard) { navigator.clipboard.writeText(text); return; }
  const box = part("", text, "textarea"); // a page without TLS on another host has no clipboard
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

function fill(place, turn, coming = false) {
  place.replaceChildren();
  if (turn.reasoning_content) {
    const thought = folded(coming && !turn.content ? "Reasoning …" : "Reasoning", turn.reasoning_content);
    place.append(thought);
  }
  if (turn.content) place.append(markdown(turn.content));
  for (const call of turn.tool_calls || []) place.append(folded(`Call of ${call.function.name}`, call.function.arguments));
  place.classList.toggle("coming", coming);
}

function draw() {
  talk.replaceChildren();
  turns.forEach((turn, number) => {
    const place = say(turn.role === "assistant" ? "answer" : "user", turn.role === "assistant" ? "" : turn.content);
    if (turn.role === "tool") place.prepend(part("soft", `Result of ${turn.name}`));
    if (turn.role === "assistant") fill(place, turn);
    if (turn.figures) say("figures", turn.figures);
    if (turn.fault) say("fault", turn.fault);
    const acts = say(turn.role === "assistant" ? "acts" : "acts mine", "");
    acts.append(button("Copy", () => copy(turn.content || "")));
    if (turn.role === "user") acts.append(button("Edit", () => edit(number)));
    if (turn.role === "assistant" && number === turns.length - 1) acts.append(button("Regenerate", () => again(number)));
  });
  state();
  listTalks();
}

function state() {
  const call = openCall();
  send.textContent = running ? "Stop" : "Send";
  clear.hidden = running !== null || !turns.length;
  $("questions").hidden = Boolean(turns.length);
  for (const one of talk.querySelectorAll(".acts")) one.hidden = running !== null;
  message.required = running === null;
  message.placeholder = call ? `Result of ${call.function.name}, which the model called` : invitation;
}

function openCall() { // the first call of a tool without a result
  const last = turns.findLastIndex((turn) => turn.role === "assistant");
  const given = turns.slice(last + 1).map((turn) => turn.tool_call_id);
  return ((turns[last] || {}).tool_calls || []).find((call) => !given.includes(call.id));
}

function edit(number) {
  if (running) return;
  message.value = turns[number].content;
  turns = turns.slice(0, number);
  draw();
  message.focus();
}

function again(number) {
  if (running) return;
  turns = turns.slice(0, number);
  answerNext();
}

// Requests and their answers.

function body() {
  const opening = $("system").value.trim(), tools = $("tools").value.trim();
  const wishes = {};
  for (const name of NUMBERS) if ($(name).value !== "") wishes[name] = Number($(name).value);
  if (tools) wishes.tools = JSON.parse(tools);
  const sent = turns.map(({ role, content, tool_calls, tool_call_id }) => ({ role, content, tool_calls, tool_call_id }));
  return JSON.stringify({
    model: $("choice").value || model, stream: true, stream_options: { include_usage: true }, return_replicas: true, ...wishes,
    messages: [...(opening ? [{ role: "system", content: opening }] : []), ...sent],
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

function take(turn, delta) {
  turn.content += delta.content || "";
  if (delta.reasoning_content) turn.reasoning_content = (turn.reasoning_content || "") + delta.reasoning_content;
  for (const call of delta.tool_calls || []) {
    const calls = (turn.tool_calls ||= []);
    const known = (calls[call.index] ||= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (call.id) known.id = call.id;
    known.function.name += call.function?.name || "";
    known.function.arguments += call.function?.arguments || "";
  }
}

async function receive(turn, place, signal) {
  const asked = performance.now();
  let first = 0, last = 0, end = {}, due = false;
  const show = () => { due = false; if (running) fill(place, turn, true); };
  const headers = { "Content-Type": "application/json" };
  const response = await fetch("v1/chat/completions", { method: "POST", headers, body: body(), signal });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const event of events(response)) {
    for (const choice of event.choices) {
      const delta = choice.delta;
      if (delta.content || delta.reasoning_content || delta.tool_calls) { last = performance.now(); first = first || last; }
      take(turn, delta);
      if (choice.finish_reason) end.finish = choice.finish_reason;
    }
    if (event.usage) end = { ...end, usage: event.usage, replicas: event.replicas };
    if (!due) { due = true; requestAnimationFrame(show); } // Markdown once per frame, not per token
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

async function answerNext() {
  const turn = { role: "assistant", content: "" };
  draw();
  const place = say("answer coming", "");
  running = new AbortController();
  state();
  form.scrollIntoView({ block: "end" });
  try {
    turn.figures = await receive(turn, place, running.signal);
  } catch (error) {
    if (error.name === "AbortError") turn.figures = "stopped";
    else turn.fault = error instanceof TypeError ? "The server does not answer." : error.message;
  }
  running = null;
  const came = turn.content || turn.tool_calls || turn.reasoning_content;
  if (came) turns.push(turn); // as far as it has come
  keepTalk();
  draw();
  if (!came) say(turn.fault ? "fault" : "figures", turn.fault || turn.figures || "The answer is empty.");
  message.focus();
}

function ask(text) {
  const call = openCall();
  if (call) turns.push({ role: "tool", content: text, tool_call_id: call.id, name: call.function.name });
  else turns.push({ role: "user", content: text });
  if (call && openCall()) { draw(); return; } // another call waits for its result
  answerNext();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) { running.abort(); return; }
  const text = message.value.trim();
  message.value = "";
  if (text) ask(text);
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) form.requestSubmit();
});
clear.addEventListener("click", () => { turns = []; id = ""; draw(); message.focus(); });
for (const one of document.querySelectorAll(".question")) one.addEventListener("click", () => ask(one.textContent));

const wished = recall("wishes", {});
for (const name of WISHES) {
  $(name).value = wished[name] || "";
  $(name).addEventListener("input", () => {
    $("tools").setCustomValidity("");
    try { JSON.parse($("tools").value.trim() || "[]"); } catch (error) { $("tools").setCustomValidity(error.message); }
    keep("wishes", Object.fromEntries(WISHES.map((one) => [one, $(one).value])));
  });
}
$("defaults").addEventListener("click", () => { for (const name of WISHES) $(name).value = ""; $("choice").value = model; keep("wishes", {}); });

async function listModels() {
  const response = await fetch("v1/models");
  const names = response.ok ? (await response.json()).data.map((one) => one.id) : [];
  $("choice").replaceChildren(...names.map((name) => new Option(name)));
  $("choice").value = names.includes(wished.choice) ? wished.choice : model;
  $("others").hidden = names.length < 2;
}
listModels().catch(() => {}); // one model is known without it
draw();
})();
