// The whole system in one line of tiles: promises, load, hardware, autoscaler.

import { bar, make, write } from "./dom.js";
import { count, dash, kept, mebibytes, seconds } from "./words.js";

function tile(title, withBar = false) {
  const parts = { big: make("span.big"), more: make("span.more"), small: make("span.small"), bar: withBar ? bar(title) : null };
  parts.element = make("div.tile", {}, make("h2", {}, title), parts.big, ...(parts.bar ? [parts.bar] : []), parts.more, parts.small);
  return parts;
}

export class Overview {
  constructor(parent) {
    this.tiles = {
      ttft: tile("TTFT, last minute"),
      tpot: tile("TPOT, last minute"),
      load: tile("Requests"),
      npus: tile("NPUs", true),
      memory: tile("UB memory", true),
      scaler: tile("Autoscaler"),
    };
    parent.append(...Object.values(this.tiles).map((part) => part.element));
  }

  update(state) {
    const { slo, gateway, npus, ub_memory_mib: memory, autoscaler } = state;
    this.promise(this.tiles.ttft, slo.ttft_p50_s, slo.ttft_p99_s, slo.ttft_s, slo.ttft_attained, slo.attainment);
    this.promise(this.tiles.tpot, slo.tpot_p50_s, slo.tpot_p99_s, slo.tpot_s, slo.tpot_attained, slo.attainment);
    write(this.tiles.load.big, `${count(slo.requests_per_s)}/s over 1 min`);
    write(this.tiles.load.more, `${count(gateway.running)} running, ${count(gateway.queued)} queued`);
    write(this.tiles.load.small, `${count(gateway.queued_tokens)} prompt tokens wait`);
    this.used(this.tiles.npus, npus, count);
    this.used(this.tiles.memory, memory, mebibytes);
    this.scaler(autoscaler);
  }

  promise(part, median, tail, goal, share, wanted) {
    const known = share !== null && share !== undefined;
    const good = known && share >= wanted;
    const words = kept(wanted);
    write(part.big, known ? `${seconds(tail)} p99` : "no requests");
    write(part.more, known ? `median ${seconds(median)}` : dash);
    write(part.small, known
      ? `${good ? "✓" : "✗"} ${kept(share)} within ${seconds(goal)} (goal ${words})`
      : `promised: ${seconds(goal)} for ${words}`);
    part.element.dataset.tone = known ? (good ? "good" : "bad") : "";
  }

  used(part, { used, offered }, words) {
    write(part.big, words(used));
    part.bar.set(offered ? used / offered : 0);
    write(part.more, `of ${words(offered)}`);
    write(part.small, offered > used ? `${words(offered - used)} free` : "none free");
  }

  scaler({ policy, alive, age_s: age, period_s: period }) {
    const off = policy === "none";
    write(this.tiles.scaler.big, off ? "off" : alive ? policy : "no answer");
    const since = age === null || age === undefined ? "" : `, last look ${seconds(age)} ago`;
    write(this.tiles.scaler.small, off ? "only people scale" : alive ? `looks every ${seconds(period)}` : `pools stay as they are${since}`);
    this.tiles.scaler.element.dataset.tone = off || alive ? "" : "bad";
  }
}
