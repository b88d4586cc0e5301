// A figure as a list of shapes: painted on a canvas for speed, written as SVG for export.

const NAMES = ["ink", "muted", "line", "ground", "cell", "query", "key", "weight", "answer"];

export function palette(element = document.body) {
  const style = getComputedStyle(element);
  const colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  colours.ramp = Array.from({ length: 33 }, (_, i) => mix(colours.cell, colours.weight, i / 32));
  colours.dots = Array.from({ length: 33 }, (_, i) => mix(mix(colours.ground, colours.key, 0.45), colours.weight, Math.sqrt(i / 32)));
  return colours;
}

function mix(one, other, share) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [a, b] = [parts(one), parts(other)];
  return `#${a.map((x, i) => Math.round(x + (b[i] - x) * share).toString(16).padStart(2, "0")).join("")}`;
}

const step = (value) => Math.max(0, Math.min(32, Math.round(value * 32) || 0));
const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// eslint-disable-next-line no-control-regex
const escaped = (text) => String(text).replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"]/g, (sign) => escapes[sign]);
const short = (number) => Number(number.toFixed(2));

export class Scene {
  constructor(width, height, title) {
    Object.assign(this, { width, height, title, items: [] });
  }

  rect(x, y, width, height, fill, options = {}) { return this.#add("rect", { x, y, width, height, fill, ...options }); }
  line(points, stroke, options = {}) { return this.#add("line", { points, stroke, ...options }); }
  area(points, fill, options = {}) { return this.#add("area", { points, fill, ...options }); }
  circle(x, y, r, fill, options = {}) { return this.#add("circle", { x, y, r, fill, ...options }); }
  text(x, y, text, fill = "muted", options = {}) { return this.#add("text", { x, y, text, fill, ...options }); }
  // Many circles: arrays of places, radii and shares of the ramp from key to weight.
  dots(xs, ys, radii, shares) { return this.#add("dots", { xs, ys, radii, shares }); }
  // A heat map of shares, row by row.
  cells(x, y, width, height, rows, columns, shares) { return this.#add("cells", { x, y, width, height, rows, columns, shares }); }

  // What is drawn by `draw` shows within these bounds alone.
  within({ left, right, top, bottom }, draw) {
    this.#add("clip", { x: left, y: top, width: right - left, height: bottom - top });
    draw();
    return this.#add("unclip", {});
  }

  #add(kind, item) {
    this.items.push({ kind, ...item });
    return this;
  }

  paint(context, colours) {
    context.clearRect(0, 0, this.width, this.height);
    context.lineJoin = "round";
    for (const item of this.items) {
      context.globalAlpha = item.opacity ?? 1;
      PAINT[item.kind](context, item, (name) => colours[name] ?? name, colours);
    }
    context.globalAlpha = 1;
  }

  svg(colours) {
    const colour = (name) => colours[name] ?? name;
    const body = this.items.map((item) => WRITE[item.kind](item, colour, colours)).join("\n");
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.width} ${this.height}" ` +
      `width="${this.width}" height="${this.height}" role="img" font-family="system-ui, sans-serif">\n` +
      `<title>${escaped(this.title)}</title>\n<rect width="100%" height="100%" fill="${colours.ground}"/>\n${body}\n</svg>\n`;
  }
}

const font = (item) => `${item.weight ?? 400} ${item.size ?? 12}px system-ui, sans-serif`;

const PAINT = {
  clip(context, { x, y, width, height }) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
  },
  unclip(context) { context.restore(); },
  rect(context, { x, y, width, height, fill, stroke }, colour) {
    if (fill) { context.fillStyle = colour(fill); context.fillRect(x, y, width, height); }
    if (stroke) { context.strokeStyle = colour(stroke); context.lineWidth = 1; context.strokeRect(x, y, width, height); }
  },
  line(context, { points, stroke, width = 1.5, dash = [] }, colour) {
    context.beginPath();
    trace(points, (x, y) => context.moveTo(x, y), (x, y) => context.lineTo(x, y));
    context.setLineDash(dash);
    context.strokeStyle = colour(stroke);
    context.lineWidth = width;
    context.stroke();
    context.setLineDash([]);
  },
  area(context, { points, fill }, colour) {
    context.beginPath();
    trace(points, (x, y) => context.moveTo(x, y), (x, y) => context.lineTo(x, y));
    context.fillStyle = colour(fill);
    context.fill();
  },
  circle(context, { x, y, r, fill, stroke, width = 2 }, colour) {
    context.beginPath();
    context.arc(x, y, r, 0, 7);
    if (fill) { context.fillStyle = colour(fill); context.fill(); }
    if (stroke) { context.strokeStyle = colour(stroke); context.lineWidth = width; context.stroke(); }
  },
  text(context, item, colour) {
    context.font = font(item);
    context.textAlign = { start: "left", middle: "center", end: "right" }[item.anchor ?? "start"];
    context.textBaseline = "alphabetic";
    context.fillStyle = colour(item.fill);
    context.save();
    context.translate(item.x, item.y);
    if (item.turn) context.rotate((item.turn * Math.PI) / 180);
    context.fillText(item.text, 0, 0);
    context.restore();
  },
  dots(context, item, colour, colours) {
    // Painted once on a layer of their own, which is reused while only the query moves.
    const { canvas } = context;
    const cached = SHEETS.get(item.xs);
    const same = cached && cached.width === canvas.width && cached.height === canvas.height && cached.colours === colours.dots.join();
    const sheet = same ? cached : new OffscreenCanvas(canvas.width, canvas.height);
    if (!same) {
      const layer = sheet.getContext("2d");
      layer.setTransform(context.getTransform());
      layer.globalAlpha = 0.85;
      scatter(layer, item, colours.dots);
      sheet.colours = colours.dots.join();
      SHEETS.set(item.xs, sheet);
    }
    context.save();
    context.resetTransform();
    context.drawImage(sheet, 0, 0);
    context.restore();
  },
  cells(context, { x, y, width, height, rows, columns, shares }, colour, colours) {
    const [w, h] = [width / columns, height / rows];
    const gap = Math.min(w, h) > 9 ? 1 : 0;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const share = shares[row * columns + column];
        context.fillStyle = Number.isNaN(share) ? colours.line : colours.ramp[step(share)];
        // Edges on whole pixels, or neighbours would show a seam.
        const [left, top] = [Math.round(x + column * w), Math.round(y + row * h)];
        context.fillRect(left, top, Math.round(x + (column + 1) * w) - left - gap, Math.round(y + (row + 1) * h) - top - gap);
      }
    }
  },
};

const SHEETS = new WeakMap();

// One path for each colour: ten thousand points take a few milliseconds.
function scatter(context, { xs, ys, radii, shares }, colours) {
  const groups = Array.from({ length: 33 }, () => []);
  for (let i = 0; i < xs.length; i++) groups[step(shares[i])].push(i);
  groups.forEach((group, share) => {
    if (!group.length) return;
    context.beginPath();
    for (const i of group) {
      const r = radii[i];
      if (r < 2) context.rect(xs[i] - r, ys[i] - r, 2 * r, 2 * r); // as round as two pixels can be
      else {
        context.moveTo(xs[i] + r, ys[i]);
        context.arc(xs[i], ys[i], r, 0, 7);
      }
    }
    context.fillStyle = colours[share];
    context.fill();
  });
}

const faint = (item) => (item.opacity === undefined ? "" : ` opacity="${item.opacity}"`);
const WRITE = {
  // A picture within the picture, which cuts off what leaves it.
  clip: ({ x, y, width, height }) => {
    const [left, top, wide, high] = [x, y, width, height].map(short);
    return `<svg x="${left}" y="${top}" width="${wide}" height="${high}" viewBox="${left} ${top} ${wide} ${high}">`;
  },
  unclip: () => "</svg>",
  rect: (item, colour) =>
    `<rect x="${short(item.x)}" y="${short(item.y)}" width="${short(item.width)}" height="${short(item.height)}" ` +
    `fill="${item.fill ? colour(item.fill) : "none"}"${item.stroke ? ` stroke="${colour(item.stroke)}"` : ""}${faint(item)}/>`,
  line: (item, colour) =>
    `<path d="${way(item.points)}" fill="none" stroke="${colour(item.stroke)}" stroke-width="${item.width ?? 1.5}"` +
    `${item.dash ? ` stroke-dasharray="${item.dash.join(" ")}"` : ""}${faint(item)}/>`,
  area: (item, colour) => `<path d="${way(item.points)}" fill="${colour(item.fill)}"${faint(item)}/>`,
  circle: (item, colour) =>
    `<circle cx="${short(item.x)}" cy="${short(item.y)}" r="${short(item.r)}" fill="${item.fill ? colour(item.fill) : "none"}"` +
    `${item.stroke ? ` stroke="${colour(item.stroke)}" stroke-width="${item.width ?? 2}"` : ""}${faint(item)}/>`,
  text: (item, colour) =>
    `<text x="${short(item.x)}" y="${short(item.y)}" fill="${colour(item.fill)}" font-size="${item.size ?? 12}" ` +
    `font-weight="${item.weight ?? 400}" text-anchor="${item.anchor ?? "start"}"` +
    `${item.turn ? ` transform="rotate(${item.turn} ${short(item.x)} ${short(item.y)})"` : ""}>${escaped(item.text)}</text>`,
  dots: (item, colour, colours) =>
    Array.from(item.xs, (x, i) => `<circle cx="${short(x)}" cy="${short(item.ys[i])}" r="${short(item.radii[i])}" ` +
      `fill="${colours.dots[step(item.shares[i])]}" opacity="0.85"/>`).join("\n"),
  cells(item, colour, colours) {
    const [w, h] = [item.width / item.columns, item.height / item.rows];
    return Array.from(item.shares, (share, i) => {
      const [row, column] = [Math.floor(i / item.columns), i % item.columns];
      const fill = Number.isNaN(share) ? colours.line : colours.ramp[step(share)];
      return `<rect x="${short(item.x + column * w)}" y="${short(item.y + row * h)}" width="${short(w)}" height="${short(h)}" fill="${fill}"/>`;
    }).join("\n");
  },
};

// Points [x, y]; what is not a number breaks the line.
function trace(points, move, draw) {
  let on = false;
  for (const [x, y] of points) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) { on = false; continue; }
    (on ? draw : move)(x, y);
    on = true;
  }
}

function way(points) {
  const parts = [];
  trace(points, (x, y) => parts.push(`M${short(x)} ${short(y)}`), (x, y) => parts.push(`L${short(x)} ${short(y)}`));
  return parts.join("");
}
