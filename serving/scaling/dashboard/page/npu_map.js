// All NPUs, a square each, host by host: coloured by pool, brighter when busier, crossed when instance or host is dead.

import { bar, make, show, write } from "./dom.js";
import { bytes, left, mebibytes, percent, plural } from "./words.js";

const LOST = new Set(["dead", "frozen"]);
const FREE = { pool: "", state: "free", share: "0%", title: "free" };
const HOST_LOST = { pool: "", state: "dead", share: "0%", title: "its host is dead" };

export class NpuMap {
  constructor(section) {
    this.section = section;
    this.nodes = section.querySelector("#nodes");
    this.legend = section.querySelector("#map-legend");
    this.squares = new Map();
    this.memory = new Map();
    this.shape = "";
  }

  update({ nodes, pools }) {
    show(this.section, nodes.some(({ npus }) => npus.length));
    const shape = nodes.map(({ name, address, state, npus }) => `${name}@${address}:${state}:${npus.length}`).join() + pools.map(({ pool }) => pool).join();
    if (shape !== this.shape) this.build(nodes, pools);
    this.shape = shape;
    const held = owners(pools);
    const lost = new Set(nodes.filter(({ state }) => state === "dead").flatMap(({ npus }) => npus));
    for (const [name, square] of this.squares) paint(square, name, lost.has(name) ? HOST_LOST : held.get(name) ?? FREE);
    for (const { name, state, lost_s: lostFor, disk_full: diskFull, ub_memory_mib: { used, offered } } of nodes) {
      const part = this.memory.get(name);
      if (state === "dead") {
        write(part.words, `dead for ${left(lostFor)}`);
        continue;
      }
      part.bar.set(offered ? used / offered : 0);
      write(part.words, `UB ${mebibytes(used)} of ${mebibytes(offered)}${diskFull ? `; ${diskFull}` : ""}`);
    }
  }

  build(nodes, pools) {
    this.squares.clear();
    this.memory.clear();
    this.nodes.replaceChildren(...nodes.map((node) => this.node(node)));
    const engines = pools.filter(({ kind }) => kind !== "cache").map(({ pool }) => swatch({ "data-pool": poolColour(pool) }, pool));
    const rest = [swatch({ "data-state": "free" }, "free"), swatch({ "data-state": "dead" }, "dead or frozen")];
    this.legend.replaceChildren(...engines, ...rest, make("span.quiet", {}, "the fuller the colour, the busier in the last 10 s"));
  }

  node({ name, address, state, npus }) {
    const hosts = new Map();
    for (const npu of npus) {
      const host = npu.split(".")[0];
      const square = make("span.npu");
      this.squares.set(npu, square);
      hosts.set(host, [...(hosts.get(host) ?? []), square]);
    }
    const part = { bar: bar(`UB memory of ${name}`), words: make("span.small") };
    this.memory.set(name, part);
    const names = [...hosts.keys()];
    const label = names.length > 1 ? `${names[0]}-${names.at(-1)}` : name;
    const memory = state === "dead" ? [part.words] : [part.bar, part.words];
    return make("div.node", { "data-state": state },
      make("div.node-head", {},
        make("b", {}, label), make("span.small.quiet", {}, address), make("span.small", {}, plural(npus.length, "NPU")), ...memory),
      make("div.hosts", {}, ...[...hosts].map(([host, squares]) =>
        make("div.host", {}, ...(names.length > 1 ? [make("span.small", {}, host)] : []), ...squares))));
  }
}

/** Which NPU belongs to which replica. */
function owners(pools) {
  const found = new Map();
  for (const { pool, replicas } of pools) {
    for (const replica of replicas) {
      const title = words(pool, replica);
      const share = `${Math.round((replica.busy ?? 0) * 100)}%`;
      for (const npu of replica.npus) found.set(npu, { pool: poolColour(pool), state: replica.state, share, title });
    }
  }
  return found;
}

function words(pool, { name, state, sequences, busy, hbm_used_bytes: used, hbm_capacity_bytes: capacity }) {
  const parts = [`${pool} ${name}`];
  if (state !== "serving") parts.push(state);
  if (!LOST.has(state)) parts.push(plural(sequences, "sequence"), `${percent(busy)} busy`);
  if (capacity) parts.push(`HBM ${bytes(used)} of ${bytes(capacity)}`);
  return parts.join(", ");
}

function paint(square, name, { pool, state, share, title }) {
  const full = `${name}: ${title}`;
  if (square.title !== full) square.title = full;
  if (square.dataset.pool !== pool) square.dataset.pool = pool;
  if (square.dataset.state !== state) square.dataset.state = state;
  if (square.style.getPropertyValue("--busy") !== share) square.style.setProperty("--busy", share);
}

function swatch(marks, label) {
  return make("span.swatch", {}, make("span.npu", marks), label);
}

/** A pool's colour by its role; pools of other names have the one of the prompt's side. */
export function poolColour(pool) {
  return { decode: "decode", aggregated: "decode", kvcache: "kvcache" }[pool] ?? "prefill";
}
