// One pool: what is asked for, what there is, how full it is, the control, its replicas.

import { ScaleControl } from "./control.js";
import { bar, make, show, write } from "./dom.js";
import { replicaTable } from "./replicas.js";
import { count, dash, mebibytes, percent } from "./words.js";

const COUNTS = { running: "serving", dead: "dead", starting: "starting", draining: "draining" };

export function poolCard({ pool, kind }, afterwards) {
  const parts = {
    counts: Object.fromEntries(Object.keys(COUNTS).map((name) => [name, make("span.chip")])),
    room: make("span.quiet"),
    facts: facts(pool, kind),
    control: new ScaleControl(pool, afterwards),
    replicas: replicaTable(pool, kind),
    empty: make("p.quiet", {}, "No replica: the first request wakes the pool, or + does."),
  };
  const card = make("article.pool", { "aria-label": `Pool ${pool}` },
    make("div.head", {}, make("h2", {}, pool), make("span.chips", {}, ...Object.values(parts.counts)), parts.room),
    parts.control.element, parts.facts, parts.empty, parts.replicas);
  card.update = (item) => update(parts, item);
  return card;
}

function update(parts, { pool: state, controls, scaled }) {
  for (const [name, chip] of Object.entries(parts.counts)) {
    chip.dataset.state = name;
    write(chip, `${state[name]} ${COUNTS[name]}`);
    show(chip, name === "running" || state[name] > 0);
  }
  const range = scaled ? `autoscaler ${state.low}–${state.high}, ` : "";
  const { waits_s: waits } = state;
  const wait = waits === null || waits === undefined ? "" : `, waits for a node (${Math.round(waits)}\u00a0s)`;
  write(parts.room, `${range}room for ${count(state.fits)}${wait}`);
  parts.control.update(state, controls, scaled);
  parts.facts.update(state);
  show(parts.empty, state.replicas.length === 0);
  show(parts.replicas, state.replicas.length > 0);
  parts.replicas.update(state.replicas);
}

function facts(pool, kind) {
  const fill = bar(`KV in use, ${pool}`);
  const hits = bar(`Hit rate, ${pool}`);
  const words = { npus: make("dd"), fill: make("span"), hits: make("span"), queue: make("dd"), sequences: make("dd") };
  const pair = (term, ...value) => make("div", {}, make("dt", {}, term), ...value);
  const hitPair = pair("hit rate", make("dd.with-bar", {}, words.hits, hits));
  const list = make("dl.facts", {},
    pair(kind === "cache" ? "UB memory" : "NPUs", words.npus),
    pair(kind === "cache" ? "memory in use" : "KV in use", make("dd.with-bar", {}, words.fill, fill)),
    hitPair,
    ...(kind === "cache" ? [] : [pair("requests", words.sequences), pair("queue", words.queue)]));
  list.update = (state) => {
    write(words.npus, kind === "cache" ? mebibytes(state.ub_memory_mib) : `${count(state.npus)} (${count(state.npus_per_instance)} each)`);
    fill.set(state.kv_fill, state.kv_fill > 0.95 ? "bad" : "");
    write(words.fill, percent(state.kv_fill));
    show(hitPair, kind === "cache" || (state.hit_rate !== null && state.hit_rate !== undefined));
    hits.set(state.hit_rate);
    write(words.hits, percent(state.hit_rate));
    write(words.sequences, count(state.sequences));
    write(words.queue, state.queued_tokens === null || state.queued_tokens === undefined ? dash : `${count(state.queued_tokens)}\u00a0tokens`);
  };
  return list;
}
