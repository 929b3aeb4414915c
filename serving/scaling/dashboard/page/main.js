// Looks once a second while somebody looks at the page, and shows what it found.

import { look } from "./client.js";
import { Curves } from "./curves.js";
import { keep, show, write } from "./dom.js";
import { Ledger } from "./ledger.js";
import { Login } from "./login.js";
import { NpuMap } from "./npu_map.js";
import { Overview } from "./overview.js";
import { poolCard } from "./pool_card.js";
import { seconds } from "./words.js";

const PERIOD_MS = 1000;
const PATIENT_PERIOD_MS = 3000;
const OLD_S = 5;

const main = document.querySelector("main");
const at = (id) => document.getElementById(id);
const overview = new Overview(at("overview"));
const curves = new Curves(at("curves"), at("curve"));
const map = new NpuMap(at("map"));
const ledger = new Ledger(at("ledger"));
const login = new Login(at("login"), lookNow);
let timer = null;
let looking = null;
let seen = null;

function draw(state) {
  seen = performance.now();
  login.close();
  show(main, true);
  const title = state.model ? `${state.model} · ${state.mode}` : state.mode;
  write(at("model"), title);
  document.title = `Pools · ${state.model || state.mode}`;
  overview.update(state);
  curves.update(state);
  map.update(state);
  const scaled = state.autoscaler.policy !== "none";
  const cards = state.pools.map((pool) => ({ pool, controls: state.controls, scaled }));
  keep(at("pools"), cards, ({ pool }) => pool.pool, ({ pool }) => poolCard(pool, lookNow));
  ledger.update(state);
  trouble(complaint(state, scaled));
  const old = state.seen_s > OLD_S;
  alive(old ? "lost" : "live", old ? `as of ${seconds(state.seen_s)} ago` : "live");
}

function complaint(state, scaled) {
  if (state.seen_s > OLD_S) return "Ray's Serve controller does not answer: what you see is old.";
  if (scaled && !state.autoscaler.alive) return "The autoscaler does not answer. Pools stay as they are; you can still scale by hand.";
  return state.controls ? "" : "Ray's token authentication is off, so this page only shows. Scripts can POST.";
}

function fail(error) {
  const ago = seen === null ? "" : `, as of ${seconds((performance.now() - seen) / 1000)} ago`;
  alive("lost", `no answer${ago}`);
  if (error.kind !== "token") return trouble(error.message);
  trouble("");
  alive("lost", "not logged in");
  show(main, false);
  return login.open();
}

function trouble(words) {
  write(at("trouble"), words.charAt(0).toUpperCase() + words.slice(1));
  show(at("trouble"), words !== "");
}

function alive(state, words) {
  document.body.dataset.live = state;
  write(at("live-words"), words);
}

/** One look at a time; whoever asks meanwhile gets the next one. */
async function lookNow() {
  clearTimeout(timer);
  if (looking) await looking;
  looking = lookOnce();
  await looking;
}

async function lookOnce() {
  let wait = PERIOD_MS;
  try {
    draw(await look());
  } catch (error) {
    if (!error.kind) throw error;
    fail(error);
    wait = PATIENT_PERIOD_MS;
  } finally {
    looking = null;
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(lookNow, wait);
  }
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return lookNow();
  alive("paused", "paused");
  return clearTimeout(timer);
});
login.fromAddress().then(lookNow);
