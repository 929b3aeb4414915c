(() => {
"use strict";
const $ = (id) => document.getElementById(id);
const mib = (bytes) => (bytes / 1048576).toFixed(1);
const left = (seconds) => seconds >= 120 ? `${Math.round(seconds / 60)} min` : seconds > 0 ? `${Math.round(seconds)} s` : "ended";

function row(one) {
  const made = document.createElement("tr");
  const texts = [one.session, one.branches.map((name) => name || "trunk").join(", "), mib(one.dram_bytes), mib(one.ssd_bytes), left(one.left_s), one.outcome];
  made.append(...texts.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
  return made;
}

async function refresh() {
  try {
    const query = new URLSearchParams(location.search).get("namespace");
    const reply = await fetch(`pool/sessions${query ? `?namespace=${encodeURIComponent(query)}` : ""}`);
    const body = await reply.json();
    if (!reply.ok) throw new Error(body.error.message);
    $("sessions").tBodies[0].replaceChildren(...body.sessions.map(row));
    $("none").hidden = body.sessions.length > 0;
    $("state").textContent = `${body.sessions.length} of tenant ${body.namespace}${body.complete ? "" : "; not every memory server responded"}`;
  } catch (error) {
    $("state").textContent = error.message;
  }
  setTimeout(refresh, 5000);
}

refresh();
})();
