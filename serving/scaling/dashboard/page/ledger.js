// Decisions with their reasons, and what happened to replicas and hosts, newest first.

import { keep, make, show, write } from "./dom.js";
import { commandButton, requestsAddress, requestsLink } from "./links.js";
import { clock } from "./words.js";

const AROUND_S = 60; // requests that ran so long before or after are shown with it

export class Ledger {
  constructor(section) {
    this.section = section;
    this.list = section.querySelector("#decisions");
    this.none = section.querySelector("#no-decisions");
    this.pool = section.querySelector("#ledger-pool");
    this.kind = section.querySelector("#ledger-kind");
    for (const filter of [this.pool, this.kind]) filter.addEventListener("change", () => this.draw());
    this.entries = [];
  }

  update(state) {
    show(this.section, true);
    const known = new Set([...this.pool.options].map((option) => option.value));
    for (const { pool } of state.pools) if (!known.has(pool)) this.pool.append(make("option", { value: pool }, pool));
    const decisions = state.decisions.map((entry) => ({ ...entry, sort: "decision", kind: kindOf(entry, state) }));
    const events = state.events.map((entry) => ({ ...entry, sort: "event" }));
    this.gateway = state.gateway;
    this.entries = [...decisions, ...events].sort((one, other) => other.at - one.at);
    this.draw();
  }

  draw() {
    const { pool, kind } = { pool: this.pool.value, kind: this.kind.value };
    const shown = this.entries.filter((entry) => (!pool || entry.pool === pool) && (!kind || entry.sort === kind));
    keep(this.list, shown, ({ sort, id }) => `${sort} ${id}`, (entry) => entryOf(entry, this.gateway));
    show(this.none, shown.length === 0);
  }
}

/** An event may still grow: several gateways lose the same replica, each with its streams. */
function entryOf({ sort, at, pool, ...more }, gateway) {
  const chip = make("span.chip");
  const why = make("span");
  const what = sort === "decision" ? change(more) : more.replica;
  const item = make("li", { "data-sort": sort },
    make("time", { datetime: new Date(at * 1000).toISOString() }, clock(at)),
    make("span.what", {}, make("b", {}, pool || "cluster"), ` ${what}`),
    chip,
    make("span.why", {}, why, " ", ...links(sort, at, pool, more.replica, gateway)));
  item.update = (entry) => {
    write(chip, entry.kind);
    chip.dataset.kind = entry.kind;
    write(why, sort === "decision" ? reason(entry) : entry.text);
  };
  return item;
}

/** The requests around it, of its replica if it has one, and that replica's log. A rank's log is its group's. */
function links(sort, at, pool, replica, gateway) {
  const name = sort === "event" && pool && replica ? replica : "";
  const address = requestsAddress(gateway, { from: Math.floor(at - AROUND_S), to: Math.ceil(at + AROUND_S), ...(name && { find: name }) });
  return [requestsLink(address), ...(name ? [" ", commandButton(`cloudmatrix logs ${name.split(".")[0]}`)] : [])];
}

/** A number set by hand is "held" only as long as its hold lasts, and no later one of its pool has taken its place. */
function kindOf({ id, pool, kind }, { pools, decisions }) {
  if (kind !== "held") return kind;
  const held = pools.find((one) => one.pool === pool)?.hold;
  const newest = decisions.find((one) => one.pool === pool && one.kind === "held");
  return held && newest?.id === id ? "held" : "by hand";
}

function change({ before, target }) {
  return before === target ? `${target}` : `${before} → ${target}`;
}

function reason({ reason: why, by, waits_s: waits }) {
  const words = waits === null || waits === undefined ? why : `${why} (${Math.round(waits)}\u00a0s)`;
  return by && by !== "autoscaler" ? `${words} (${by})` : words;
}
