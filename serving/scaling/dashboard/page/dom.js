// Elements, and updates that leave alone what has not changed: focus and selections survive every look.

/** make("p.quiet", {id: "x"}, "text", child, …) */
export function make(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function write(element, text) {
  const words = String(text);
  if (element.textContent !== words) element.textContent = words;
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

/** A bar with its share of 0..1 told to everybody. */
export function bar(label) {
  const fill = make("span.fill");
  const track = make("span.bar", { role: "meter", "aria-valuemin": "0", "aria-valuemax": "100", "aria-label": label }, fill);
  track.set = (share, tone = "") => {
    const value = share === null || share === undefined ? 0 : Math.min(1, Math.max(0, share));
    fill.style.width = `${(value * 100).toFixed(1)}%`;
    track.dataset.tone = tone;
    track.setAttribute("aria-valuenow", Math.round(value * 100));
  };
  return track;
}

/** Keep one child per item, in order. `create(item)` gives an element with an `update(item)`. */
export function keep(parent, items, key, create) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === before) before = child.nextElementSibling;
    else parent.insertBefore(child, before);
    child.update(item);
  }
  for (const child of known.values()) child.remove();
}
