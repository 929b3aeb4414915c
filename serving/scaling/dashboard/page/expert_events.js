// What happened to a group's ranks and experts: losses, replacements, rebalances, measures against slow ranks; newest first.

import { keep, make, show, write } from "./dom.js";
import { clock, layerName, percent, plural, seconds } from "./words.js";

const SHOWN = 12;
const NAMED_LAYERS = 4;

export function groupEvents(group) {
  const list = make("ol.events");
  const none = make("p.quiet", {}, "Nothing yet: no rank was lost and no expert moved.");
  const element = make("section", { "aria-label": `Events of ${group}` }, make("h3", {}, "What happened"), none, list);
  element.update = (state) => {
    const all = entriesOf(state);
    show(none, all.length === 0);
    keep(list, all, ({ key }) => key, entry);
  };
  return element;
}

function entriesOf({ events = [], rebalances, measures, layer_names: names }) {
  const losses = events.map(({ id, at, kind, replica, text }) => ({ key: `event ${id}`, at, kind, words: `${replica.split(".").pop()}: ${text}` }));
  const moves = rebalances.map((one) => ({ key: `moves ${one.at_s}`, at: one.at_s, kind: "rebalance", state: stateOf(one), words: explained(one, names) }));
  const slow = measures.map(({ at_s: at, rank, measure, reason }) => ({ key: `slow ${at} ${rank}`, at, kind: "slow rank", state: "draining", words: `r${rank}, ${measure.replace("_", " ")}: ${reason}` }));
  return [...losses, ...moves, ...slow].sort((one, other) => other.at - one.at).slice(0, SHOWN);
}

function entry({ at }) {
  const chip = make("span.chip");
  const words = make("span");
  const item = make("li", {}, make("time", { datetime: new Date(at * 1000).toISOString() }, clock(at)), chip, words);
  item.update = ({ kind, state, words: said }) => {
    write(chip, kind);
    if (state) chip.dataset.state = state;
    else chip.dataset.kind = kind;
    write(words, said);
  };
  return item;
}

function stateOf({ problem, outcome }) {
  if (problem) return "dead";
  return outcome === "running" ? "starting" : "running";
}

function explained({ reason, policy, layers, moves, gain, seconds: took, outcome, problem }, names) {
  const where = layers.length > NAMED_LAYERS ? plural(layers.length, "layer") : layers.map((layer) => layerName(names[layer] ?? layer)).join(", ");
  const parts = [`${[reason, policy].filter(Boolean).join(", ")}: ${plural(moves, "move")} in ${where}`, outcome];
  if (gain) parts.push(`${percent(gain)} of a layer's time to gain`);
  if (took !== null) parts.push(`took ${seconds(took)}`);
  if (problem) parts.push(problem);
  return parts.join("; ");
}
