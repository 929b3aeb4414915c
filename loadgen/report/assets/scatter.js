// Points in the plane, joined or not; the nearest one under the cursor says what it is.

function makeScatter(view) {
  const { spec } = view;
  const all = spec.traces.flatMap((trace, index) => (trace.bare ? [] : trace.xs).map((x, place) => ({ x, y: trace.ys[place], index, place })));
  all.sort((first, second) => first.x - second.x);
  const options = baseOptions(view);
  options.cursor.points = { show: false };
  options.scales.x.range = (plot, low, high) => (view.zoomed || (spec.x.high !== undefined) ? xRange(view, low, high) : [0, (high || 1) * 1.04]);
  options.series = [{}, { stroke: "transparent", points: { show: false }, paths: () => null }];
  options.hooks.draw.unshift((plot) => drawTraces(plot, view));
  const at = scatterLegend(view);
  view.stops = all.length;
  view.stop = (step) => [all[step].x, all[step].y];
  view.read = (plot) => {
    const found = nearestPoint(plot, view, all);
    if (found !== view.found) { view.found = found; plot.redraw(false, false); }
    const trace = found && spec.traces[found.index];
    at.textContent = found
      ? `${(trace.labels || [])[found.place] || trace.name}: ${READ[spec.y.unit](found.y)} at ${READ[spec.x.unit](found.x)}`
      : "";
  };
  const ys = all.map((point) => (view.log && !(point.y > 0) ? null : point.y));
  return new uPlot(options, [all.map((point) => point.x), ys], view.plotBox);
}

function drawTraces(plot, view) {
  const { ctx, bbox } = plot;
  const unit = uPlot.pxRatio;
  ctx.save();
  ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
  const drawn = view.spec.traces.map((trace, index) => ({ trace, index, points: pixels(plot, trace) })).filter(({ index }) => !view.hidden.has(index));
  drawn.forEach(({ trace, index, points }) => {
    if (trace.joined) {
      ctx.strokeStyle = color(trace.color); ctx.lineWidth = 2 * unit; ctx.lineJoin = "round";
      ctx.beginPath();
      corners(trace, points).forEach(([x, y]) => ctx.lineTo(x, y));
      ctx.stroke();
    }
    if (trace.bare) return;
    ctx.fillStyle = color(trace.color, trace.joined || trace.large ? 1 : points.length > 60 ? 0.45 : 0.85);
    const radius = (trace.large ? 6 : trace.joined || points.length <= 60 ? 4 : 2.6) * unit;
    for (const [x, y] of points) { ctx.beginPath(); ctx.arc(x, y, radius, 0, 7); ctx.fill(); }
    if (view.found && view.found.index === index) {
      const [x, y] = points[view.found.place];
      ctx.strokeStyle = color("ink"); ctx.lineWidth = 1.5 * unit;
      ctx.beginPath(); ctx.arc(x, y, radius + 2.5 * unit, 0, 7); ctx.stroke();
    }
  });
  const covered = drawn.flatMap(({ trace, points }) => (trace.joined ? alongLine(corners(trace, points), 3 * unit) : points));
  for (const limit of view.spec.limits || []) covered.push(...limitLine(plot, limit, 3 * unit));
  const taken = [];
  for (const { trace, points } of drawn) if (!trace.bare) drawMarks(plot, trace, points, unit, covered, taken);
  ctx.restore();
}

function pixels(plot, trace) {
  return trace.xs.map((x, place) => [plot.valToPos(x, "x", true), plot.valToPos(trace.ys[place], "y", true)]);
}

function corners(trace, points) {
  return trace.steps ? points.flatMap(([x, y], place) => (place ? [[x, points[place - 1][1]], [x, y]] : [[x, y]])) : points;
}

// Points at most so far apart on a line.
function alongLine(points, apart) {
  return points.flatMap(([x, y], place) => {
    const [toX, toY] = points[place + 1] || [x, y];
    const parts = Math.max(1, Math.ceil(Math.hypot(toX - x, toY - y) / apart));
    return Array.from({ length: parts }, (_, part) => [x + ((toX - x) * part) / parts, y + ((toY - y) * part) / parts]);
  });
}

function limitLine(plot, { value, vertical }, apart) {
  const { left, top, width, height } = plot.bbox;
  const at = plot.valToPos(value, vertical ? "x" : "y", true);
  return alongLine(vertical ? [[at, top], [at, top + height]] : [[left, at], [left + width, at]], apart);
}

// Where beside a point a text covers the least: [left, top, width, height]; null if each place would cover another text.
function freePlace([x, y], [width, height], gap, bbox, covered, taken) {
  const [left, right, above, below, middle] = [x - gap - width, x + gap, y - gap - height, y + gap, x - width / 2];
  const places = [[left, above], [right, below], [right, above], [left, below], [x + 1.6 * gap, y - height / 2], [x - 1.6 * gap - width, y - height / 2], [middle, y - 1.6 * gap - height], [middle, y + 1.6 * gap]];
  const meets = ([atX, atY], [otherX, otherY, wide, tall]) => atX < otherX + wide && otherX < atX + width && atY < otherY + tall && otherY < atY + height;
  let best = null;
  let least = Infinity;
  for (const place of places) {
    const outside = place[0] < bbox.left || place[1] < bbox.top || place[0] + width > bbox.left + bbox.width || place[1] + height > bbox.top + bbox.height;
    if (outside || taken.some((box) => meets(place, box))) continue;
    const hits = covered.filter(([atX, atY]) => meets(place, [atX, atY, 0, 0])).length;
    if (hits < least) { least = hits; best = [...place, width, height]; }
  }
  return best;
}

// Short texts beside points, with a rim of the ground's colour; one that would cover another is left out.
function drawMarks(plot, trace, points, unit, covered, taken) {
  const { ctx, bbox } = plot;
  ctx.fillStyle = color(trace.large ? trace.color : "soft"); ctx.strokeStyle = color("card");
  ctx.lineWidth = 3 * unit; ctx.lineJoin = "round"; ctx.textAlign = "left"; ctx.textBaseline = "top";
  ctx.font = `${trace.large ? "bold " : ""}${FONT.replace("12px", `${11 * unit}px`)}`;
  (trace.marks || []).forEach((mark, place) => {
    const size = [ctx.measureText(mark).width, 11 * unit];
    const box = freePlace(points[place], size, (trace.large ? 7 : 4) * unit, bbox, covered, taken);
    if (!box) return;
    taken.push(box);
    ctx.strokeText(mark, box[0], box[1]);
    ctx.fillText(mark, box[0], box[1]);
  });
}

function nearestPoint(plot, view, all) {
  const { left, top } = plot.cursor;
  if (left === null || left === undefined || left < 0) return null;
  let best = null;
  let least = 40 * 40;
  for (const point of all) {
    if (view.hidden.has(point.index)) continue;
    const across = plot.valToPos(point.x, "x") - left;
    const along = plot.valToPos(point.y, "y") - top;
    const distance = across * across + along * along;
    if (distance < least) { least = distance; best = point; }
  }
  return best;
}

function scatterLegend(view) {
  view.legend.replaceChildren();
  view.spec.traces.forEach((trace, index) => {
    const button = document.createElement("button");
    button.type = "button"; button.title = "Show or hide these points";
    button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
    button.append(swatch(trace.color, trace.joined ? "" : "dot"), trace.name);
    button.addEventListener("click", () => {
      if (!view.hidden.delete(index)) view.hidden.add(index);
      button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
      view.plot.redraw(false, false);
    });
    view.legend.append(button);
  });
  return legendEnd(view);
}
