// The page of the pools.

import { look } from "./client.js";
import { Curves } from "./curves.js";
import { keep, show, write } from "./dom.js";
import { Ledger } from "./ledger.js";
import { endpointAddress } from "./links.js";
import { Live } from "./live.js";
import { NpuMap } from "./npu_map.js";
import { Overview } from "./overview.js";
import { poolCard } from "./pool_card.js";

const at = (id) => document.getElementById(id);
const overview = new Overview(at("overview"));
const curves = new Curves(at("curves"), at("curve"));
const map = new NpuMap(at("map"));
const ledger = new Ledger(at("ledger"));
const live = new Live(look, draw, complaint);

function draw(state) {
  write(at("model"), state.model ? `${state.model} · ${state.mode}` : state.mode);
  document.title = `Pools · ${state.model || state.mode}`;
  for (const [id, page] of [["chat", ""], ["requests", "requests"]]) {
    at(id).href = `${endpointAddress(state.gateway)}${page}`;
    show(at(id), true);
  }
  overview.update(state);
  curves.update(state);
  map.update(state);
  const scaled = state.autoscaler.policy !== "none";
  const cards = state.pools.map((pool) => ({ pool, controls: state.controls, scaled }));
  keep(at("pools"), cards, ({ pool }) => pool.pool, ({ pool }) => poolCard(pool, () => live.now()));
  ledger.update(state);
}

function complaint({ autoscaler: { policy, alive } }) {
  const silent = policy !== "none" && !alive;
  return silent ? "The autoscaler does not answer. Pools stay as they are; you can still scale by hand." : "";
}

live.begin();
