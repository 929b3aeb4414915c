// Numbers as people read them. Between a number and its unit no line ends.

export const dash = "–";
const NO_BREAK = "\u00a0";

const join = (number, unit) => `${number}${NO_BREAK}${unit}`;
const brief = (value) => value.toFixed(1).replace(/\.0$/, "");

export function count(value) {
  if (value === null || value === undefined) return dash;
  if (value >= 1e6) return join(brief(value / 1e6), "M");
  if (value >= 1e4) return join(Math.round(value / 1e3), "k");
  return brief(value);
}

export function seconds(value) {
  if (value === null || value === undefined) return dash;
  if (value >= 9.95) return join(Math.round(value), "s");
  if (value >= 0.995) return join(brief(value), "s");
  return join(value >= 0.00995 ? Math.round(value * 1000) : brief(value * 1000), "ms");
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? dash : join((share * 100).toFixed(digits), "%");
}

/** A share that is held against a goal: rounding must not carry it over the goal. */
export function kept(share) {
  return share === null || share === undefined ? dash : join(brief(Math.floor(share * 1000) / 10), "%");
}

/** In the largest unit that leaves at least two digits; below 10 GiB in MiB, as the configuration has it. */
export function mebibytes(value) {
  if (value === null || value === undefined) return dash;
  if (value >= 10 * 1024 ** 2) return join(brief(value / 1024 ** 2), "TiB");
  if (value >= 10 * 1024) return join(brief(value / 1024), "GiB");
  return join(Math.round(value), "MiB");
}

export function bytes(value) {
  return mebibytes(value === null || value === undefined ? null : value / 1024 ** 2);
}

/** Bytes per second, small ones too. */
export function rate(value) {
  if (value === null || value === undefined) return dash;
  const mebi = value / 1024 ** 2;
  return mebi >= 1024 ? join(brief(mebi / 1024), "GiB/s") : join(mebi > 0 && mebi < 0.05 ? "< 0.1" : brief(mebi), "MiB/s");
}

/** 9:05, 1:02:03 */
export function left(total) {
  const whole = Math.max(0, Math.ceil(total));
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

/** layer 3, draft layer */
export function layerName(name) {
  return name === "draft" ? "draft layer" : `layer ${name}`;
}

export function plural(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}
