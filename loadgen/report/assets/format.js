// Numbers as people read them; the same rules as report/numbers.py.

const MISSING = "–";

function significant(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (value === 0) return "0";
  const before = Math.floor(Math.log10(Math.abs(+value.toPrecision(digits)))) + 1;
  const decimals = Math.max(0, digits - before);
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

const TIME_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

function timeUnit(seconds) {
  return TIME_UNITS.find(([factor]) => Math.abs(seconds) >= 0.9995 * factor) || TIME_UNITS[2];
}

function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return MISSING;
  const [factor, unit] = timeUnit(seconds);
  return `${significant(seconds / factor)} ${unit}`;
}

function formatShare(value) {
  return value === null || value === undefined ? MISSING : `${+(100 * value).toFixed(2)} %`;
}

// How a value reads where the cursor is.
const READ = {
  s: formatDuration,
  per_s: (value) => (value === null || value === undefined ? MISSING : `${significant(value)}/s`),
  share: formatShare,
  count: (value) => significant(value, 1),
  tokens: (value) => `${significant(value, 1)} tokens`,
  number: (value) => significant(value, 4),
  percentile: (position) => `p${formatPercentile(position)}`,
};

function formatPercentile(position) {
  const percentile = 100 * (1 - Math.pow(10, -position));
  const digits = Math.max(0, Math.ceil(position) - 1 + (position % 1 > 1e-6 ? 1 : 0));
  return String(+percentile.toFixed(Math.min(6, digits)));
}

// Labels of one axis: all ticks in the unit that the largest of them wants.
function tickLabels(unit, splits) {
  const finite = splits.filter((split) => split !== null);
  const largest = Math.max(...finite.map(Math.abs), 0);
  if (unit === "s") {
    const [factor, name] = timeUnit(largest || 1);
    return splits.map((split) => (split === null ? null : `${+(split / factor).toPrecision(6)} ${name}`));
  }
  if (unit === "share") return splits.map((split) => (split === null ? null : `${+(100 * split).toPrecision(4)} %`));
  return splits.map((split) => (split === null ? null : (+split.toPrecision(6)).toLocaleString("en-US")));
}

// The ones that matter most come first: on a narrow plot the others have no room.
const PERCENTILE_TICKS = [50, 90, 99, 99.9, 99.99, 99.999, 0, 75, 95];

function percentilePosition(percentile) {
  return -Math.log10(1 - percentile / 100);
}
