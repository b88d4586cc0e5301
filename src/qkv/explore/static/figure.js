// A canvas as large as its place, that paints scenes; and axes.

import { h, format } from "./dom.js";
import { palette, Scene } from "./scene.js";

// Colours are read from the style once for each theme: reading them forces a layout.
const palettes = {};
const colours = () => (palettes[document.documentElement.dataset.theme] ??= palette());

export class Figure {
  // `draw(scene)` fills a new scene of the canvas' size.
  constructor(name, draw, { className = "figure", label = name } = {}) {
    this.name = name;
    this.draw = draw;
    this.canvas = h("canvas", { className, role: "img", "aria-label": label });
    this.element = h("div", { className: "place" }, this.canvas);
    this.scene = null;
    this.places = null; // its axes, where it has any
    this.due = 0;
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.canvas);
  }

  label(text) { this.canvas.setAttribute("aria-label", text); }

  // Painted once before the next frame, however often it is requested.
  redraw() {
    if (!this.due) this.due = requestAnimationFrame(() => { this.due = 0; this.now(); });
  }

  now() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const scale = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== high) Object.assign(this.canvas, { width: wide, height: high });
    this.scene = new Scene(width, height, this.name);
    this.draw(this.scene);
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.scene.paint(context, colours());
    this.painted?.();
  }

  svg() { return this.scene?.svg(colours()); }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.due);
  }
}

// Round numbers between two ends.
export function ticks(low, high, count = 6) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const places = [];
  for (let at = Math.ceil(low / size) * size; at <= high + size * 1e-9; at += size) places.push(Math.abs(at) < size * 1e-9 ? 0 : at);
  return places;
}

const powers = (low, high) => {
  const places = [];
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  for (let at = first; at <= last; at += Math.max(1, Math.ceil((last - first) / 5))) places.push(10 ** at);
  return places.length > 1 ? places : [low, high];
};

// Axes of a chart, and what turns data into places on it.
export function axes(scene, { x, y, xName = "", yName = "", logX = false, margin = {}, small = false }) {
  const space = { left: small ? 30 : 46, right: 12, top: 12, bottom: small ? 20 : 38, ...margin };
  const [left, top] = [space.left, space.top];
  const [right, bottom] = [scene.width - space.right, scene.height - space.bottom];
  const inner = logX ? Math.log : Number;
  const [x0, x1] = x.map(inner);
  const sx = (at) => left + ((inner(at) - x0) / (x1 - x0 || 1)) * (right - left);
  const sy = (at) => bottom - ((at - y[0]) / (y[1] - y[0] || 1)) * (bottom - top);
  const size = small ? 10 : 11;
  for (const at of ticks(y[0], y[1], small ? 3 : 5)) {
    scene.line([[left, sy(at)], [right, sy(at)]], "line", { width: 1, opacity: 0.6 });
    scene.text(left - 5, sy(at) + 4, format(at, 3), "muted", { anchor: "end", size });
  }
  const across = logX ? powers(x[0], x[1]) : ticks(x[0], x[1], Math.max(2, Math.floor((right - left) / 80)));
  for (const at of across) scene.text(sx(at), bottom + (small ? 13 : 16), format(at, 3), "muted", { anchor: "middle", size });
  scene.line([[left, bottom], [right, bottom]], "muted", { width: 1, opacity: 0.7 });
  if (xName) scene.text((left + right) / 2, scene.height - 5, xName, "muted", { anchor: "middle", size: 12 });
  if (yName) scene.text(12, (top + bottom) / 2, yName, "muted", { anchor: "middle", size: 12, turn: -90 });
  return {
    sx, sy, left, right, top, bottom,
    atX: (place) => (logX ? Math.exp : Number)(x0 + ((place - left) / (right - left)) * (x1 - x0)),
    atY: (place) => y[0] + ((bottom - place) / (bottom - top)) * (y[1] - y[0]),
  };
}

// The least and the greatest finite number, with a margin.
export function span(...lists) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (const number of list) {
      if (Number.isFinite(number)) {
        if (number < low) low = number;
        if (number > high) high = number;
      }
    }
  }
  if (low > high) return [0, 1];
  const air = 0.05 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [low - air, high + air];
}
