// One row per request: waiting before it was sent, waiting for the first token, the stream; how it ended by colour.

const PHASES = [
  ["before it was sent", "grey", 0.45], ["waiting for the first token", "orange", 0.75], ["streaming", "blue", 0.9],
  ["failed", "red", 0.9], ["ended on purpose", "violet", 0.8],
];

function makeWaterfall(view) {
  const { spec } = view;
  const rows = spec.names.length;
  const options = baseOptions(view);
  options.scales.y = { range: () => [0, rows] };
  options.axes[1] = { ...options.axes[1], show: false };
  options.padding = [6, 14, 0, 14];
  options.cursor.points = { show: false };
  options.series = [{}, { stroke: "transparent", points: { show: false }, paths: () => null }];
  options.hooks.draw.unshift((plot) => drawRows(plot, view));
  const at = waterfallLegend(view);
  view.stops = rows;
  view.stop = (step) => {
    const [from, to] = rowsInView(view);
    const row = Math.min(to - 1, Math.max(from, step));
    view.step = row;
    return [spec.intended_s[row], null, (row - from + 0.5) / (to - from)];
  };
  view.read = (plot) => {
    const { left, top } = plot.cursor;
    const own = plot.over.matches(":hover") || Number.isInteger(view.step);
    const [from, to] = rowsInView(view);
    const row = own && left >= 0 && top >= 0 ? Math.floor(from + (top / plot.over.clientHeight) * (to - from)) : -1;
    at.textContent = row >= from && row < to ? rowText(spec, row) : "";
  };
  const [low, high] = view.extent;
  return new uPlot(options, [[low, high], [0, rows]], view.plotBox);
}

// Rows that have something to show in the zoomed range, as [first, behind the last]; the rest gives them its room.
function rowsInView(view) {
  const { spec } = view;
  const all = [0, spec.names.length];
  if (!view.zoomed) return all;
  const [low, high] = view.zoomed;
  const found = spec.names.map((name, row) => segments(spec, row).some(([from, to]) => from <= high && to >= low));
  return found.includes(true) ? [found.indexOf(true), found.lastIndexOf(true) + 1] : all;
}

function drawRows(plot, view) {
  const { spec } = view;
  const { ctx, bbox } = plot;
  const [from, to] = rowsInView(view);
  const full = bbox.height / (to - from);
  const height = Math.max(1, full >= 4 ? Math.min(full - 1.5 * uPlot.pxRatio, 14 * uPlot.pxRatio) : full * 0.8);
  ctx.save();
  ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
  for (let row = from; row < to; row += 1) {
    const top = bbox.top + (row - from) * full + (full - height) / 2;
    for (const [begin, end, name, alpha] of segments(spec, row)) {
      const left = plot.valToPos(begin, "x", true);
      const width = Math.max(plot.valToPos(end, "x", true) - left, uPlot.pxRatio);
      ctx.fillStyle = color(name, alpha);
      ctx.fillRect(left, top, width, height);
    }
  }
  ctx.restore();
}

// The bar of one request as [from, to, colour, opacity].
function segments(spec, row) {
  const started = spec.started_s[row];
  if (started === null) {
    const until = spec.ended_s[row] === null ? spec.intended_s[row] : spec.ended_s[row];
    return [[spec.intended_s[row], until, ...PHASES[spec.kinds[row] === "failed" ? 3 : 0].slice(1)]];
  }
  const parts = started > spec.intended_s[row] ? [[spec.intended_s[row], started, ...PHASES[0].slice(1)]] : [];
  const first = spec.first_s[row];
  const end = spec.ended_s[row] === null ? spec.last_s[row] : spec.ended_s[row];
  const last = { failed: 3, deliberate: 4 }[spec.kinds[row]];
  if (first === null) {
    if (end !== null) parts.push([started, end, ...PHASES[last || 1].slice(1)]);
    return parts;
  }
  parts.push([started, first, ...PHASES[1].slice(1)], [first, end === null ? first : end, ...PHASES[last || 2].slice(1)]);
  return parts;
}

function rowText(spec, row) {
  const parts = [`request ${spec.names[row]} ${spec.outcomes[row]}`];
  const started = spec.started_s[row];
  const waited = started === null ? null : started - spec.intended_s[row];
  if (waited !== null && waited >= 0.001) parts.push(`sent ${formatDuration(waited)} late`);
  if (spec.first_s[row] !== null) parts.push(`TTFT ${formatDuration(spec.first_s[row] - spec.intended_s[row])}`);
  if (spec.last_s[row] !== null) parts.push(`E2E ${formatDuration(spec.last_s[row] - spec.intended_s[row])}`);
  if (spec.input_tokens[row] !== null) {
    const cached = spec.cached_tokens[row] ? ` (${spec.cached_tokens[row]} cached)` : "";
    parts.push(`${spec.input_tokens[row]}${cached} → ${spec.output_tokens[row] === null ? "?" : spec.output_tokens[row]} tokens`);
  }
  return parts.join(", ");
}

function waterfallLegend(view) {
  view.legend.replaceChildren();
  const present = new Set();
  view.spec.names.forEach((name, row) => segments(view.spec, row).forEach((part) => present.add(part[2])));
  for (const [name, tone] of PHASES) {
    if (!present.has(tone)) continue;
    const key = document.createElement("span");
    key.className = "key";
    key.append(swatch(tone, "block"), name);
    view.legend.append(key);
  }
  return legendEnd(view);
}
