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
  view.spec.traces.forEach((trace, index) => {
    if (view.hidden.has(index)) return;
    const points = trace.xs.map((x, place) => [plot.valToPos(x, "x", true), plot.valToPos(trace.ys[place], "y", true)]);
    if (trace.joined) {
      ctx.strokeStyle = color(trace.color); ctx.lineWidth = 2 * unit; ctx.lineJoin = "round";
      ctx.beginPath();
      points.forEach(([x, y], place) => {
        if (trace.steps && place) ctx.lineTo(x, points[place - 1][1]);
        ctx.lineTo(x, y);
      });
      ctx.stroke();
    }
    if (trace.bare) return;
    ctx.fillStyle = color(trace.color, trace.joined || trace.large ? 1 : points.length > 60 ? 0.45 : 0.85);
    const radius = (trace.large ? 6 : trace.joined || points.length <= 60 ? 4 : 2.6) * unit;
    for (const [x, y] of points) { ctx.beginPath(); ctx.arc(x, y, radius, 0, 7); ctx.fill(); }
    drawMarks(plot, trace, points, unit);
    if (view.found && view.found.index === index) {
      const [x, y] = points[view.found.place];
      ctx.strokeStyle = color("ink"); ctx.lineWidth = 1.5 * unit;
      ctx.beginPath(); ctx.arc(x, y, radius + 2.5 * unit, 0, 7); ctx.stroke();
    }
  });
  ctx.restore();
}

// Short texts beside points; one that would cover another is left out.
function drawMarks(plot, trace, points, unit) {
  const { ctx, bbox } = plot;
  ctx.fillStyle = color(trace.large ? trace.color : "soft");
  ctx.font = `${trace.large ? "bold " : ""}${FONT.replace("12px", `${11 * unit}px`)}`;
  const taken = [];
  (trace.marks || []).forEach((mark, place) => {
    const [x, y] = points[place];
    if (taken.some(([otherX, otherY]) => Math.abs(x - otherX) < 26 * unit && Math.abs(y - otherY) < 14 * unit)) return;
    taken.push([x, y]);
    // A large one's name stands below to the right, where a front that rises is not; or above to the left.
    const right = trace.large && x < bbox.left + bbox.width / 2;
    ctx.textAlign = right ? "left" : "right"; ctx.textBaseline = right ? "top" : "bottom";
    ctx.fillText(mark, x + (right ? 9 : -5) * unit, y + (right ? 6 : -4) * unit);
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
