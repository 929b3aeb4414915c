// Horizontal bars in lanes. With texts of their own, lanes are many and thin; else each has its name at the left.

function makeBars(view) {
  const { spec } = view;
  const many = spec.lane_texts && spec.lane_texts.length > 0;
  const options = baseOptions(view);
  options.scales.y = { range: () => [0, Math.max(1, spec.lanes.length)] };
  options.axes[1] = many
    ? { ...options.axes[1], show: false }
    : { ...options.axes[1], size: laneNamesWidth(view), splits: () => [], values: () => [], grid: { show: false } };
  options.padding = [topPadding(spec, 6), options.padding[1], 0, many ? 14 : 0];
  options.cursor.points = { show: false };
  options.series = [{}, { stroke: "transparent", points: { show: false }, paths: () => null }];
  options.hooks.draw.unshift((plot) => drawBars(plot, view));
  const at = barsLegend(view);
  view.stops = many ? spec.lanes.length : spec.bars.length;
  view.stop = (step) => (many ? laneStop(view, step) : barStop(spec, step));
  view.read = (plot) => {
    const own = plot.over.matches(":hover") || Number.isInteger(view.step);
    at.textContent = own ? barText(plot, view, many) : "";
  };
  return new uPlot(options, [view.extent, [0, 1]], view.plotBox);
}

// In long names room is kept for the bars: a name takes half of the width at most.
function laneNamesWidth(view) {
  const longest = Math.max(0, ...view.spec.lanes.map((name) => name.length));
  return Math.min(Math.max(54, 10 + 6.2 * longest), 0.48 * view.plotBox.clientWidth);
}

// Lanes that have something to show in the zoomed range, as [first, behind the last]; the rest gives them its room.
function lanesInView(view) {
  const { spec } = view;
  const all = [0, spec.lanes.length];
  if (!view.zoomed || !spec.lane_texts || !spec.lane_texts.length) return all;
  const [low, high] = view.zoomed;
  const seen = spec.bars.filter(([, start, end]) => start <= high && end >= low).map(([lane]) => lane);
  return seen.length ? [Math.min(...seen), Math.max(...seen) + 1] : all;
}

// Where a bar lies between the top (0) and the bottom (1) of the plot.
function barPlace(view, lane, part) {
  const [from, to] = lanesInView(view);
  const parts = view.spec.parts || 1;
  const full = view.plot ? view.plot.over.clientHeight / (to - from) : view.spec.lane_px;
  const used = full < 4 ? 0.8 : Math.min(1 - 1.5 / full, view.spec.lane_texts ? 14 / full : 0.8);
  const top = lane - from + (1 - used) / 2 + (used * part) / parts;
  return [top / (to - from), used / parts / (to - from)];
}

function drawBars(plot, view) {
  const { spec } = view;
  const { ctx, bbox } = plot;
  const unit = uPlot.pxRatio;
  view.plot = plot;
  drawLaneNames(plot, view);
  ctx.save();
  ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
  for (const [lane, start, end, key, , name = "", after = "", part = 0] of spec.bars) {
    const [top, height] = barPlace(view, lane, part);
    const y = bbox.top + top * bbox.height;
    const tall = Math.max(unit, height * bbox.height - (spec.parts > 1 ? unit : 0));
    const x = plot.valToPos(start, "x", true);
    const width = Math.max(plot.valToPos(end, "x", true) - x, unit) - (name ? unit : 0);
    ctx.fillStyle = color(spec.keys[key].color, spec.keys[key].alpha === undefined ? 1 : spec.keys[key].alpha);
    ctx.fillRect(x, y, Math.max(width, unit), tall);
    if (name) writeInside(ctx, name, [x, y, width, tall], unit);
    if (!after) continue;
    ctx.textBaseline = "middle"; ctx.font = scaledFont(11, unit);
    // Where there is no room behind the bar, its end has some.
    const outside = x + width + 6 * unit + ctx.measureText(after).width <= bbox.left + bbox.width;
    ctx.fillStyle = color(outside ? "ink" : "card"); ctx.textAlign = outside ? "left" : "right";
    ctx.fillText(after, x + width + (outside ? 6 : -4) * unit, y + tall / 2);
  }
  ctx.restore();
}

function drawLaneNames(plot, view) {
  const { spec } = view;
  if (spec.lane_texts && spec.lane_texts.length) return;
  const { ctx, bbox } = plot;
  const unit = uPlot.pxRatio;
  const room = bbox.left - 10 * unit;
  ctx.save();
  ctx.fillStyle = color("soft"); ctx.textAlign = "right"; ctx.textBaseline = "middle"; ctx.font = scaledFont(12, unit);
  spec.lanes.forEach((name, lane) => {
    ctx.fillText(shortened(ctx, name, room), bbox.left - 6 * unit, bbox.top + ((lane + 0.5) / spec.lanes.length) * bbox.height);
  });
  ctx.restore();
}

function scaledFont(size, unit) {
  return FONT.replace("12px", `${size * unit}px`);
}

function shortened(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  let kept = text;
  while (kept && ctx.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
  return kept ? `${kept}…` : "";
}

// A name in lines along the bar, or upwards in a narrow one; nothing in a bar that is narrower than a line.
function writeInside(ctx, name, [x, y, width, tall], unit) {
  const line = 13 * unit;
  ctx.save();
  ctx.fillStyle = color("card"); ctx.textAlign = "center"; ctx.textBaseline = "middle"; ctx.font = scaledFont(11, unit);
  ctx.translate(x + width / 2, y + tall / 2);
  const words = name.split(" ");
  const lines = words.reduce((rows, word) => {
    const longer = rows.length ? `${rows[rows.length - 1]} ${word}` : word;
    if (rows.length && ctx.measureText(longer).width <= width - 6 * unit) rows[rows.length - 1] = longer;
    else rows.push(word);
    return rows;
  }, []);
  if (lines.every((text) => ctx.measureText(text).width <= width - 6 * unit) && lines.length * line <= tall) {
    lines.forEach((text, row) => ctx.fillText(text, 0, (row - (lines.length - 1) / 2) * line));
  } else if (width >= line) {
    ctx.rotate(-Math.PI / 2);
    ctx.fillText(shortened(ctx, name, tall - 6 * unit), 0, 0);
  }
  ctx.restore();
}

function laneStop(view, step) {
  const [from, to] = lanesInView(view);
  const lane = Math.min(to - 1, Math.max(from, step));
  view.step = lane;
  const first = view.spec.bars.find((bar) => bar[0] === lane);
  return [first ? first[1] : 0, null, (lane - from + 0.5) / (to - from)];
}

function barStop(spec, step) {
  const [lane, start, end, , , , , part = 0] = spec.bars[step];
  return [(start + end) / 2, null, (lane + (part + 0.5) / (spec.parts || 1)) / spec.lanes.length];
}

// What is pointed at: the lane's own text, or that of the bar there or close by.
function barText(plot, view, many) {
  const { spec } = view;
  const { left, top } = plot.cursor;
  if (left === null || left === undefined || left < 0 || top < 0) return "";
  const [from, to] = lanesInView(view);
  const height = from + (top / plot.over.clientHeight) * (to - from);
  const lane = Math.floor(height);
  if (many) return lane >= from && lane < to ? spec.lane_texts[lane] : "";
  const part = Math.floor((height - lane) * (spec.parts || 1));
  let best = null;
  let least = 10;
  for (const bar of spec.bars) {
    if (bar[0] !== lane || (bar[7] || 0) !== part) continue;
    const ends = [plot.valToPos(bar[1], "x"), plot.valToPos(bar[2], "x")];
    const distance = Math.max(ends[0] - left, left - ends[1], 0);
    if (distance < least || (distance === 0 && least === 0)) { least = distance; best = bar; }
  }
  return best ? best[4] || "" : "";
}

function barsLegend(view) {
  view.legend.replaceChildren();
  const present = new Set(view.spec.bars.map((bar) => bar[3]));
  view.spec.keys.forEach((key, index) => {
    if (!present.has(index)) return;
    const item = document.createElement("span");
    item.className = "key";
    item.append(swatch(key.color, "block"), key.name);
    view.legend.append(item);
  });
  return legendEnd(view);
}
