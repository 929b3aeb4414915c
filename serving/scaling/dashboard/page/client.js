// Talks to the server that the page came from, and to nobody else.

const PATIENCE_MS = 11_000;
const NONCE = "X-Pools-Nonce";
const ONCE = "X-Pools-Once";

let nonce = "";

/** `kind` says what went wrong, the message says it to people, `fits` is the number that would have done. */
export class Refusal extends Error {
  constructor(kind, message, fits = null) {
    super(message);
    this.kind = kind;
    this.fits = fits;
  }
}

async function send(path, headers, method = "GET") {
  try {
    return await fetch(path, {
      method,
      headers,
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    const slow = error.name === "TimeoutError";
    throw new Refusal("offline", slow ? "The dashboard does not answer." : "The dashboard cannot be reached.");
  }
}

async function get(path, headers = nonce ? { [NONCE]: nonce } : {}) {
  const response = await send(path, headers);
  nonce = response.headers.get(NONCE) || nonce;
  const body = await response.json().catch(() => null);
  if (response.ok && body) return body;
  if (body && body.error) throw new Refusal(body.error.kind, body.error.message, body.error.fits ?? null);
  if (response.status === 401 || response.status === 403) throw new Refusal("token", "The dashboard asks for its token.");
  throw new Refusal("broken", `The dashboard answered with ${response.status}.`);
}

/** The pass of a printed address, once, for the cookie that Ray's own login sets. */
export function enterOnce(pass) {
  return get("pools/login", { [ONCE]: pass });
}

/** Ray's own login: it answers with its cookie. Returns whether this is the token. */
export async function enter(token) {
  const response = await send("api/authenticate", { Authorization: `Bearer ${token}` }, "POST");
  if (response.ok || response.status === 403) return response.ok;
  throw new Refusal("broken", `The dashboard answered with ${response.status}.`);
}

export async function look() {
  const state = await get("api/pools");
  state.controls = nonce !== "";
  return state;
}

export async function lookAtExperts() {
  const state = await get("api/experts");
  state.controls = nonce !== "";
  return state;
}

/** Samples of the last hour that are younger than `after` [s since 1970]. */
export function history(after) {
  return get(`api/pools/history?after=${after}`);
}

/** All decisions and events that are kept; a look has only the latest. */
export async function changes() {
  const [{ decisions }, { events }] = await Promise.all([get("api/pools/decisions"), get("api/pools/events")]);
  return [...decisions.map((one) => ({ ...one, sort: "decision" })), ...events.map((one) => ({ ...one, sort: "event" }))];
}

/** verb: scale, hold or release. */
export function change(pool, verb, numbers = {}) {
  return order(`api/pools/${encodeURIComponent(pool)}/${verb}`, numbers);
}

/** verb: rebalance, drain or resize. */
export function orderGroup(group, verb, numbers = {}) {
  return order(`api/experts/${verb}`, { group, ...numbers });
}

/** A nonce of a server that was started anew since is fetched once. */
async function order(route, fields) {
  const query = new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== null && value !== ""));
  const path = `${route}?${query}`;
  try {
    return await get(path);
  } catch (error) {
    if (error.kind !== "stale") throw error;
    await look();
    return get(path);
  }
}
