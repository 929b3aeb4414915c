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
  if (spec.unit === "percentile") {
    horizontal.splits = percentileSplits;
    horizontal.values = (plot, splits) => splits.map(formatPercentile);
    horizontal.grid = { ...shared.grid, show: true };
    horizontal.filter = (plot, splits) => splits;
  }
  return horizontal;
}

// The ticks that are in view and have room.
function percentileSplits(plot, index, low, high) {
  const room = (30 * (high - low)) / Math.max(1, plot.bbox.width / uPlot.pxRatio);
  const kept = [];
  for (const position of PERCENTILE_TICKS.map(percentilePosition)) {
    const inView = position >= low - 1e-9 && position <= high + 1e-9;
    if (inView && kept.every((other) => Math.abs(other - position) >= room)) kept.push(position);
  }
  return kept.sort((first, second) => first - second);
}

// From zero to a little above the data; a limit is shown if it is not so far up that the data would become flat.
function fromZero(limits) {
  return (plot, low, high) => {
    if (high === null || !Number.isFinite(high)) return [0, 1];
    const top = Math.max(high, ...limits.filter((limit) => limit.value <= 3 * high).map((limit) => limit.value));
    return [Math.min(0, low), (top || 1) * 1.09];
  };
}

function scales(view) {
  const { spec } = view;
  const y = view.log
    ? { distr: 3, range: (plot, low, high) => (low === null || !(low > 0) ? [0.001, 1] : [low * 0.85, high * 1.2]) }
    : spec.y && spec.y.unit === "share"
      ? { range: (plot, low, high) => [0, high === null ? 1 : Math.min(1.02, Math.max(high * 1.08, 0.1))] }
      : { range: fromZero(spec.limits || []) };
  return { x: { time: false, range: (plot, low, high) => xRange(view, low, high) }, y };
}

function xRange(view, low, high) {
  if (low === null || high === null) return [0, 1];
  if (view.zoomed) return [low, high];
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
    legend: { show: false }, padding: [10, 14, 0, 0],
    cursor: {
      y: false, drag: { x: true, y: false, setScale: false, dist: 6 }, points: { size: 7, width: 1.5 },
      bind: { dblclick: () => () => { zoom(view, null); return null; } },
      sync: group ? { key: group, setSeries: false, filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } } : undefined,
    },
    scales: scales(view), axes: [axis(view.spec.x || { unit: "s", label: "time since the start of the run" }, false), axis(view.spec.y || { unit: "count" }, true)],
    hooks: {
      setSelect: [(plot) => {
        if (plot.select.width < 4) return;
        const range = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        zoom(view, range);
      }],
      setCursor: [(plot) => view.read && view.read(plot)],
      draw: [(plot) => drawLimits(plot, view), () => { view.figure.dataset.drawn = "yes"; }],
    },
  };
}

function drawLimits(plot, view) {
  const { ctx, bbox } = plot;
  for (const limit of view.spec.limits || []) {
    const y = Math.round(plot.valToPos(limit.value, "y", true)) + 0.5;
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    ctx.save();
    ctx.strokeStyle = color("red", 0.75);
    ctx.lineWidth = uPlot.pxRatio;
    ctx.setLineDash([2 * uPlot.pxRatio, 4 * uPlot.pxRatio]);
    ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
    ctx.fillStyle = color("red"); ctx.textAlign = "left"; ctx.textBaseline = "bottom";
    ctx.font = FONT.replace("12px", `${11 * uPlot.pxRatio}px`);
    ctx.fillText(limit.name, bbox.left + 4 * uPlot.pxRatio, y - 2 * uPlot.pxRatio);
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
  if (!direction || (view.spec.kind !== "waterfall" && /Up|Down/.test(event.key))) return;
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
  const makers = { lines: makeLines, scatter: makeScatter, waterfall: makeWaterfall };
  const view = {
    figure, spec, make: makers[spec.kind], zoomed: null, log: Boolean(spec.y && spec.y.log), extent: extentOf(spec),
    plotBox: figure.querySelector(".plot"), legend: figure.querySelector(".legend"), hidden: new Set(),
    height: spec.kind === "waterfall" ? Math.min(620, Math.max(220, 60 + 5 * spec.names.length)) : spec.kind === "scatter" ? 270 : 220,
  };
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
  view.plotBox.style.minHeight = `${view.height}px`;
  views.push(view);
  return view;
}

function extentOf(spec) {
  if (spec.group !== "time") return null;
  if (spec.kind === "waterfall") {
    const ends = spec.ended_s.concat(spec.last_s, spec.intended_s).filter((value) => value !== null);
    return [Math.min(0, ...spec.intended_s), Math.max(...ends)];
  }
  return [spec.xs[0], spec.xs[spec.xs.length - 1]];
}
