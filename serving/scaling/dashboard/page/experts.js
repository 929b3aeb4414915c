// The page of the experts: a card for each group of ranks.

import { lookAtExperts } from "./client.js";
import { keep, show, write } from "./dom.js";
import { groupCard } from "./expert_group.js";
import { Live } from "./live.js";

const at = (id) => document.getElementById(id);
const live = new Live(lookAtExperts, draw, () => "");

function draw(state) {
  write(at("model"), state.model ? `${state.model} · ${state.mode}` : state.mode);
  document.title = `Experts · ${state.model || state.mode}`;
  const none = noGroup(state);
  write(at("no-group"), none);
  show(at("no-group"), none !== "");
  const cards = state.groups.map((group) => ({ group, controls: state.controls }));
  keep(at("groups"), cards, ({ group }) => group.group, ({ group }) => groupCard(group, () => live.now()));
}

function noGroup({ ep, groups }) {
  if (groups.length) return "";
  const wanted = Object.keys(ep).filter((pool) => ep[pool] > 1);
  if (wanted.length) return `No rank of ${wanted.join(", ")} has announced itself yet: its group is starting, or lost.`;
  return "ep is 1 everywhere: each instance computes all experts in one process, and there is nothing to balance. A group of ranks comes with [decode] ep = 2 in the configuration.";
}

live.begin();
