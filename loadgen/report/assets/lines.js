// Curves over common positions, with a legend that shows the values under the cursor and switches curves off.

function makeLines(view) {
  const { spec } = view;
  const options = baseOptions(view);
  options.series = [{}].concat(spec.lines.map((line, index) => lineSeries(view, line, index)));
  options.bands = spec.lines
    .map((line, index) => (line.band ? { series: [index + 1, index + 2], fill: () => color(line.color, 0.18) } : null))
    .filter(Boolean);
  const data = [spec.xs].concat(spec.lines.map((line) => (view.log ? line.values.map((value) => (value > 0 ? value : null)) : line.values)));
  const outputs = lineLegend(view);
  view.stops = spec.xs.length;
  view.stop = (step) => [spec.xs[step], null];
  view.read = (plot) => {
    const index = plot.cursor.idx;
    const inside = index !== null && index !== undefined && plot.cursor.left >= 0;
    outputs.at.textContent = inside ? READ[spec.x.unit](spec.xs[index]) : "";
    spec.lines.forEach((line, position) => {
      const value = inside ? nearest(line.values, index, spec.bridge) : null;
      const low = line.band && inside ? `${READ[spec.y.unit](spec.lines[position + 1].values[index])} to ` : "";
      outputs.values[position].textContent = inside ? low + READ[spec.y.unit](value) : "";
    });
  };
  return new uPlot(options, data, view.plotBox);
}

function lineSeries(view, line, index) {
  const bounds = line.band || (index > 0 && view.spec.lines[index - 1].band);
  return {
    label: line.name, show: !view.hidden.has(index), spanGaps: Boolean(view.spec.bridge),
    stroke: () => color(line.color, bounds ? 0.35 : 1), width: bounds ? 1 : line.dash ? 1.5 : 2,
    dash: line.dash ? [5, 4] : undefined,
    paths: line.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
    fill: line.fill ? () => color(line.color, 0.12) : undefined,
    points: { show: bounds ? false : view.spec.group === "load" ? true : undefined, size: 5, width: 1, fill: () => color(line.color), stroke: () => color(line.color) },
  };
}

// Curves that were sampled at other positions have their value at the next one that they know.
function nearest(values, index, bridge) {
  if (!bridge || (values[index] !== null && values[index] !== undefined)) return values[index];
  for (let distance = 1; distance < values.length; distance += 1) {
    for (const other of [index - distance, index + distance]) {
      if (values[other] !== null && values[other] !== undefined) return values[other];
    }
  }
  return null;
}

function lineLegend(view) {
  view.legend.replaceChildren();
  const values = view.spec.lines.map((line, index) => {
    const lower = index > 0 && view.spec.lines[index - 1].band;
    const button = document.createElement("button");
    button.type = "button"; button.title = "Show or hide this curve";
    button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
    const output = document.createElement("b");
    button.append(swatch(line.color, line.band ? "block faint" : line.dash ? "dash" : ""), line.name, output);
    button.addEventListener("click", () => {
      if (!view.hidden.delete(index)) view.hidden.add(index);
      button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
      view.plot.setSeries(index + 1, { show: !view.hidden.has(index) });
      if (line.band) view.plot.setSeries(index + 2, { show: !view.hidden.has(index) });
    });
    if (!lower) view.legend.append(button);
    return output;
  });
  return { values, at: legendEnd(view) };
}

function swatch(name, kind) {
  const mark = document.createElement("i");
  mark.className = kind;
  if (/^(block|dot)/.test(kind)) mark.style.background = `var(--${name})`;
  else mark.style.borderColor = `var(--${name})`;
  return mark;
}

// Limits, marks, and where the cursor is.
function legendEnd(view) {
  for (const limit of view.spec.limits || []) {
    const key = document.createElement("span");
    key.className = "key";
    key.append(swatch("red", "dash"), limit.name);
    view.legend.append(key);
  }
  for (const marks of view.spec.marks || []) {
    const key = document.createElement("span");
    key.className = "key";
    key.append(swatch(marks.color, marks.dash ? "upright dash" : "upright"), marks.name);
    view.legend.append(key);
  }
  const at = document.createElement("span");
  at.className = "at";
  view.legend.append(at);
  return at;
}
