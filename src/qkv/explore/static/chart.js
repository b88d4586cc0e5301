// What every chart supports: tooltips for the mark under the pointer or the arrow keys, and zoom.

import { h, button } from "./dom.js";

const REACH = 18; // pixels from a mark within which it is selected

// Which of `count` marks is nearest to a place, if any is near.
export function nearest(x, y, count, at, reach = REACH) {
  let [best, least] = [null, reach ** 2];
  for (let i = 0; i < count; i++) {
    const mark = at(i);
    const apart = (mark.x - x) ** 2 + (mark.y - y) ** 2;
    if (apart < least) [best, least] = [i, apart];
  }
  return best;
}

// The mark nearest from left to right alone: for lines.
export const along = (x, count, at) => nearest(x, 0, count, (i) => ({ x: at(i).x, y: 0 }), Infinity);

// `marks` has count(), at(i) -> { x, y, text } and near(x, y) -> i or null; `columns()` where marks
// lie in rows, so that the arrow keys go up and down, too; `chosen(i)` for Enter.
export function tips(figure, marks, shell) {
  const { canvas } = figure;
  const tip = h("div", { className: "tip", hidden: true, "aria-hidden": "true" });
  figure.element.append(tip);
  canvas.tabIndex = 0;
  let at = null;

  function show(i) {
    at = i !== null && i >= 0 && i < marks.count() ? i : null;
    tip.hidden = at === null;
    if (at === null) return;
    const { x, y, text } = marks.at(at);
    tip.textContent = text;
    const { clientWidth: width } = canvas;
    const left = Math.max(0, Math.min(width - tip.offsetWidth, x - tip.offsetWidth / 2));
    tip.style.left = `${canvas.offsetLeft + left}px`;
    tip.style.top = `${canvas.offsetTop + (y > tip.offsetHeight + 14 ? y - tip.offsetHeight - 12 : y + 14)}px`;
  }

  canvas.addEventListener("pointermove", (event) => { if (figure.scene) show(marks.near(event.offsetX, event.offsetY)); });
  for (const name of ["pointerleave", "pointerdown", "blur"]) canvas.addEventListener(name, () => show(null));
  canvas.addEventListener("keydown", (event) => {
    if (!figure.scene || event.ctrlKey || event.metaKey || event.altKey) return;
    const count = marks.count();
    const columns = marks.columns?.() ?? 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (step && count) {
      event.preventDefault();
      const next = at === null ? (step > 0 ? 0 : count - 1) : at + step;
      if (next < 0 || next >= count) return;
      show(next);
      shell.announce(marks.at(next).text);
    } else if (event.key === "Enter" && at !== null && marks.chosen) {
      event.preventDefault();
      marks.chosen(at);
    } else if (event.key === "Escape") show(null);
  });
  figure.painted = () => { if (at !== null) show(at); }; // what it tells may have changed
}

// `all()` are the ends of the axis, `view()` the visible ones, `show(ends or null)` changes them. Ctrl
// and wheel, + − 0 on the chart, a range drawn over it (unless dragging means something else there),
// and buttons.
export function zoom(figure, name, { all, view, show, log = false, drag = true, about = null }) {
  const { canvas } = figure;
  const [inner, outer] = log ? [Math.log, Math.exp] : [Number, Number];
  const rounded = (number) => Number(number.toPrecision(5));

  function by(factor, centre) {
    const [low, high] = view().map(inner);
    const middle = centre === undefined ? (about ? inner(about()) : (low + high) / 2) : inner(centre);
    const ends = [low, high].map((end) => middle + (end - middle) * factor);
    const whole = all().map(inner);
    if (factor > 1 && ends[0] <= whole[0] && ends[1] >= whole[1]) return show(null);
    if (!(ends[1] - ends[0] > 1e-6 * (whole[1] - whole[0]))) return undefined; // as near as numbers go
    return show(ends.map((end) => rounded(outer(end))));
  }

  canvas.tabIndex = 0;
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey || !figure.places) return; // a plain wheel scrolls the page
    event.preventDefault();
    by(event.deltaY < 0 ? 0.8 : 1.25, figure.places.atX(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") by(0.6);
    else if (event.key === "-") by(1.6);
    else if (event.key === "0") show(null);
    else return;
    event.preventDefault();
  });
  if (drag) ranges(figure, (ends) => show(ends.map(rounded)));
  return h("div", { className: "zoom", role: "group", "aria-label": `Zoom: ${name}` },
    button("Zoom in", () => by(0.6), { className: "quiet small" }),
    button("Zoom out", () => by(1.6), { className: "quiet small" }),
    button("Show all", () => show(null), { className: "quiet small" }));
}

// A range drawn over a chart.
function ranges(figure, drawn) {
  const { canvas } = figure;
  const band = h("div", { className: "band", hidden: true });
  figure.element.append(band);
  let from = null;
  const within = (x) => Math.max(figure.places.left, Math.min(figure.places.right, x));
  canvas.addEventListener("pointerdown", (event) => {
    if (!figure.places || event.button || event.pointerType === "touch") return; // a finger scrolls
    from = within(event.offsetX);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = within(event.offsetX);
    band.hidden = Math.abs(to - from) < 6;
    band.style.left = `${canvas.offsetLeft + Math.min(from, to)}px`;
    band.style.width = `${Math.abs(to - from)}px`;
    band.style.top = `${canvas.offsetTop + figure.places.top}px`;
    band.style.height = `${figure.places.bottom - figure.places.top}px`;
  });
  const end = (event) => {
    if (from === null) return;
    const to = within(event.offsetX);
    const ends = [from, to].sort((one, other) => one - other).map(figure.places.atX);
    const wide = Math.abs(to - from) >= 6;
    from = null;
    band.hidden = true;
    if (wide && event.type === "pointerup") drawn(ends);
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
}
