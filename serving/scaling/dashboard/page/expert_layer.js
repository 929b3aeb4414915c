// The ranks that hold the experts of one layer, for models with too many experts for a table of all layers.

import { homesIn, markOf } from "./expert_heat.js";
import { keep, make, show, write } from "./dom.js";
import { layerName } from "./words.js";

export function layerPlacement(group) {
  let state = null;
  const draw = () => keep(cells, homesIn(state.ranks, select.selectedIndex, state.experts).map((homes, expert) => ({ expert, homes })), ({ expert }) => expert, cell);
  const select = make("select", { "aria-label": `Layer of ${group}`, onchange: () => draw() });
  const cells = make("ol.layer-homes");
  const element = make("section", { "aria-label": `Experts of one layer of ${group}` },
    make("h3", {}, "Which rank holds which expert of ", select), make("div.scroll.wide", {}, cells));
  element.update = (latest) => {
    state = latest;
    const known = state.rows === null && state.ranks.every(({ held }) => held.length > 0);
    show(element, known);
    if (!known) return;
    if (select.options.length !== state.layer_names.length) select.replaceChildren(...state.layer_names.map((name) => make("option", {}, layerName(name))));
    draw();
  };
  return element;
}

function cell({ expert }) {
  const ranks = make("span");
  const item = make("li", {}, make("b", {}, `${expert}`), " ", ranks);
  item.update = ({ homes }) => {
    item.dataset.mark = markOf(homes);
    write(ranks, homes.map(({ rank }) => `r${rank}`).join(" ") || "?");
  };
  return item;
}
