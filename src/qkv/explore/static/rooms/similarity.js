// Similarity: the same tokens under two similarities, side by side.

import { h, field, select, button, slider, format, tinted, decodeFloats } from "../dom.js";
import { Figure } from "../figure.js";
import { tips } from "../chart.js";
import { Channel } from "../ask.js";

const NAMES = [["dot", "dot product, qᵀk"], ["scaled_dot", "scaled dot product, qᵀk / √d"], ["cosine", "cosine"], ["euclidean", "euclidean, −‖q − k‖²"],
  ["additive", "additive, wᵀ tanh(Wq + Uk)"], ["bilinear", "multiplicative, qᵀWk"], ["gated", "gated"], ["gaussian", "gaussian kernel"],
  ["laplacian", "laplacian kernel"], ["boxcar", "boxcar kernel"], ["triangular", "triangular kernel"], ["epanechnikov", "epanechnikov kernel"], ["formula", "typed formula"]];
const MASKS = [["none", "no mask"], ["causal", "Causal: look back only"], ["window", "Window"], ["blocks", "Blocks"], ["topk", "TopK: the best keys"], ["painted", "painted by hand"]];
const REACH = 2;
const SIDE = 41;
const TOKENS = "cat:1.2,0.3;dog:1,0.6;wolf:0.7,1;tree:-0.4,1.2;rock:-1.1,0.2;sea:-0.6,-1;ship:0.3,-1.2";

export const room = {
  lead: "Two similarities compare the same seven tokens. Drag a token, change the temperature, paint a mask.",
  question: {
    text: "The temperature falls towards zero. What does the softmax become?",
    options: ["all weights equal", "one weight of 1: the best key takes all", "all weights 0"],
    right: 1,
    because: "At low temperature attention is a hard choice with an entropy of 0 bits; at high temperature it is uniform. Temperature is the bandwidth of a softmax.",
    state: { temperature: 0.02 },
  },
  surprise: {
    label: "one long vector",
    caption: "“the” is simply long. Under the dot product every token on its side attends to it, even those in other directions; the cosine does not depend on length.",
    state: { tokens: "cat:0.6,0.3;dog:0.5,0.4;wolf:0.3,0.6;the:1.9,1.8;tree:-0.2,0.6;rock:0.7,-0.2;ship:0.1,0.5", left: "dot", right: "cosine", temperature: 0.4 },
  },
  defaults: () => ({ left: "scaled_dot", right: "gaussian", tokens: TOKENS, row: 0, temperature: 1, bandwidth: 0.5, seed: 5, formula: "-sum(abs(q - k))", mask: "none", size: 1, painted: "" }),
  open,
};

function open(state, shell) {
  const s = () => state.values;
  let answers = null;
  const channel = new Channel("similarity/compare", (response) => { answers = response; show(); }, (text) => shell.refuse(text));
  const tokens = () => s().tokens.split(";").map((part) => {
    const [word, place] = part.split(/:(?=[^:]*$)/);
    const [x, y] = (place ?? "0,0").split(",").map(Number);
    return { word, x, y };
  });
  const write = (list) => list.map(({ word, x, y }) => `${word}:${x},${y}`).join(";");

  // Tooltips for the cells of a matrix and the places of a plane.
  const number = (value) => (value === null ? "no number" : format(value, 3));
  const cellsOf = (matrix, place) => {
    const count = () => (answers ? answers.words.length ** 2 : 0);
    const at = (i) => {
      const n = answers.words.length;
      const { left, top, cell } = grid(matrix.canvas.clientWidth, matrix.canvas.clientHeight, n);
      const [row, column] = [Math.floor(i / n), i % n];
      return { x: left + (column + 0.5) * cell, y: top + (row + 0.5) * cell,
        text: `${answers.words[row]} looks at ${answers.words[column]}: score ${number(answers.sides[place].scores[row][column])}, weight ${format(decodeFloats(answers.sides[place].weights)[i], 3)}` };
    };
    const near = (x, y) => {
      if (!answers) return null;
      const n = answers.words.length;
      const { left, top, cell } = grid(matrix.canvas.clientWidth, matrix.canvas.clientHeight, n);
      const [row, column] = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
      return row >= 0 && row < n && column >= 0 && column < n ? row * n + column : null;
    };
    return { count, at, near, columns: () => answers.words.length, chosen: (i) => state.set({ row: Math.floor(i / answers.words.length) }) };
  };
  const planeOf = (surface, place) => ({
    count: () => (answers ? SIDE * SIDE : 0),
    columns: () => SIDE,
    at: (i) => {
      const [row, column] = [Math.floor(i / SIDE), i % SIDE];
      const [wide, high] = [surface.canvas.clientWidth / SIDE, surface.canvas.clientHeight / SIDE];
      const spot = (step) => format(-REACH + (2 * REACH * step) / (SIDE - 1), 2);
      const score = decodeFloats(answers.sides[place].surface)[i];
      return { x: (column + 0.5) * wide, y: (row + 0.5) * high, text: `a key at ${spot(column)}, ${spot(SIDE - 1 - row)} would score ${Math.abs(score) > 1e29 ? "no number" : format(score, 3)}` };
    },
    near: (x, y) => {
      const [row, column] = [(y / surface.canvas.clientHeight) * SIDE, (x / surface.canvas.clientWidth) * SIDE].map(Math.floor);
      return row >= 0 && row < SIDE && column >= 0 && column < SIDE ? row * SIDE + column : null;
    },
  });
  const grid = (width, height, n) => {
    const left = 56;
    const top = 26;
    return { left, top, cell: Math.min((width - left) / n, (height - top) / n) };
  };

  const sides = ["left", "right"].map((name, place) => {
    const chosen = select(NAMES, (value) => state.set({ [name]: value }));
    const matrix = new Figure(`Weights, ${name}`, (scene) => drawMatrix(scene, place), { className: "square flat" });
    const surface = new Figure(`Scores over the key plane, ${name}`, (scene) => drawSurface(scene, place), { className: "square" });
    const entropy = h("p", { className: "facts" });
    const plan = h("pre", { className: "plan", tabIndex: 0, "aria-label": `Plan, ${name}` });
    drags(surface.canvas);
    tips(matrix, cellsOf(matrix, place), shell);
    tips(surface, planeOf(surface, place), shell);
    matrix.canvas.addEventListener("click", (event) => {
      const n = tokens().length;
      const { left, top, cell } = grid(matrix.canvas.clientWidth, matrix.canvas.clientHeight, n);
      const row = Math.floor((event.offsetY - top) / cell);
      if (event.offsetX > left - 60 && row >= 0 && row < n) state.set({ row });
    });
    return { name, chosen, matrix, surface, entropy, plan };
  });

  function drawMatrix(scene, place) {
    if (!answers) return;
    const { words } = answers;
    const weights = decodeFloats(answers.sides[place].weights);
    const n = words.length;
    const { left, top, cell } = grid(scene.width, scene.height, n);
    scene.cells(left, top, cell * n, cell * n, n, n, weights);
    words.forEach((word, i) => {
      scene.text(left - 6, top + (i + 0.5) * cell + 4, word.slice(0, 7), i === s().row ? "query" : "muted", { anchor: "end", weight: i === s().row ? 700 : 400 });
      scene.text(left + (i + 0.5) * cell, top - 8, word.slice(0, 7), "key", { anchor: "middle", size: 11 });
    });
    if (cell > 30) {
      weights.forEach((weight, i) => {
        const text = weight > 0.995 ? "1" : weight < 0.005 ? (weight > 0 ? "·" : "") : weight.toFixed(2).slice(1);
        const strong = weight > 0.45;
        scene.text(left + ((i % n) + 0.5) * cell, top + (Math.floor(i / n) + 0.5) * cell + 4, text, strong ? "ground" : "ink", { anchor: "middle", size: 11 });
      });
    }
    scene.rect(left - 1, top + s().row * cell - 1, cell * n + 1, cell + 1, null, { stroke: "query" });
  }

  const onPlane = (scene, { x, y }) => [((x + REACH) / (2 * REACH)) * scene.width, ((REACH - y) / (2 * REACH)) * scene.height];
  function drawSurface(scene, place) {
    if (!answers) return;
    const scores = decodeFloats(answers.sides[place].surface);
    let [low, high] = [Infinity, -Infinity];
    for (const score of scores) {
      if (Math.abs(score) < 1e29) { low = Math.min(low, score); high = Math.max(high, score); }
    }
    scene.cells(0, 0, scene.width, scene.height, SIDE, SIDE, scores.map((score) => (score - low) / (high - low || 1)));
    const n = answers.words.length;
    const weights = decodeFloats(answers.sides[place].weights);
    tokens().forEach((token, i) => {
      const [x, y] = onPlane(scene, token);
      const isQuery = i === s().row;
      scene.circle(x, y, 5 + 9 * Math.sqrt(weights[s().row * n + i] || 0), isQuery ? "query" : "key", { stroke: "ground", opacity: 0.9 });
    });
    // Words on top of all circles; that of the query last.
    const order = tokens().map((token, i) => [token, i === s().row]).sort((one, other) => one[1] - other[1]);
    order.forEach(([token, isQuery]) => {
      const [x, y] = onPlane(scene, token);
      const wide = 7 * token.word.length + 6;
      scene.rect(x - wide / 2, y - 27, wide, 16, "ground", { opacity: 0.72 });
      scene.text(x, y - 15, token.word, "ink", { anchor: "middle", size: 12, weight: isQuery ? 700 : 500 });
    });
  }

  // Tokens are dragged on either plane; a click makes one the query.
  function drags(canvas) {
    let dragged = null;
    let moved = false;
    const at = (event) => [(event.offsetX / canvas.clientWidth) * 2 * REACH - REACH, REACH - (event.offsetY / canvas.clientHeight) * 2 * REACH];
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = at(event);
      const apart = tokens().map((token) => Math.hypot(token.x - x, token.y - y));
      const near = apart.indexOf(Math.min(...apart));
      if (apart[near] > 0.35) return;
      dragged = near;
      moved = false;
      canvas.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged === null) return;
      moved = true;
      place(dragged, ...at(event), false);
    });
    canvas.addEventListener("pointerup", () => {
      if (dragged !== null) {
        if (moved) state.set({}, {});
        else state.set({ row: dragged });
      }
      dragged = null;
    });
  }
  const within = (number) => Math.max(-REACH, Math.min(REACH, Number(number.toFixed(2))));
  function place(which, x, y, settled) {
    const list = tokens();
    Object.assign(list[which], { x: within(x), y: within(y) });
    state.set({ tokens: write(list) }, { settled });
  }

  const temperature = slider(0.02, 20, (value, settled) => state.set({ temperature: value }, { settled }), { log: true });
  temperature.className = "of-weight";
  const bandwidth = slider(0.05, 10, (value, settled) => state.set({ bandwidth: value }, { settled }), { log: true });
  bandwidth.className = "of-weight";
  const bandwidthField = field("Bandwidth of the kernels", bandwidth);
  const formula = h("input", { type: "text", maxLength: 200, spellcheck: false, change: () => state.set({ formula: formula.value }) });
  const formulaField = field("Formula", formula, h("p", { className: "note" }, "q and k are vectors, d their size: dot, norm, sum, mean, max, min, abs, exp, log, sqrt, tanh, sigmoid, relu, sin, cos, + − * / ^"));
  const draw = button("New parameters", () => state.set({ seed: (s().seed * 7 + 3) % 99991 }));
  const row = select([], (value) => state.set({ row: Number(value) }));
  const [px, py] = ["x", "y"].map((axis) => h("input", { type: "number", step: 0.1, min: -REACH, max: REACH, change: () => place(s().row, Number(px.value), Number(py.value), true), "aria-label": `${axis} of the query` }));
  const mask = select(MASKS, (value) => state.set({ mask: value, painted: value === "painted" ? "1".repeat(tokens().length ** 2) : "" }));
  const size = h("input", { type: "number", min: 1, max: 12, step: 1, change: () => state.set({ size: Math.max(1, Math.min(12, Math.round(Number(size.value)) || 1)) }) });
  const sizeField = field("Size", size);
  const cells = h("div", { className: "mask", role: "group", "aria-label": "Mask: which query may look at which key" });

  function showMask() {
    const list = tokens();
    const n = list.length;
    const bits = s().painted.length === n * n ? s().painted : "1".repeat(n * n);
    cells.hidden = s().mask !== "painted";
    if (cells.children.length !== n * n) {
      cells.style.gridTemplateColumns = `repeat(${n}, 24px)`;
      cells.replaceChildren(...Array.from({ length: n * n }, (_, i) => button("", () => {
        const now = s().painted;
        state.set({ painted: now.slice(0, i) + (now[i] === "1" ? "0" : "1") + now.slice(i + 1) });
      }, { tabIndex: i ? -1 : 0, keydown: (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -n, ArrowDown: n }[event.key];
        const next = step && cells.children[i + step];
        if (!next) return;
        event.preventDefault();
        cells.children[i].tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      } })));
    }
    [...cells.children].forEach((cell, i) => {
      cell.setAttribute("aria-pressed", String(bits[i] === "1"));
      cell.setAttribute("aria-label", `${list[Math.floor(i / n)].word} may look at ${list[i % n].word}`);
    });
  }

  function show() {
    sides.forEach((side, i) => {
      const result = answers.sides[i];
      const entropy = result.entropy[s().row];
      const mean = result.entropy.reduce((sum, each) => sum + (each ?? 0), 0) / result.entropy.length;
      side.entropy.replaceChildren(
        h("span", {}, tinted("query", answers.words[s().row] ?? ""), " attends with ", tinted("weight", entropy === null ? "no number of" : format(entropy, 3)), " bits of entropy"),
        h("span", {}, "mean ", tinted("weight", format(mean, 3)), ` of at most ${format(Math.log2(answers.words.length), 3)}`));
      side.plan.textContent = result.large ?? result.plan;
      const weights = decodeFloats(result.weights);
      const n = answers.words.length;
      const mine = Array.from(weights.slice(s().row * n, (s().row + 1) * n));
      const best = answers.words[mine.indexOf(Math.max(...mine))];
      side.matrix.label(`Weights under ${result.name}: ${answers.words[s().row]} looks most at ${best}, ${format(Math.max(...mine), 3)}`);
      side.surface.label(`Score of ${answers.words[s().row]} over the plane of keys under ${result.name}`);
      side.matrix.redraw();
      side.surface.redraw();
    });
    shell.code(answers.sides.map((side) => `# ${side.name}\n${side.python}`).join("\n\n"), answers.sides.map((side) => side.command).filter(Boolean).join("\n"));
    shell.announce(sides.map((side, i) => `${answers.sides[i].name}: entropy ${format(answers.sides[i].entropy[s().row], 3)} bits`).join("; "));
  }

  const planTitle = h("h2", {});
  const element = h("div", { className: "room with-controls" },
    h("div", { className: "stack" },
      h("div", { className: "pair" }, ...sides.map((side, i) => h("section", { className: "panel stack", "aria-label": i ? "Right" : "Left" },
        field(i ? "Right: how alike" : "Left: how alike", side.chosen), side.matrix.element, side.entropy,
        h("p", { className: "note" }, "The query’s score over the plane of keys: the stronger the colour, the more alike."), side.surface.element)))),
    h("section", { className: "panel stack", "aria-label": "Controls" },
      h("div", { className: "row" }, field("Query", row), field("x", px), field("y", py)),
      field("Temperature", temperature, h("div", { className: "ends", "aria-hidden": "true" }, h("span", {}, "hard choice"), h("span", {}, "all alike"))),
      bandwidthField, formulaField, draw,
      h("div", { className: "row" }, field("Mask", mask), sizeField), cells,
      h("p", { className: "note" }, "Rows are queries, columns keys. Masked keys weigh nothing, and what is left is made to sum to 1 again.")),
    h("section", { className: "panel stack wide", "aria-label": "Plans" },
      planTitle,
      h("div", { className: "pair" }, ...sides.map((side) => side.plan))));

  return {
    element,
    update() {
      const values = s();
      sides.forEach((side) => { side.chosen.value = values[side.name]; });
      temperature.show(values.temperature);
      bandwidth.show(values.bandwidth);
      const both = [values.left, values.right];
      const kernel = (name) => ["gaussian", "laplacian", "boxcar", "triangular", "epanechnikov"].includes(name);
      bandwidthField.hidden = !both.some(kernel);
      formulaField.hidden = !both.includes("formula");
      draw.hidden = !both.some((name) => ["additive", "bilinear", "gated"].includes(name));
      if (document.activeElement !== formula) formula.value = values.formula;
      const list = tokens();
      if ([...row.options].map((option) => option.text).join() !== list.map((token) => token.word).join()) {
        row.replaceChildren(...list.map((token, i) => h("option", { value: i }, token.word)));
      }
      row.value = values.row;
      if (list[values.row]) [px.value, py.value] = [list[values.row].x, list[values.row].y];
      mask.value = values.mask;
      size.value = values.size;
      sizeField.hidden = !["window", "blocks", "topk"].includes(values.mask);
      planTitle.textContent = values.mask === "painted" ? "What it costs for these tokens: a painted mask has no larger sister" : "What it would cost for 4,096 tokens of 64 numbers";
      showMask();
      const body = { ...values };
      channel.ask(body, JSON.stringify({ ...values, tokens: "", row: 0, temperature: 0, bandwidth: 0 }));
      sides.forEach((side) => side.surface.redraw());
    },
    figures: () => sides.flatMap((side) => [side.matrix, side.surface]),
    rows: () => (answers ? [["similarity", "query", "key", "score", "weight"], ...answers.sides.flatMap((side) => {
      const weights = decodeFloats(side.weights);
      return answers.words.flatMap((query, i) => answers.words.map((key, j) => [side.name, query, key, side.scores[i][j], weights[i * answers.words.length + j]]));
    })] : []),
    summary: () => `${answers?.sides.map((side) => side.name).join(" and ")}, temperature ${format(s().temperature)}, mask: ${s().mask}.`,
    redraw: () => sides.forEach((side) => { side.matrix.redraw(); side.surface.redraw(); }),
    close() {
      channel.close();
      sides.forEach((side) => { side.matrix.close(); side.surface.close(); });
    },
  };
}
