// The interactive view of attention weights: one module for notebooks, saved pages and the explorer.
//
// render(element, data) draws into the element and returns a function that takes the view away.
// It makes no request, evaluates nothing, and sets what comes from users as text, never as HTML.
// `data` is what qkv.viewer packs: tokens, names, word numbers, and weights in twelve bits each.

const MOST_LINES = 64;
const LINE_PITCH = 22; // pixels between tokens beside the lines; .qkv-token has the same height
const LARGEST_CELL = 48;
const FITTED_CELL = 34; // few tokens do not fill the screen
const NUMBERED_CELL = 30; // from here on a cell has room for its number
const FONT = "12px system-ui, sans-serif";

// ---- Numbers: decimals of three digits, as qkv/visualization/viewer/codec.py writes them ----

const UNITS = [1e6, 1e5, 1e4, 1e3];
const ONE = 3700;
const TINY = 3701;
const NOT_A_NUMBER = 4095;

const decadeOf = (code) => Math.min(3, Math.max(0, Math.floor((code - 100) / 900)));

const VALUES = Float64Array.from({ length: 4096 }, (_, code) => {
  if (code > ONE) return code === NOT_A_NUMBER ? NaN : 0;
  return (code - 900 * decadeOf(code)) / UNITS[decadeOf(code)];
});

function unpack(text, count) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const codes = new Uint16Array(count);
  for (let i = 0, b = 0; i < count; i += 2, b += 3) {
    codes[i] = bytes[b] | ((bytes[b + 1] & 15) << 8);
    if (i + 1 < count) codes[i + 1] = (bytes[b + 1] >> 4) | (bytes[b + 2] << 4);
  }
  return codes;
}

/** The digits of a stored weight, all of them right. */
function exactText(code) {
  if (code === 0) return "0";
  if (code === TINY) return "< 0.000001";
  if (code === NOT_A_NUMBER) return "NaN";
  return VALUES[code].toFixed(6 - decadeOf(code));
}

/** Two digits of a number computed from stored weights. */
function derivedText(value) {
  if (value === 0 || Number.isNaN(value)) return String(value);
  return value < 1e-6 ? "< 0.000001" : `≈ ${Number(value.toPrecision(2))}`;
}

// ---- Weights as they are to be seen: a head or their mean, words merged, keys hidden ----

/** Runs of tokens that belong to one word; a special token stands alone. */
function wordsOf(tokens, words) {
  const groups = [];
  tokens.forEach((token, i) => {
    const last = groups.at(-1);
    const special = words[i] === null;
    if (last && !special && last.word === words[i]) {
      last.text += token.replace(/^##/, "");
      last.members.push(i);
    } else {
      groups.push({ word: words[i], text: token, members: [i], special });
    }
  });
  return groups;
}

const oneByOne = (tokens, words) =>
  tokens.map((text, i) => ({ text, members: [i], special: words ? words[i] === null : false }));

const HIDING = { first: (key) => key.members[0] === 0, special: (key) => key.special };

/** What is on the screen: rows, columns, `value(q, k)` and `text(q, k)`. */
function makeScene(data, codes, { layer, head, hide, merge }) {
  const [n, m] = [data.queries.length, data.keys.length];
  const heads = head === "mean" ? data.heads.map((_, i) => i) : [Number(head)];
  const group = merge ? wordsOf : oneByOne;
  const queries = group(data.queries, data.words);
  const keys = group(data.keys, data.words);
  const hidden = keys.map(HIDING[hide] ?? (() => false));
  const values = new Float64Array(queries.length * keys.length);
  const start = (head) => (Number(layer) * data.heads.length + head) * n * m;

  queries.forEach((query, q) => {
    let total = 0;
    keys.forEach((key, k) => {
      if (hidden[k]) return;
      let sum = 0; // over the key's tokens; the mean over heads and over the query's tokens
      for (const h of heads)
        for (const i of query.members)
          for (const j of key.members) sum += VALUES[codes[start(h) + i * m + j]];
      total += values[q * keys.length + k] = sum / (heads.length * query.members.length);
    });
    if (hide && total > 0) for (let k = 0; k < keys.length; k++) values[q * keys.length + k] /= total;
  });

  const stored = heads.length === 1 && !merge && !hide;
  const value = (q, k) => values[q * keys.length + k];
  const text = (q, k) => {
    if (hidden[k]) return "hidden";
    return stored ? exactText(codes[start(heads[0]) + q * m + k]) : derivedText(value(q, k));
  };
  const greatest = (numbers) => numbers.reduce((most, one) => (one > most ? one : most), 0) || 1;
  const row = (q) => values.subarray(q * keys.length, (q + 1) * keys.length);
  const highest = queries.map((_, q) => greatest(row(q)));
  const named = (groups) => groups.map((group) => visible(group.text));
  return { queries: named(queries), keys: named(keys), hidden, value, text, highest, most: greatest(values) };
}

/** The strongest keys of a query, strongest first. */
function strongest(scene, q, count) {
  const order = scene.keys.map((_, k) => k).filter((k) => scene.value(q, k) > 0);
  return order.sort((a, b) => scene.value(q, b) - scene.value(q, a)).slice(0, count);
}

/** A token on one line; what has no shape gets a sign. */
function visible(token) {
  const signs = { "\n": "↵", "\r": "↵", "\t": "⇥" };
  return token.replace(/\p{Cc}/gu, (c) => signs[c] ?? "\ufffd") || "∅";
}

// ---- Colours: one hue for each theme, lightness in one direction: safe for the colour-blind ----

const LIGHT = [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
const DARK = [[22, 27, 34], [24, 62, 99], [33, 122, 160], [110, 196, 180], [255, 255, 217]];

function colourOf(share, dark) {
  const stops = dark ? DARK : LIGHT;
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  return stops[low].map((from, i) => Math.round(from + (place - low) * (stops[low + 1][i] - from)));
}

/** Black or white, whichever stands out against a colour by 4.5 to 1 at least. */
function inkOn(colour) {
  const [red, green, blue] = colour.map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
}

/** How far along the colours a weight stands, given the most of its query and of all. */
const SCALES = {
  even: (value, ofQuery, ofAll) => value / ofAll,
  root: (value, ofQuery, ofAll) => Math.sqrt(value / ofAll),
  query: (value, ofQuery) => value / ofQuery,
};
const MANY_KEYS = 64; // among so many, a query's weights are faint beside the greatest of all

// ---- Elements ----

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children); // strings become text nodes
  return element;
}

let instances = 0;

/** A control and its name. */
function field(name, control) {
  control.id = `qkv-${++instances}`;
  return make("span", { class: "qkv-field" }, make("label", { for: control.id }, name), control);
}

function picker(label, options, onPick, chosen = options[0][0]) {
  const select = make("select", { onchange: () => onPick(select.value) });
  for (const [value, text] of options) {
    select.append(make("option", { value, selected: value === chosen }, text));
  }
  return field(label, select);
}

/** Cells on a canvas that stays in place while an empty sheet of full size scrolls beneath it. */
class HeatMap {
  constructor(view) {
    this.view = view;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.sheet = make("div", { class: "qkv-sheet", role: "presentation" });
    const name = `qkv-cell-${++instances}`;
    // Two cells take turns, so that a screen reader is told of a new one at every move.
    this.spoken = [0, 1].map((i) => make("div", { role: "gridcell", id: `${name}-${i}` }));
    const help = "Attention weights, a row for each query. Arrows move, plus and minus zoom, Enter pins.";
    this.element = make(
      "div", { class: "qkv-map", role: "grid", tabindex: "0", "aria-label": help },
      this.canvas, this.sheet, make("div", { role: "row", class: "qkv-spoken" }, ...this.spoken),
    );
    this.cell = null; // pixels; null fits all into the window
    this.bitmap = document.createElement("canvas");
    this.element.addEventListener("scroll", () => this.draw());
    this.element.addEventListener("pointermove", (event) => this.point(event));
    this.element.addEventListener("click", (event) => this.pin(event));
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** Paint the scene, a pixel a cell, to be stretched later. */
  paint() {
    const { scene, state } = this.view;
    const [n, m] = [scene.queries.length, scene.keys.length];
    [this.bitmap.width, this.bitmap.height] = [m, n];
    const context = this.bitmap.getContext("2d");
    const image = context.createImageData(m, n);
    const pixels = new DataView(image.data.buffer);
    const rgba = ([red, green, blue]) => red * 2 ** 24 + green * 2 ** 16 + blue * 2 ** 8 + 255;
    const ramp = Array.from({ length: 256 }, (_, i) => rgba(colourOf(i / 255, state.dark)));
    const grey = rgba([128, 128, 128]); // NaN is not hidden
    for (let q = 0, at = 0; q < n; q++)
      for (let k = 0; k < m; k++, at += 4) {
        const value = scene.value(q, k);
        pixels.setUint32(at, Number.isNaN(value) ? grey : ramp[Math.round(255 * this.view.shade(q, k))]);
      }
    context.putImageData(image, 0, 0);
  }

  /** Find room for the labels, and the size of a cell. */
  layOut() {
    const { scene } = this.view;
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const widest = (tokens, most) => {
      const widths = tokens.map((token) => context.measureText(token.slice(0, 40)).width);
      return Math.min(most, 12 + widths.reduce((a, b) => Math.max(a, b), 0));
    };
    this.left = widest(scene.queries, 150);
    this.top = widest(scene.keys, 130);
    const [width, height] = this.view.room();
    const across = (width - this.left - 1) / scene.keys.length;
    const down = (height - this.top - 1) / scene.queries.length;
    this.fitted = Math.max(0.25, Math.min(FITTED_CELL, across, down)); // also while it is hidden
    const cell = (this.size = Math.max(this.fitted, this.cell ?? 0));
    const wide = this.left + cell * scene.keys.length + 1;
    const high = this.top + cell * scene.queries.length + 1;
    this.sheet.style.width = `${wide}px`;
    this.sheet.style.height = `${high}px`;
    // A scroll bar along one side must not make another along the other.
    this.element.style.width = `${Math.min(width, wide + (high > height + 1 ? 16 : 0))}px`;
    this.element.style.height = `${Math.min(height, high + (wide > width + 1 ? 16 : 0))}px`;
    this.element.setAttribute("aria-rowcount", scene.queries.length);
    this.element.setAttribute("aria-colcount", scene.keys.length);
    const ratio = window.devicePixelRatio || 1;
    for (const side of ["width", "height"]) {
      const pixels = this.element[side === "width" ? "clientWidth" : "clientHeight"];
      this.canvas[side] = Math.round(pixels * ratio);
      this.canvas.style[side] = `${pixels}px`;
    }
  }

  draw() {
    const { scene, state } = this.view;
    const { left, top, size, element, canvas } = this;
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    const style = getComputedStyle(element);
    const [x, y] = [left - element.scrollLeft, top - element.scrollTop];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.save();
    context.beginPath();
    context.rect(left, top, canvas.width, canvas.height);
    context.clip();
    context.imageSmoothingEnabled = size < 1;
    context.drawImage(this.bitmap, x, y, size * scene.keys.length, size * scene.queries.length);
    if (size >= NUMBERED_CELL) this.number(context, x, y);
    context.strokeStyle = style.outlineColor;
    context.lineWidth = 2;
    const outline = Math.max(size, 5); // seen even where cells are smaller
    const aside = (size - outline) / 2;
    context.strokeRect(x + state.k * size + aside, y + state.q * size + aside, outline, outline);
    context.restore();
    const { found } = this.view;
    context.textBaseline = "middle";
    this.label(context, style, {
      tokens: scene.queries, active: state.q, found: found.queries,
      start: y, from: top, until: element.clientHeight, room: left, align: "right",
      turn: (at) => context.translate(left - 6, at),
    });
    this.label(context, style, {
      tokens: scene.keys, active: state.k, found: found.keys, hidden: scene.hidden,
      start: x, from: left, until: element.clientWidth, room: top, align: "left",
      turn: (at) => {
        context.translate(at, top - 6);
        context.rotate(-Math.PI / 2);
      },
    });
  }

  /** The tokens along one side: as many as have room, always the active one, and marks at those found. */
  label(context, style, side) {
    const step = Math.ceil(14 / this.size);
    const place = (i) => side.start + (i + 0.5) * this.size;
    context.textAlign = side.align;
    side.tokens.forEach((token, i) => {
      const at = place(i);
      const active = i === side.active;
      const near = !active && Math.abs(place(side.active) - at) < 13;
      const named = active || (i % step === 0 && !near);
      const isMatch = side.found.has(i);
      if (at < side.from || at > side.until || !(named || isMatch)) return;
      context.save();
      side.turn(at);
      context.font = active ? `bold ${FONT}` : FONT;
      context.fillStyle = active || isMatch ? style.outlineColor : style.color;
      if (side.hidden?.[i]) context.globalAlpha = 0.6;
      if (named) context.fillText(shorten(context, token, side.room - 10), 0, 0);
      const mark = Math.max(4, this.size - 2);
      if (isMatch) context.fillRect(side.align === "right" ? 1 : -5, -mark / 2, 4, mark);
      context.restore();
    });
  }

  /** Weights in the cells that are in the window, without the leading 0. */
  number(context, x, y) {
    const { scene, state } = this.view;
    const { size, element } = this;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    const first = (start, margin) => Math.max(0, Math.floor((margin - start) / size));
    const last = (start, extent, count) => Math.min(count, Math.ceil((extent - start) / size));
    const rows = last(y, element.clientHeight, scene.queries.length);
    const columns = last(x, element.clientWidth, scene.keys.length);
    for (let q = first(y, this.top); q < rows; q++)
      for (let k = first(x, this.left); k < columns; k++) {
        const value = scene.value(q, k);
        if (!(value >= 0.005)) continue; // NaN too
        context.fillStyle = inkOn(colourOf(this.view.shade(q, k), state.dark));
        const text = value.toFixed(2).replace(/^0/, "");
        context.fillText(text, x + (k + 0.5) * size, y + (q + 0.5) * size);
      }
  }

  /** The cell under a pointer, or null. */
  at(event) {
    const box = this.element.getBoundingClientRect();
    const { scene } = this.view;
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const k = Math.floor((x - this.left + this.element.scrollLeft) / this.size);
    const q = Math.floor((y - this.top + this.element.scrollTop) / this.size);
    if (x < this.left || y < this.top) return null;
    return q < scene.queries.length && k < scene.keys.length ? { q, k } : null;
  }

  point(event) {
    const cell = this.at(event);
    const { state } = this.view;
    if (!cell || state.pinned || (cell.q === state.q && cell.k === state.k)) return;
    this.view.move(cell.q, cell.k, false);
  }

  pin(event) {
    const cell = this.at(event);
    if (!cell) return;
    const { state } = this.view;
    const same = state.pinned && cell.q === state.q && cell.k === state.k;
    state.pinned = !same;
    this.view.move(cell.q, cell.k, false);
  }

  key(event) {
    const { state, scene } = this.view;
    const last = { q: scene.queries.length - 1, k: scene.keys.length - 1 };
    const whole = event.ctrlKey || event.metaKey;
    const moves = {
      ArrowUp: [state.q - 1, state.k], ArrowDown: [state.q + 1, state.k],
      ArrowLeft: [state.q, state.k - 1], ArrowRight: [state.q, state.k + 1],
      PageUp: [state.q - 10, state.k], PageDown: [state.q + 10, state.k],
      Home: [whole ? 0 : state.q, 0], End: [whole ? last.q : state.q, last.k],
    };
    if (event.key in moves) this.view.move(...moves[event.key], true);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0") this.zoom(0);
    else if (event.key === "Enter" || event.key === " ") this.view.pin(!state.pinned);
    else if (event.key === "Escape") this.view.pin(false);
    else return;
    event.preventDefault();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const cell = this.at(event);
    if (cell) this.view.move(cell.q, cell.k, false);
    this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2);
  }

  /** Grow the cells by a factor around the active one; 0 shows all. */
  zoom(factor) {
    const cell = factor * this.size;
    this.cell = cell > this.fitted ? Math.min(LARGEST_CELL, cell) : null;
    this.layOut();
    const { q, k } = this.view.state;
    this.element.scrollLeft = (k + 0.5) * this.size - (this.element.clientWidth - this.left) / 2;
    this.element.scrollTop = (q + 0.5) * this.size - (this.element.clientHeight - this.top) / 2;
    this.draw();
  }

  /** Scroll, if need be, until the active cell is in the window. */
  reveal() {
    const { q, k } = this.view.state;
    const { element, size } = this;
    const within = (now, at, window) => Math.min(at * size, Math.max((at + 1) * size - window, now));
    element.scrollLeft = within(element.scrollLeft, k, element.clientWidth - this.left);
    element.scrollTop = within(element.scrollTop, q, element.clientHeight - this.top);
  }

  speak(text) {
    this.spoken.reverse();
    const { q, k } = this.view.state;
    this.spoken[0].setAttribute("aria-rowindex", q + 1);
    this.spoken[0].setAttribute("aria-colindex", k + 1);
    this.spoken[0].textContent = text;
    this.element.setAttribute("aria-activedescendant", this.spoken[0].id);
  }
}

/** The token, cut so that it is no wider than `room` pixels. */
function shorten(context, token, room) {
  if (context.measureText(token).width <= room) return token;
  const letters = [...token.slice(0, 60)];
  while (letters.length && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

/** Queries on the left, keys on the right, a line to each key as thick as its weight. */
class Lines {
  constructor(view) {
    this.view = view;
    this.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.svg.setAttribute("aria-hidden", "true");
    [this.left, this.right] = [make("div", { class: "qkv-queries" }), make("div", { class: "qkv-keys" })];
    this.element = make("div", { class: "qkv-lines", role: "img" }, this.left, this.svg, this.right);
    const choose = (pinning) => (event) => {
      const q = [...this.left.children].indexOf(event.target);
      if (q < 0 || (view.state.pinned && !pinning)) return;
      view.state.pinned ||= pinning;
      view.move(q, view.state.k, false);
    };
    this.left.addEventListener("pointerover", choose(false));
    this.left.addEventListener("click", choose(true));
  }

  paint() {
    const { scene } = this.view;
    const token = (text) => make("div", { class: "qkv-token", dir: "auto", title: text }, text);
    this.left.replaceChildren(...scene.queries.map(token));
    this.right.replaceChildren(...scene.keys.map(token));
    scene.hidden.forEach((hidden, k) => this.right.children[k].classList.toggle("qkv-hidden", hidden));
    this.svg.setAttribute("height", LINE_PITCH * Math.max(scene.queries.length, scene.keys.length));
  }

  draw() {
    const { scene, state } = this.view;
    const width = this.svg.clientWidth || 120;
    const keys = strongest(scene, state.q, MOST_LINES);
    const most = keys.length ? scene.value(state.q, keys[0]) : 1;
    const middle = (i) => LINE_PITCH * (i + 0.5);
    for (const token of this.element.querySelectorAll(".qkv-active")) token.classList.remove("qkv-active");
    for (const token of this.right.children) token.style.removeProperty("--share");
    this.left.children[state.q].classList.add("qkv-active");
    this.right.children[state.k].classList.add("qkv-active");
    this.svg.replaceChildren(
      ...keys.map((k) => {
        const share = scene.value(state.q, k) / most;
        this.right.children[k].style.setProperty("--share", share.toFixed(3));
        const path = document.createElementNS(this.svg.namespaceURI, "path");
        const [from, to] = [middle(state.q), middle(k)];
        path.setAttribute("d", `M0 ${from} C${width / 2} ${from} ${width / 2} ${to} ${width} ${to}`);
        path.setAttribute("stroke-width", (0.5 + 5.5 * share).toFixed(2));
        path.setAttribute("stroke-opacity", (0.15 + 0.75 * share).toFixed(2));
        return path;
      }),
    );
    const named = keys.slice(0, 3).map((k) => `${scene.keys[k]} ${scene.text(state.q, k)}`);
    const goal = named.join(", ") || "no key";
    this.element.setAttribute("aria-label", `Lines from ${scene.queries[state.q]} to ${goal}`);
  }

  reveal() {
    const at = LINE_PITCH * this.view.state.q;
    const { scrollTop, clientHeight } = this.element;
    const inside = at >= scrollTop && at + LINE_PITCH <= scrollTop + clientHeight;
    if (!inside) this.element.scrollTop = at - clientHeight / 2;
  }
}

/** The shades of one head, in a square of at most `side` pixels: the strongest of what falls on each. */
function pooled(data, codes, { layer, head, hidden, scale, side }) {
  const [n, m] = [data.queries.length, data.keys.length];
  const [high, wide] = [Math.min(n, side), Math.min(m, side)];
  const start = (layer * data.heads.length + head) * n * m;
  const at = (q, k) => (hidden[k] ? 0 : VALUES[codes[start + q * m + k]] || 0); // NaN is no shade
  const highest = new Float64Array(n);
  for (let q = 0; q < n; q++) for (let k = 0; k < m; k++) highest[q] = Math.max(highest[q], at(q, k));
  const most = highest.reduce((a, b) => Math.max(a, b), 0) || 1;
  const shades = new Float64Array(high * wide);
  for (let q = 0; q < n; q++)
    for (let k = 0; k < m; k++) {
      const pixel = Math.floor((q * high) / n) * wide + Math.floor((k * wide) / m);
      shades[pixel] = Math.max(shades[pixel], SCALES[scale](at(q, k), highest[q] || 1, most));
    }
  return { shades, high, wide };
}

/** Every head of every layer, small: a click or the arrows choose one. */
class Thumbnails {
  constructor(view) {
    this.view = view;
    const { layers, heads } = view.data;
    const thumb = (layer) => (name, head) => {
      const label = `${layers.length > 1 ? `Layer ${layers[layer]}, head` : "Head"} ${name}`;
      return make(
        "button", { type: "button", role: "radio", class: "qkv-thumb", "aria-label": label, title: label,
          onclick: () => this.choose(layer, head) },
        make("canvas", { "aria-hidden": "true" }),
      );
    };
    this.rows = layers.map((_, layer) => heads.map(thumb(layer)));
    const row = (thumbs, layer) => {
      const name = layers.length > 1 ? [make("span", { class: "qkv-layer" }, layers[layer])] : [];
      return make("div", { class: "qkv-heads", role: "presentation" }, ...name, ...thumbs);
    };
    this.element = make(
      "div", { class: "qkv-thumbs", role: "radiogroup", "aria-label": "All heads", onkeydown: (event) => this.key(event) },
      make("p", { class: "qkv-small" }, layers.length > 1 ? "all heads, a row for each layer" : "all heads"),
      ...this.rows.map(row),
    );
    this.element.hidden = layers.length * heads.length === 1;
  }

  paint() {
    const { data, codes, state } = this.view;
    const { layer, head, hide, scale, dark } = state;
    const look = [hide, scale, dark].join();
    if (!this.element.hidden && this.look !== look) {
      this.look = look;
      const hidden = oneByOne(data.keys, data.words).map(HIDING[hide] ?? (() => false));
      this.rows.forEach((row, layer) =>
        row.forEach((thumb, head) =>
          paintShades(thumb.firstChild, pooled(data, codes, { layer, head, hidden, scale, side: 44 }), dark),
        ),
      );
    }
    const chosen = this.rows[layer][head === "mean" ? 0 : head]; // where the focus enters
    for (const thumb of this.rows.flat()) {
      thumb.setAttribute("aria-checked", thumb === chosen && head !== "mean");
      thumb.tabIndex = thumb === chosen ? 0 : -1;
    }
  }

  choose(layer, head) {
    this.view.set({ layer: String(layer), head: String(head) });
    this.view.showChoice();
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (list, place) => Math.min(list.length - 1, Math.max(0, place));
    const { layer, head } = this.view.state;
    const down = within(this.rows, Number(layer) + step[0]);
    const across = within(this.rows[0], head === "mean" ? 0 : Number(head) + step[1]);
    this.choose(down, across);
    this.rows[down][across].focus();
  }
}

/** Shades onto a canvas of as many pixels. */
function paintShades(canvas, { shades, high, wide }, dark) {
  [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d");
  const image = context.createImageData(wide, high);
  shades.forEach((shade, i) => image.data.set([...colourOf(shade, dark), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

/** The active query's weights as an ordinary table, for those who would rather read. */
class DataTable {
  constructor(view) {
    this.view = view;
    const choose = () => view.move(this.select.selectedIndex, view.state.k, true);
    this.select = make("select", { onchange: choose });
    this.caption = make("caption");
    this.body = make("tbody");
    const heads = ["position", "key", "weight"].map((name) => make("th", { scope: "col" }, name));
    const head = make("thead", {}, make("tr", {}, ...heads));
    const region = { class: "qkv-scroll", tabindex: "0", role: "region", "aria-label": "Weights of one query" };
    this.element = make(
      "details", { class: "qkv-table", ontoggle: () => this.draw() }, make("summary", {}, "Data table"),
      field("Query", this.select),
      make("div", region, make("table", {}, this.caption, head, this.body)),
    );
  }

  paint() {
    const option = (text, i) => make("option", {}, `${i}: ${text}`);
    this.select.replaceChildren(...this.view.scene.queries.map(option));
    this.shown = null;
  }

  draw() {
    const { scene, state } = this.view;
    if (!this.element.open || this.shown === state.q) return;
    this.shown = state.q;
    this.select.selectedIndex = state.q;
    this.caption.textContent = `What ${scene.queries[state.q]} looks at${this.view.where()}`;
    this.body.replaceChildren(
      ...scene.keys.map((key, k) => {
        const name = make("th", { scope: "row", dir: "auto" }, key);
        return make("tr", {}, make("td", {}, String(k)), name, make("td", {}, scene.text(state.q, k)));
      }),
    );
  }
}

/** All parts, and what they share. */
class View {
  constructor(element, data) {
    this.data = { ...data, keys: data.keys ?? data.queries };
    const { layers, heads, queries, keys } = this.data;
    this.codes = unpack(data.weights, layers.length * heads.length * queries.length * keys.length);
    const scale = keys.length > MANY_KEYS ? "query" : "even";
    this.state = { layer: data.start?.layer ?? "0", head: data.start?.head ?? "0", hide: "", merge: false, scale, dark: false, q: 0, k: 0, pinned: false };
    this.sought = "";
    this.root = make("section", { class: "qkv-view", "aria-label": data.title ?? "Attention weights" });
    this.map = new HeatMap(this);
    this.lines = new Lines(this);
    this.table = new DataTable(this);
    this.thumbs = new Thumbnails(this);
    this.panels = make("div", { class: "qkv-panels" }, this.map.element, this.lines.element, this.thumbs.element);
    this.pair = make("span", { class: "qkv-pair" });
    this.value = make("strong", { class: "qkv-value" });
    this.note = make("span", { class: "qkv-note" });
    this.most = make("p", { class: "qkv-most" });
    const colours = make("canvas", { width: 128, height: 1, "aria-hidden": "true" });
    this.legend = make("div", { class: "qkv-legend" }, make("span", {}, "0"), colours, make("span"));
    this.root.append(
      ...(data.title ? [make("h1", { dir: "auto" }, data.title)] : []),
      this.toolbar(),
      make("div", { class: "qkv-readout" }, this.pair, this.value, this.note, this.legend),
      this.most,
      this.panels,
      this.table.element,
    );
    element.replaceChildren(this.root);
    this.follow();
  }

  toolbar() {
    const { layers, heads, words } = this.data;
    const set = (name) => (value) => this.set({ [name]: value });
    const names = (list) => list.map((name, i) => [String(i), name]);
    const button = (sign, label, onclick) =>
      make("button", { type: "button", "aria-label": label, title: label, onclick }, sign);
    this.count = make("span", { class: "qkv-count", role: "status" });
    this.darkButton = button("◐ dark", "Dark", () => {
      this.chosen = true;
      this.theme(!this.state.dark);
    });
    const search = make("input", {
      type: "search", placeholder: "token", autocomplete: "off", spellcheck: "false",
      oninput: () => this.find(search.value),
      onkeydown: (event) => event.key === "Enter" && this.next(),
    });
    const check = make("input", { type: "checkbox", onchange: () => this.set({ merge: check.checked }) });
    const scales = [["even", "even"], ["root", "lift small"], ["query", "by query"]];
    const hiding = [["", "nothing"], ["first", "first token"]];
    if (words?.includes(null)) hiding.push(["special", "special tokens"]);
    this.pickers = {
      layer: picker("Layer", names(layers), set("layer"), this.state.layer),
      head: picker("Head", [...names(heads), ["mean", "mean of all"]], set("head"), this.state.head),
    };
    // Where it is narrow, all but layer and head wait behind a button; elsewhere the style hides it.
    const fold = make("button", {
      type: "button", class: "qkv-fold", "aria-expanded": "false",
      onclick: () => fold.setAttribute("aria-expanded", fold.getAttribute("aria-expanded") !== "true"),
    }, "Options");
    return make(
      "div", { class: "qkv-bar", role: "group", "aria-label": "What to show" },
      ...(layers.length > 1 ? [this.pickers.layer] : []),
      ...(heads.length > 1 ? [this.pickers.head] : []),
      fold,
      make(
        "div", { class: "qkv-options" },
        picker("Hide", hiding, set("hide")),
        ...(words ? [field("Merge words", check)] : []),
        picker("Colours", scales, set("scale"), this.state.scale),
        make(
          "span", { class: "qkv-buttons", role: "group", "aria-label": "Zoom" },
          button("−", "Zoom out", () => this.map.zoom(1 / 1.5)),
          button("+", "Zoom in", () => this.map.zoom(1.5)),
          button("⤢ all", "Show all", () => this.map.zoom(0)),
        ),
        this.darkButton,
        field("Find", search), this.count,
      ),
    );
  }

  /** The pickers say what was chosen elsewhere. */
  showChoice() {
    for (const [name, { lastChild: select }] of Object.entries(this.pickers)) select.value = this.state[name];
  }

  /** Follow the size of the window and the theme around it. */
  follow() {
    const wish = window.matchMedia("(prefers-color-scheme: dark)");
    const { jpThemeLight } = document.body.dataset; // JupyterLab's own theme overrules the system's
    const around = () => (jpThemeLight ? jpThemeLight === "false" : wish.matches);
    const onTheme = () => this.chosen || this.theme(around());
    let width = 0; // heights follow from what is drawn, and must not draw again
    const resized = new ResizeObserver(() => {
      if (width === this.root.clientWidth) return;
      width = this.root.clientWidth;
      this.resize();
    });
    this.theme(around());
    wish.addEventListener("change", onTheme);
    resized.observe(this.root);
    this.remove = () => {
      wish.removeEventListener("change", onTheme);
      resized.disconnect();
      this.root.remove();
    };
  }

  theme(dark) {
    this.root.style.colorScheme = dark ? "dark" : "light";
    this.darkButton.setAttribute("aria-pressed", dark);
    this.set({ dark });
  }

  /** How wide and high the map may be: beside the lines, or above them where it is narrow. */
  room() {
    const { clientWidth } = this.panels;
    const style = getComputedStyle(this.panels);
    const isRow = style.flexDirection === "row";
    const taken = this.lines.element.offsetWidth + parseFloat(style.columnGap);
    return [clientWidth - (isRow ? taken : 0), Math.max(320, Math.min(680, window.innerHeight - 200))];
  }

  resize() {
    this.map.layOut();
    this.map.draw();
    for (const { element } of [this.lines, this.thumbs]) element.style.maxHeight = `${this.room()[1]}px`;
    this.lines.draw();
  }

  /** Change what is shown. */
  set(change) {
    Object.assign(this.state, change);
    this.scene = makeScene(this.data, this.codes, this.state);
    this.go(this.state.q, this.state.k); // merging leaves fewer rows and columns
    this.map.paint();
    this.lines.paint();
    this.table.paint();
    this.thumbs.paint();
    this.drawLegend();
    this.search(this.sought);
    this.resize();
    this.move(this.state.q, this.state.k, true);
  }

  /** Make a cell the active one, or the nearest there is. */
  go(q, k) {
    this.state.q = Math.min(this.scene.queries.length - 1, Math.max(0, q));
    this.state.k = Math.min(this.scene.keys.length - 1, Math.max(0, k));
  }

  /** Where the colour of a cell stands between none, 0, and full, 1. */
  shade(q, k) {
    const { value, highest, most } = this.scene;
    return SCALES[this.state.scale](value(q, k), highest[q], most);
  }

  /** Go to a cell and say so in every part. */
  move(q, k, reveal) {
    this.go(q, k);
    const { scene, state } = this;
    const text = scene.text(state.q, state.k);
    const [query, key] = [scene.queries[state.q], scene.keys[state.k]];
    this.pair.replaceChildren(make("bdi", {}, query), " → ", make("bdi", {}, key));
    this.value.textContent = text;
    this.note.textContent = `${state.pinned ? "pinned" : ""}${this.where()}`.replace(/^, /, "");
    this.most.textContent = "looks most at ";
    strongest(scene, state.q, 5).forEach((other, i) => {
      const name = make("bdi", {}, scene.keys[other]);
      this.most.append(i ? " · " : "", name, ` ${scene.text(state.q, other)}`);
    });
    if (reveal) this.map.reveal();
    this.map.draw();
    this.map.speak(`${query} looks at ${key}: ${text}`);
    this.lines.draw();
    this.lines.reveal();
    this.table.draw();
  }

  pin(pinned) {
    this.state.pinned = pinned;
    this.move(this.state.q, this.state.k, true);
  }

  where() {
    const { layers, heads } = this.data;
    const { layer, head } = this.state;
    const ofLayer = layers.length > 1 ? `, layer ${layers[layer]}` : "";
    const ofHead = head === "mean" ? ", mean of all heads" : `, head ${heads[head]}`;
    return ofLayer + (heads.length > 1 ? ofHead : "");
  }

  find(text) {
    this.sought = text;
    this.search(text);
    this.map.draw();
  }

  /** Which queries and keys hold this text. */
  search(text) {
    const needle = text.toLowerCase();
    const holds = (token) => needle && token.toLowerCase().includes(needle);
    const among = (tokens) => new Set(tokens.flatMap((token, i) => (holds(token) ? [i] : [])));
    this.found = { queries: among(this.scene.queries), keys: among(this.scene.keys) };
    const places = [...this.found.queries].map((q) => ({ q }));
    for (const k of this.found.keys) if (this.scene.keys[k] !== this.scene.queries[k]) places.push({ k });
    this.places = places;
    this.place = -1;
    this.count.textContent = needle ? `${places.length} found` : "";
  }

  /** Go to the next token found, a query or a key. */
  next() {
    if (!this.places.length) return;
    this.place = (this.place + 1) % this.places.length;
    const { q = this.state.q, k = this.state.k } = this.places[this.place];
    this.count.textContent = `${this.place + 1} of ${this.places.length}`;
    this.move(q, k, true);
  }

  drawLegend() {
    const [, canvas, end] = this.legend.children;
    const context = canvas.getContext("2d");
    const { scale, dark } = this.state;
    for (let i = 0; i < canvas.width; i++) {
      context.fillStyle = `rgb(${colourOf(SCALES[scale](i / (canvas.width - 1), 1, 1), dark).join()})`;
      context.fillRect(i, 0, 1, 1);
    }
    end.textContent = scale === "query" ? "most of each query" : Number(this.scene.most.toPrecision(2));
  }
}

export function render(element, data) {
  const view = new View(element, data);
  return () => view.remove();
}

// The shape that anywidget asks for.
export default { render: ({ model, el }) => render(el, model.get("data")) };
