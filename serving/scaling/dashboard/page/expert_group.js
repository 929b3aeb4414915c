// One group of ranks: how evenly it works, which experts are busy, its ranks, what goes between them.

import { make, show, write } from "./dom.js";
import { groupEvents } from "./expert_events.js";
import { heatMap } from "./expert_heat.js";
import { layerPlacement } from "./expert_layer.js";
import { Orders } from "./expert_orders.js";
import { pairs } from "./expert_pairs.js";
import { rankTable } from "./expert_ranks.js";
import { bytes, count, layerName, plural, seconds } from "./words.js";

export function groupCard({ group }, afterwards) {
  const orders = new Orders(group, afterwards);
  const chips = { epoch: make("span.chip"), map: make("span.chip"), members: make("span.chip") };
  const parts = {
    chips,
    words: make("p.quiet"),
    orders,
    heat: heatMap(group),
    layer: layerPlacement(group),
    busiest: make("p.quiet"),
    ranks: rankTable(group, (rank) => orders.drain(rank)),
    events: groupEvents(group),
    moved: pairs("Bytes between ranks", "rows and results, since each joined", bytes),
    waits: pairs("Who waits for whom", "by the rank that arrived last, since each joined", seconds, "waits for"),
  };
  const card = make("article.group", { "aria-label": `Group ${group}` },
    make("div.head", {}, make("h2", {}, group), make("span.chips", {}, ...Object.values(chips)), parts.words), parts.orders.element,
    make("div.placement", {}, parts.heat, parts.events), parts.layer, parts.busiest, parts.ranks, make("div.pairs", {}, parts.moved, parts.waits));
  card.update = (state) => update(parts, state);
  return card;
}

function update({ chips, words, orders, heat, layer: oneLayer, busiest, ranks, moved, waits, events }, { group, controls }) {
  const { members, ranks_total: all, rank_numbers: numbers, exchange } = group;
  write(chips.epoch, `epoch ${group.epoch}`);
  write(chips.map, `map ${group.map_version}`);
  write(chips.members, members.length === all ? `${plural(all, "rank")}` : `${members.length} of ${plural(all, "rank")}`);
  chips.members.dataset.state = members.length === all ? "running" : "dead";
  write(words, balance(group));
  orders.update(group, controls);
  heat.update(group);
  show(busiest, group.busiest.length > 0);
  write(busiest, `Busiest: ${group.busiest.slice(0, 5).map(({ layer, expert, rows }) => `${layerName(group.layer_names[layer])} expert ${expert} (${count(rows)})`).join(", ")}`);
  ranks.update(group, controls);
  moved.update(exchange.bytes, numbers);
  waits.update(exchange.waited_s, numbers);
  events.update(group);
  oneLayer.update(group);
}

/** Of layers with rows: the draft layer has none without speculation. */
function balance({ balancedness, rank_layer_rows: rows, layer_names: names }) {
  const known = balancedness.filter((_, layer) => rows[layer].some(Boolean));
  if (!known.length) return "No rows yet: there was no request.";
  const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
  const worst = balancedness.indexOf(Math.min(...known));
  return `Balancedness ${mean.toFixed(2)} (1 = even), worst ${layerName(names[worst])}: ${balancedness[worst].toFixed(2)}.`;
}
