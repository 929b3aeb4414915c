// What every plot has in common: colours of the page, axes, size, zoom, keyboard, log scale.

const views = [];

function color(name, alpha = 1) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  if (alpha === 1) return value;
  return value + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif';

function axis(spec, vertical) {
  const shared = {
    stroke: () => color("soft"), font: FONT, labelFont: FONT,
    grid: { stroke: () => color("grid"), width: 1, show: vertical },
    ticks: { stroke: () => color("line"), width: 1, size: 4, show: !vertical },
    values: (plot, splits) => tickLabels(spec.unit, splits),
  };
  if (vertical) {
    return { ...shared, gap: 6, size: (plot, labels) => Math.max(54, 14 + 6.6 * Math.max(0, ...(labels || []).map((label) => (label || "").length))) };
  }
  const horizontal = { ...shared, size: 30, gap: 4, label: spec.label, labelSize: spec.label ? 20 : 0, labelGap: 0, space: 64 };
  if (spec.unit === "clock") horizontal.incrs = CLOCK_STEPS;
  if (spec.unit === "percentile") {
    horizontal.splits = percentileSplits;
    horizontal.values = (plot, splits) => splits.map(formatPercentile);
    horizontal.grid = { ...shared.grid, show: true };
    horizontal.filter = (plot, splits) => splits;
  }
  const { values } = horizontal;
  horizontal.values = (plot, splits) => {
    const labels = values(plot, splits);
    plot.lastLabel = labels.filter(Boolean).at(-1) || "";
    return labels;
  };
  return horizontal;
}

// Room for the half of the last label that is right of its tick. Charts over time have the same, so that they are aligned.
function rightPadding(plot, spec) {
  plot.ctx.save();
  plot.ctx.font = FONT;
  const width = plot.ctx.measureText(plot.lastLabel || "").width;
  plot.ctx.restore();
  return Math.max(spec.x.unit === "clock" ? 26 : 14, 3 + width / 2);
}

// The ticks that are in view and whose labels have room.
function percentileSplits(plot, index, low, high) {
  const pixel = (high - low) / Math.max(1, plot.bbox.width / uPlot.pxRatio);
  return roomyPercentiles(low, high, pixel);
}

function roomyPercentiles(low, high, pixel) {
  const kept = [];
  for (const percentile of PERCENTILE_TICKS) {
    const position = percentilePosition(percentile);
    const half = (4 + 3.5 * String(percentile).length) * pixel;
    const inView = position >= low - 1e-9 && position <= high + 1e-9;
    if (inView && kept.every((other) => Math.abs(other.position - position) >= other.half + half)) kept.push({ position, half });
  }
  return kept.map(({ position }) => position).sort((first, second) => first - second);
}

// From zero to a little above the data; a limit is shown if it is not so far up that the data would become flat. A distribution
// begins where its data does.
function fromZero(spec) {
  const limits = (spec.limits || []).filter((limit) => !limit.vertical);
  return (plot, low, high) => {
    if (spec.y && spec.y.high !== undefined) return [spec.y.low || 0, spec.y.high];
    if (high === null || !Number.isFinite(high)) return [0, 1];
    const shown = limits.filter((limit) => limit.value <= 3 * high).map((limit) => limit.value);
    const top = Math.max(high, ...shown);
    if (spec.x.unit === "percentile" && low > 0) return beside(Math.min(low, ...shown), top);
    return [Math.min(0, low), (top || 1) * 1.09];
  };
}

function beside(low, high) {
  const room = 0.07 * (high - low || high);
  return [Math.max(0, low - room), high + room];
}

function scales(view) {
  const { spec } = view;
  const y = view.log
    ? { distr: 3, range: (plot, low, high) => (low === null || !(low > 0) ? [0.001, 1] : [low * 0.85, high * 1.2]) }
    : spec.y && spec.y.unit === "share"
      ? { range: (plot, low, high) => [0, high === null ? 1 : Math.min(spec.kind === "scatter" ? 1.06 : 1.02, Math.max(high * 1.08, 0.1))] }
      : { range: fromZero(spec) };
  return { x: { time: false, distr: spec.x && spec.x.log ? 3 : 1, range: (plot, low, high) => xRange(view, low, high) }, y };
}

function xRange(view, low, high) {
  if (low === null || high === null) return [0, 1];
  if (view.zoomed) return [low, high];
  if (view.spec.x && view.spec.x.high !== undefined) return [view.spec.x.low || 0, view.spec.x.high];
  if (view.spec.x && view.spec.x.low !== undefined) return [view.spec.x.low, high];
  if (low === high) return [low - 0.5 * (Math.abs(low) || 1), high + 0.5 * (Math.abs(high) || 1)];
  if (view.spec.group === "time") return timeRange();
  const margin = view.spec.group === "load" ? 0.03 * (high - low) : 0;
  return [low - margin, high + margin];
}

// Charts over the run's time begin and end together, whatever each of them has.
function timeRange() {
  const low = Math.min(0, ...views.map((view) => view.extent && view.extent[0]).filter(Number.isFinite));
  const high = Math.max(...views.map((view) => view.extent && view.extent[1]).filter(Number.isFinite));
  return [low, high];
}

function baseOptions(view) {
  const group = view.spec.group;
  return {
    width: view.plotBox.clientWidth || 300, height: view.height,
    legend: { show: false }, padding: [topPadding(view.spec, 10), (plot) => rightPadding(plot, view.spec), 0, 0],
    cursor: {
      y: false, drag: { x: true, y: false, setScale: false, dist: 6 }, points: { size: 7, width: 1.5 },
      bind: { dblclick: () => () => { zoom(view, null); return null; } },
      sync: group ? { key: group, setSeries: false, filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } } : undefined,
    },
    scales: scales(view), axes: [axis(view.spec.x, false), axis(view.spec.y || { unit: "count" }, true)],
    hooks: {
      setSelect: [(plot) => {
        if (plot.select.width < 4) return;
        const range = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        zoom(view, range);
      }],
      setCursor: [(plot) => view.read && view.read(plot)],
      draw: [(plot) => drawLimits(plot, view), (plot) => drawMarksOf(plot, view), () => { view.figure.dataset.drawn = "yes"; }],
    },
  };
}

// Names of upright limits stand above the plot, where no curve is.
function topPadding(spec, least) {
  return (spec.limits || []).some((limit) => limit.vertical) ? 20 : least;
}

// A line's name and value are in the legend; an upright one is named above it, since it may be left or right of the view.
function drawLimits(plot, view) {
  const { ctx, bbox } = plot;
  const unit = uPlot.pxRatio;
  for (const limit of view.spec.limits || []) {
    const at = Math.round(plot.valToPos(limit.value, limit.vertical ? "x" : "y", true)) + 0.5;
    const [low, high] = limit.vertical ? [bbox.left, bbox.left + bbox.width] : [bbox.top, bbox.top + bbox.height];
    const outside = at < low ? -1 : at > high ? 1 : 0;
    if (outside && !limit.vertical) continue;
    ctx.save();
    ctx.strokeStyle = color("red", 0.75); ctx.fillStyle = color("red");
    ctx.lineWidth = unit;
    ctx.setLineDash([2 * unit, 4 * unit]);
    ctx.textAlign = "left"; ctx.textBaseline = "bottom";
    ctx.font = FONT.replace("12px", `${11 * unit}px`);
    if (limit.vertical) {
      const left = outside < 0 || (!outside && at < bbox.left + bbox.width / 2);
      ctx.textAlign = left ? "left" : "right";
      if (!outside) strokeLine(ctx, at, bbox.top, at, bbox.top + bbox.height);
      const text = outside < 0 ? `← ${limit.name}` : outside > 0 ? `${limit.name} →` : limit.name;
      ctx.fillText(text, Math.min(high, Math.max(low, at)), bbox.top - 3 * unit);
    } else {
      strokeLine(ctx, bbox.left, at, bbox.left + bbox.width, at);
    }
    ctx.restore();
  }
}

function strokeLine(ctx, fromX, fromY, toX, toY) {
  ctx.beginPath(); ctx.moveTo(fromX, fromY); ctx.lineTo(toX, toY); ctx.stroke();
}

// Moments at which something happened, from bottom to top.
function drawMarksOf(plot, view) {
  const { ctx, bbox } = plot;
  for (const marks of view.spec.marks || []) {
    ctx.save();
    ctx.strokeStyle = color(marks.color, 0.8);
    ctx.lineWidth = uPlot.pxRatio;
    ctx.setLineDash(marks.dash ? [3 * uPlot.pxRatio, 2 * uPlot.pxRatio] : []);
    for (const x of marks.xs) {
      const at = Math.round(plot.valToPos(x, "x", true)) + 0.5;
      if (at >= bbox.left && at <= bbox.left + bbox.width) strokeLine(ctx, at, bbox.top, at, bbox.top + bbox.height);
    }
    ctx.restore();
  }
}

// Zoom one chart and all that share its axis; null shows everything.
function zoom(view, range) {
  const members = view.spec.group ? views.filter((other) => other.spec.group === view.spec.group) : [view];
  for (const member of members) {
    member.zoomed = range;
    member.resetButton.hidden = !range;
    if (!member.plot) continue;
    const xs = member.plot.data[0];
    const full = member.extent || [xs[0], xs[xs.length - 1]];
    member.plot.setScale("x", range ? { min: range[0], max: range[1] } : { min: full[0], max: full[1] });
  }
}

function build(view) {
  if (view.plot) view.plot.destroy();
  view.plot = view.make(view);
  if (view.zoomed) view.plot.setScale("x", { min: view.zoomed[0], max: view.zoomed[1] });
}

// Arrow keys walk through the values, Escape shows everything again.
function onKey(view, event) {
  const { plot } = view;
  if (event.key === "Escape") {
    view.step = null;
    zoom(view, null);
    plot.setCursor({ left: -10, top: -10 });
    return;
  }
  const direction = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!direction || (view.spec.kind !== "bars" && /Up|Down/.test(event.key)) || !view.stops) return;
  event.preventDefault();
  const last = view.stops - 1;
  const from = Number.isInteger(view.step) ? view.step + direction : direction > 0 ? 0 : last;
  view.step = Math.min(last, Math.max(0, from));
  const [x, y, share = 0.5] = view.stop(view.step);
  const left = Math.max(0, plot.valToPos(x, "x"));
  plot.setCursor({ left, top: y === null ? share * plot.over.clientHeight : plot.valToPos(y, "y") });
}

function headButton(view, text, title) {
  const button = document.createElement("button");
  button.type = "button"; button.textContent = text; button.title = title;
  view.figure.querySelector(".head").append(button);
  return button;
}

function openView(figure, spec) {
  const makers = { lines: makeLines, scatter: makeScatter, bars: makeBars };
  const view = {
    figure, spec, make: makers[spec.kind], zoomed: null, log: Boolean(spec.y && spec.y.log), extent: extentOf(spec),
    plotBox: figure.querySelector(".plot"), legend: figure.querySelector(".legend"), hidden: new Set(),
    height: heightOf(spec),
  };
  figure.dataset.kind = spec.kind;
  view.resetButton = headButton(view, "Show all", "Undo the zoom (Escape, or double click)");
  view.resetButton.className = "reset"; view.resetButton.hidden = true;
  view.resetButton.addEventListener("click", () => zoom(view, null));
  if (spec.y && spec.y.unit === "s") {
    const button = headButton(view, "log", "Logarithmic scale");
    button.setAttribute("aria-pressed", String(view.log));
    button.addEventListener("click", () => { view.log = !view.log; button.setAttribute("aria-pressed", String(view.log)); build(view); });
  }
  view.plotBox.tabIndex = 0;
  view.plotBox.addEventListener("keydown", (event) => onKey(view, event));
  // A screen reader says the values of the plot that has the focus, not those of its whole group.
  view.plotBox.addEventListener("focus", () => view.legend.setAttribute("aria-live", "polite"));
  view.plotBox.addEventListener("blur", () => view.legend.setAttribute("aria-live", "off"));
  view.plotBox.style.minHeight = `${view.height}px`;
  views.push(view);
  return view;
}

function heightOf(spec) {
  if (spec.kind === "lines") return 220;
  if (spec.kind === "scatter") return 270;
  const many = spec.lane_texts && spec.lane_texts.length > 0;
  return Math.min(many ? 620 : 1400, Math.max(many ? 220 : 90, 60 + spec.lane_px * spec.lanes.length));
}

// Charts over time and bars know what they show before they are drawn.
function extentOf(spec) {
  if (spec.x.high !== undefined) return [spec.x.low || 0, spec.x.high];
  if (spec.kind === "bars") {
    return [Math.min(0, ...spec.bars.map((bar) => bar[1])), Math.max(0, ...spec.bars.map((bar) => bar[2])) || 1];
  }
  return spec.group === "time" ? [spec.xs[0], spec.xs[spec.xs.length - 1]] : null;
}
