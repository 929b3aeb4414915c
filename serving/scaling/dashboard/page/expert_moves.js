// The latest rebalances of a group: when, by whom, what came of it.

import { keep, make, show, write } from "./dom.js";
import { clock, percent, plural, seconds } from "./words.js";

const SHOWN = 10;

export function rebalances(group) {
  const list = make("ol.rebalances");
  const none = make("p.quiet", {}, "No expert has been moved since the group's shell began.");
  const element = make("section", { "aria-label": `Rebalances of ${group}` }, make("h3", {}, "Latest moves"), none, list);
  element.update = (state) => {
    show(none, state.rebalances.length === 0);
    keep(list, state.rebalances.slice(0, SHOWN), ({ at_s: at }) => at, entry);
  };
  return element;
}

function entry({ at_s: at }) {
  const chip = make("span.chip");
  const words = make("span");
  const item = make("li", {}, make("time", { datetime: new Date(at * 1000).toISOString() }, clock(at)), chip, words);
  item.update = (one) => {
    write(chip, one.outcome);
    chip.dataset.state = one.problem ? "dead" : one.outcome === "running" ? "starting" : "running";
    write(words, explained(one));
  };
  return item;
}

function explained({ reason, policy, layers, moves, gain, seconds: took, problem }) {
  const parts = [`${[reason, policy].filter(Boolean).join(", ")}: ${plural(moves, "move")} in ${plural(layers.length, "layer")}`];
  if (gain) parts.push(`${percent(gain)} of a layer's time to gain`);
  if (took !== null) parts.push(`took ${seconds(took)}`);
  if (problem) parts.push(problem);
  return parts.join("; ");
}
