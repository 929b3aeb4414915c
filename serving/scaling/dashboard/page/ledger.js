// The last decisions, newest first, each with its reason.

import { keep, make, show, write } from "./dom.js";
import { clock } from "./words.js";

export class Ledger {
  constructor(section) {
    this.section = section;
    this.list = section.querySelector("#decisions");
    this.none = section.querySelector("#no-decisions");
    this.filter = section.querySelector("#ledger-pool");
    this.filter.addEventListener("change", () => this.draw());
    this.decisions = [];
  }

  update(state) {
    show(this.section, true);
    const known = new Set([...this.filter.options].map((option) => option.value));
    for (const { pool } of state.pools) if (!known.has(pool)) this.filter.append(make("option", { value: pool }, pool));
    this.decisions = state.decisions;
    this.draw();
  }

  draw() {
    const wanted = this.filter.value;
    const shown = this.decisions.filter(({ pool }) => !wanted || pool === wanted);
    keep(this.list, shown, (decision) => decision.id ?? `${decision.at} ${decision.pool}`, entry);
    show(this.none, shown.length === 0);
  }
}

function entry({ at, pool, before, target, kind, reason, by }) {
  const number = before === target ? `${target}` : `${before} → ${target}`;
  const item = make("li", {},
    make("time", { datetime: new Date(at * 1000).toISOString() }, clock(at)),
    make("span.what", {}, make("b", {}, pool), ` ${number}`),
    make("span.chip", { "data-kind": kind }, kind),
    make("span.why", {}, reason, ...(by && by !== "autoscaler" ? [make("span.quiet", {}, ` (${by})`)] : [])));
  item.update = () => {};
  return item;
}
