// One pool's replicas, a row each.

import { bar, keep, make, write } from "./dom.js";
import { count, dash, percent } from "./words.js";

const COLUMNS = { engine: ["replica", "where", "requests", "queue", "KV"], cache: ["server", "where", "in use"] };

export function replicaTable(pool, kind) {
  const body = make("tbody");
  const head = make("tr", {}, ...COLUMNS[kind].map((name) => make("th", { scope: "col" }, name)));
  const table = make("div.scroll", {}, make("table", {}, make("caption.hidden", {}, `Replicas of ${pool}`), make("thead", {}, head), body));
  table.update = (replicas) => keep(body, withRanks(replicas), (replica) => replica.name, () => row(kind));
  return table;
}

/** Each replica, and below it its ranks, if it is a group. */
function withRanks(replicas) {
  const below = (replica) => (replica.ranks ?? []).map((rank) => ({ ...rank, node: replica.node, isRank: true }));
  return replicas.flatMap((replica) => [replica, ...below(replica)]);
}

function row(kind) {
  const state = make("span.chip");
  const name = make("span.name");
  const fill = bar("KV in use");
  const cells = { where: make("td.where"), sequences: make("td"), queue: make("td") };
  const share = make("span");
  const line = make("tr", {}, make("th", { scope: "row" }, make("div.chips", {}, name, state)), cells.where, ...(kind === "cache" ? [] : [cells.sequences, cells.queue]), make("td.fill-cell", {}, fill, share));
  line.update = (replica) => {
    line.dataset.state = replica.state;
    line.toggleAttribute("data-rank", replica.isRank === true);
    write(name, replica.isRank ? `${replica.name.split(".").at(-1)}, pid ${replica.pid}` : replica.name);
    write(state, replica.state === "serving" ? "" : replica.state);
    write(cells.where, place(replica));
    write(cells.sequences, count(replica.sequences));
    write(cells.queue, count(replica.queued_tokens));
    fill.set(replica.kv_fill);
    write(share, percent(replica.kv_fill));
  };
  return line;
}

/**
 * "n0: 6-7, n1: 0-1" of ["n0.npu6", "n0.npu7", "n1.npu0", …]: a Ray node can be several hosts. Of more than two hosts
 * the first, the last and the number of NPUs: "n12-n31: 160".
 */
function place({ node, npus }) {
  const hosts = new Map();
  for (const name of npus) {
    const [host, number] = name.split(".npu");
    hosts.set(host, [...(hosts.get(host) ?? []), Number(number)]);
  }
  if (hosts.size > 2) {
    const numbers = [...hosts.keys()].map((host) => Number(host.slice(1))).sort((one, other) => one - other);
    return `n${numbers[0]}-n${numbers.at(-1)}:\u00a0${npus.length}`;
  }
  const inOrder = [...hosts].sort(([one], [other]) => Number(one.slice(1)) - Number(other.slice(1)));
  const places = inOrder.map(([host, numbers]) => `${host}:\u00a0${ranges(numbers)}`);
  return places.join(", ") || node || dash;
}

function ranges(numbers) {
  const runs = [];
  for (const number of numbers.sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
}
