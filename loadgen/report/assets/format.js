// Numbers as people read them; the same rules as numbers.py.

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

const pad = (value) => String(value).padStart(2, "0");

function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return MISSING;
  if (seconds === 0) return "0 s";
  const minutes = Math.round(seconds / 60);
  if (seconds >= 7200) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  if (seconds >= 120) return `${Math.floor(Math.round(seconds) / 60)} min ${pad(Math.round(seconds) % 60)} s`;
  const [factor, unit] = timeUnit(seconds);
  return `${significant(seconds / factor)} ${unit}`;
}

// What is not exactly none or all is never rounded to it.
function formatShare(value) {
  if (value === null || value === undefined) return MISSING;
  if (value === 0 || value === 1) return `${100 * value} %`;
  for (let digits = 1; digits <= 4; digits += 1) {
    const text = (100 * value).toFixed(digits);
    if (+text !== 0 && +text !== 100) return `${text} %`;
  }
  return value < 0.5 ? "< 0.001 %" : "> 99.999 %";
}

// A moment of a run: 12.5 s, 4:05, 1:02:03.
function formatClock(seconds) {
  if (seconds === null || seconds === undefined) return MISSING;
  if (Math.abs(seconds) < 60) return `${significant(seconds)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  const tail = `${pad(whole % 60)}`;
  return minutes < 60 ? `${minutes}:${tail}` : `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${tail}`;
}

const CLOCK_STEPS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  14400, 28800, 43200, 86400, 172800, 604800, 2592000, 31536000,
];

// A count in little room: 950, 15k, 20M.
function compactCount(value) {
  const found = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([factor]) => Math.abs(value) >= factor);
  return found ? `${+(value / found[0]).toPrecision(4)}${found[1]}` : String(+value.toPrecision(4));
}

// How a value reads where the cursor is.
const READ = {
  s: formatDuration,
  clock: formatClock,
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

function formatTick(moment) {
  return Math.abs(moment) < 60 ? `${+moment.toPrecision(6)} s` : formatClock(moment);
}

// Labels of one axis: all ticks in the unit that the largest of them wants.
function tickLabels(unit, splits) {
  const finite = splits.filter((split) => split !== null);
  const largest = Math.max(...finite.map(Math.abs), 0);
  if (unit === "s") {
    const [factor, name] = timeUnit(largest || 1);
    return splits.map((split) => (split === null ? null : `${+(split / factor).toPrecision(6)} ${name}`));
  }
  if (unit === "clock") return splits.map((split) => (split === null ? null : split ? formatTick(split) : "0"));
  if (largest >= 1e5) return splits.map((split) => (split === null ? null : compactCount(split)));
  if (unit === "share") return splits.map((split) => (split === null ? null : `${+(100 * split).toPrecision(4)} %`));
  return splits.map((split) => (split === null ? null : (+split.toPrecision(6)).toLocaleString("en-US")));
}

// The ones that matter most come first: on a narrow plot the others have no room.
const PERCENTILE_TICKS = [50, 90, 99, 99.9, 99.99, 99.999, 0, 75, 95];

function percentilePosition(percentile) {
  return -Math.log10(1 - percentile / 100);
}
