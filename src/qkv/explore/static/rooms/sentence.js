// Sentence: a grid of heads, one of them enlarged, and each weight expanded into its steps.

import { h, field, select, setOptions, button, slider, format, tinted, decodeFloats } from "../dom.js";
import { Figure } from "../figure.js";
import { tips } from "../chart.js";
import { palette } from "../scene.js";
import { ask, Channel } from "../ask.js";

const SIMILARITIES = ["dot", "scaled_dot", "cosine", "euclidean", "gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "biweight", "tricube"];
const DOG = "When he saw his owner, the dog was happy, so he wagged his tail";
const READ = ["text", "model", "similarity", "temperature"];

export const room = {
  lead: "Each word attends to all others. Word vectors weight them by similarity alone; a trained model has learned what to attend to, differently in every head.",
  question: {
    text: "“… so he wagged his tail”: which word does the second “he” resemble most, by word vectors?",
    options: ["dog", "owner", "he, the first one, and itself"],
    right: 2,
    because: "Word vectors do not depend on the sentence: both “he” are the same vector, and attend to each other. Choose MiniLM to see a contextual model.",
    state: { model: "vectors", row: 10 },
  },
  surprise: {
    label: "a head that rests",
    caption: "This head of MiniLM attends to the special token [CLS] for almost every query: it uses [CLS] as an attention sink.",
    state: { model: "minilm", layer: 4, head: 5, row: 8 },
  },
  defaults: (hello) => ({
    text: DOG, model: hello.opened?.kind === "model" ? "open" : "vectors", similarity: "scaled_dot", temperature: 1,
    layer: 5, head: 11, row: 1, column: 0, beside: "nothing", layer2: 5, head2: 0, text2: "The dog saw his owner",
  }),
  open,
};

function open(state, shell) {
  const s = () => state.values;
  const answers = { one: null, two: null, cell: null };
  const refused = (text) => shell.refuse(text);
  const body = (more = {}) => ({ ...Object.fromEntries(READ.map((name) => [name, s()[name]])), layer: s().layer, head: s().head, ...more });
  const channels = {
    one: new Channel("sentence/look", (response) => { answers.one = decoded(response); showOne(); }, refused),
    two: new Channel("sentence/look", (response) => { answers.two = decoded(response); panels[1].matrix.redraw(); showBeside(); }, refused),
    cell: new Channel("sentence/cell", (response) => { answers.cell = response; showCell(); }, refused),
  };
  const decoded = (response) => ({ ...response, weights: decodeFloats(response.weights), rollout: decodeFloats(response.rollout) });

  // The weights of a head, of the mean of a layer's (−1), or of the rollout (layer −1).
  function weightsOf(read, layer, head) {
    const n = read.pieces.length;
    if (layer < 0) return read.rollout;
    const at = Math.min(layer, read.layers - 1);
    const block = (one) => read.weights.subarray((at * read.heads + one) * n * n, (at * read.heads + one + 1) * n * n);
    if (head >= 0) return block(Math.min(head, read.heads - 1));
    const mean = new Float32Array(n * n);
    for (let one = 0; one < read.heads; one++) block(one).forEach((weight, i) => { mean[i] += weight / read.heads; });
    return mean;
  }
  const places = [() => [answers.one, s().layer, s().head], () => (s().beside === "sentence" ? [answers.two, s().layer, s().head] : [answers.one, s().layer2, s().head2])];
  const title = (layer, head, read) => (read?.layers === 1 && read.heads === 1 ? "word vectors" : layer < 0 ? "rollout through all layers" : `layer ${Math.min(layer, read.layers - 1)}, ${head < 0 ? "mean of its heads" : `head ${Math.min(head, read.heads - 1)}`}`);

  const marksOf = (matrix, which) => {
    const size = () => places[which]()[0]?.pieces.length ?? 0;
    return {
      count: () => size() ** 2,
      columns: size,
      at(i) {
        const [read, layer, head] = places[which]();
        const n = size();
        const { left, top, cell, high } = layout(matrix.canvas, n);
        const [row, column] = [Math.floor(i / n), i % n];
        return { x: left + (column + 0.5) * cell, y: top + (row + 0.5) * high, text: `${read.pieces[row]} looks at ${read.pieces[column]}: ${format(weightsOf(read, layer, head)[i], 3)}` };
      },
      near(x, y) {
        const at = cellAt(matrix.canvas, { offsetX: x, offsetY: y }, which);
        return at && at.row * size() + at.column;
      },
      chosen: (i) => state.set({ row: Math.floor(i / size()), column: i % size() }),
    };
  };
  const panels = [0, 1].map((which) => {
    const name = h("h2", {}, " ");
    const matrix = new Figure(which ? "Weights, beside" : "Weights", (scene) => drawMatrix(scene, which), { className: "square" });
    matrix.canvas.addEventListener("pointermove", (event) => {
      const at = cellAt(matrix.canvas, event, which);
      if (at && which === 0) state.set(at, { settled: false });
    });
    matrix.canvas.addEventListener("click", (event) => {
      const at = cellAt(matrix.canvas, event, which);
      if (at) state.set(at);
    });
    tips(matrix, marksOf(matrix, which), shell);
    return { name, matrix, element: h("section", { className: "panel stack", "aria-label": which ? "Beside" : "Enlarged" }, name, matrix.element) };
  });

  const layout = ({ clientWidth: width, clientHeight: height }, n) => {
    const [left, top] = [78, 72];
    return { left, top, cell: (width - left - 18) / n, high: (height - top - 4) / n };
  };
  function cellAt(canvas, event, which) {
    const [read] = places[which]();
    if (!read) return null;
    const n = read.pieces.length;
    const { left, top, cell, high } = layout(canvas, n);
    const [column, row] = [Math.floor((event.offsetX - left) / cell), Math.floor((event.offsetY - top) / high)];
    return row >= 0 && row < n && column >= 0 && column < n ? { row, column } : null;
  }
  function drawMatrix(scene, which) {
    const [read, layer, head] = places[which]();
    if (!read) return scene.text(scene.width / 2, scene.height / 2, "Loading …", "muted", { anchor: "middle" });
    panels[which].name.textContent = title(layer, head, read);
    const n = read.pieces.length;
    const { left, top, cell, high } = layout(panels[which].matrix.canvas, n);
    scene.cells(left, top, cell * n, high * n, n, n, weightsOf(read, layer, head));
    const size = Math.max(7, Math.min(12, high));
    read.pieces.forEach((piece, i) => {
      const [isQuery, isKey] = [i === s().row, i === s().column];
      scene.text(left - 5, top + (i + 0.5) * high + 4, piece.slice(0, 11), isQuery ? "query" : "muted", { anchor: "end", size, weight: isQuery ? 700 : 400 });
      scene.text(left + (i + 0.5) * cell + 3, top - 6, piece.slice(0, 11), isKey ? "key" : "muted", { size, turn: -60, weight: isKey ? 700 : 400 });
    });
    if (s().row < n) scene.rect(left, top + s().row * high, cell * n, high, null, { stroke: "query" });
    if (s().row < n && s().column < n) scene.rect(left + s().column * cell, top + s().row * high, cell, high, null, { stroke: "key" });
    return undefined;
  }

  const bars = new Figure("What the query looks at", drawBars, { className: "low" });
  // Space at the right for the last word, which is rotated.
  const barsOf = (width, height) => ({ wide: (width - 22) / answers.one.pieces.length, bottom: height - 46 });
  const rowOf = () => {
    const n = answers.one.pieces.length;
    const row = Math.min(s().row, n - 1);
    return weightsOf(answers.one, s().layer, s().head).subarray(row * n, (row + 1) * n);
  };
  tips(bars, {
    count: () => answers.one?.pieces.length ?? 0,
    at(i) {
      const { wide, bottom } = barsOf(bars.canvas.clientWidth, bars.canvas.clientHeight);
      const weights = rowOf();
      return { x: (i + 0.5) * wide, y: bottom - (weights[i] / Math.max(...weights, 1e-9)) * (bottom - 18), text: `${answers.one.pieces[Math.min(s().row, answers.one.pieces.length - 1)]} looks at ${answers.one.pieces[i]}: ${format(weights[i], 3)}` };
    },
    near(x) {
      if (!answers.one) return null;
      const i = Math.floor(x / barsOf(bars.canvas.clientWidth, 0).wide);
      return i < answers.one.pieces.length ? i : null;
    },
    chosen: (i) => state.set({ column: i }),
  }, shell);
  bars.canvas.addEventListener("click", (event) => {
    const i = answers.one ? Math.floor(event.offsetX / barsOf(bars.canvas.clientWidth, 0).wide) : -1;
    if (i >= 0 && i < answers.one.pieces.length) state.set({ column: i });
  });
  function drawBars(scene) {
    const { one } = answers;
    if (!one) return;
    const n = one.pieces.length;
    const row = Math.min(s().row, n - 1);
    const weights = rowOf();
    const most = Math.max(...weights, 1e-9);
    const { wide, bottom } = barsOf(scene.width, scene.height);
    one.pieces.forEach((piece, i) => {
      const high = (weights[i] / most) * (bottom - 18);
      scene.rect(i * wide + 2, bottom - high, Math.max(1, wide - 4), high, "weight", { opacity: i === s().column ? 1 : 0.75 });
      if (wide > 26) scene.text((i + 0.5) * wide, bottom - high - 4, weights[i].toFixed(2).slice(1), "ink", { anchor: "middle", size: 10 });
      scene.text((i + 0.5) * wide + 3, bottom + 12, piece.slice(0, 9), i === row ? "query" : "key", { size: Math.max(8, Math.min(12, wide / 2)), turn: 40 });
    });
    const best = one.pieces[weights.indexOf(Math.max(...weights))];
    bars.label(`${one.pieces[row]} looks most at ${best}, ${format(Math.max(...weights), 3)}`);
  }

  // The wall: one small picture of each head.
  const wall = h("div", { className: "wall", role: "group", "aria-label": "All heads" });
  const wallPart = h("section", { className: "panel stack wide", "aria-label": "Wall of heads" }, h("h2", {}, "All heads: choose one to enlarge"), wall);
  let pictures = [];
  function showWall() {
    const { one } = answers;
    wallPart.hidden = one.layers * one.heads === 1;
    if (wallPart.hidden) return;
    if (pictures.length !== one.layers * one.heads || wall.children.length !== one.layers) {
      pictures = [];
      wall.replaceChildren(...Array.from({ length: one.layers }, (_, layer) => h("div", { className: "layer" },
        ...Array.from({ length: one.heads }, (__, head) => {
          const canvas = h("canvas", { "aria-hidden": "true" });
          const element = button("", () => state.set({ layer, head }));
          element.append(canvas);
          pictures.push({ canvas, element, layer, head });
          return element;
        }))));
    }
    const n = one.pieces.length;
    const colours = palette(wall).ramp.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    for (const { canvas, element, layer, head } of pictures) {
      Object.assign(canvas, { width: n, height: n });
      const image = new ImageData(n, n);
      weightsOf(one, layer, head).forEach((weight, i) => {
        const [red, green, blue] = colours[Math.max(0, Math.min(32, Math.round(weight * 32) || 0))];
        image.data.set([red, green, blue, 255], 4 * i);
      });
      canvas.getContext("2d").putImageData(image, 0, 0);
      element.setAttribute("aria-pressed", String(layer === s().layer && head === s().head));
      element.setAttribute("aria-label", `Layer ${layer}, head ${head}: entropy ${format(one.entropy[layer][head], 3)} bits, distance ${format(one.distance[layer][head], 3)}`);
      element.title = element.getAttribute("aria-label");
    }
  }

  const facts = h("div", { className: "facts" });
  const note = h("p", { className: "note" });
  function showOne() {
    const { one } = answers;
    if (s().row >= one.pieces.length || s().column >= one.pieces.length) return state.set({ row: Math.min(s().row, one.pieces.length - 1), column: Math.min(s().column, one.pieces.length - 1) });
    showWall();
    for (const [element, value] of [[query, s().row], [key, s().column]]) {
      setOptions(element, one.pieces.map((piece, i) => [String(i), `${i + 1}: ${piece}`]));
      element.value = String(value);
    }
    const layers = one.layers > 1 ? [["-1", "rollout"]] : [];
    for (const [element, head] of [[layer, false], [layer2, false], [headSelect, true], [head2, true]]) {
      const count = head ? one.heads : one.layers;
      setOptions(element, [...(head && one.heads > 1 ? [["-1", "mean"]] : head ? [] : layers), ...Array.from({ length: count }, (_, i) => [String(i), String(i)])]);
    }
    showChoices();
    const at = Math.min(Math.max(0, s().layer), one.layers - 1);
    const list = s().head < 0 ? null : Math.min(s().head, one.heads - 1);
    facts.replaceChildren(
      h("span", {}, "looking at ", tinted("query", one.pieces[s().row] ?? "")),
      list === null || s().layer < 0 ? null : h("span", {}, "entropy ", tinted("weight", `${format(one.entropy[at][list], 3)} bits`), ` of at most ${format(Math.log2(one.pieces.length), 3)}`),
      list === null || s().layer < 0 ? null : h("span", {}, "mean distance ", tinted("weight", `${format(one.distance[at][list], 3)} pieces`)));
    note.textContent = one.notes.join(". ");
    shell.code(one.python, one.command);
    panels.forEach((panel) => panel.matrix.redraw());
    bars.redraw();
    askCell();
    return undefined;
  }

  // One weight, unfolded.
  const unfolded = h("div", { className: "stack", role: "group", "aria-label": "How the weight comes about" });
  function askCell() {
    const { one } = answers;
    if (!one || s().layer < 0 || s().head < 0) {
      answers.cell = null;
      return showCell();
    }
    return channels.cell.ask(body({ layer: Math.min(s().layer, one.layers - 1), head: Math.min(s().head, one.heads - 1), row: s().row, column: s().column }), JSON.stringify(body()));
  }
  function showCell() {
    const { one, cell } = answers;
    if (!one) return;
    if (!cell) return unfolded.replaceChildren(h("p", { className: "note" }, "A mean or a rollout has no single product: choose a layer and a head."));
    const [q, k] = [tinted("query", one.pieces[s().row]), tinted("key", one.pieces[s().column])];
    const lines = [];
    if (cell.products) {
      lines.push(["q·k = ", ...cell.products.flatMap((part, i) => [i ? " + " : "", tinted("query", format(part.q, 3)), "·", tinted("key", format(part.k, 3))]), ` + … (${cell.size - cell.products.length} more) = ${format(cell.dot)}`]);
      lines.push([`scaled: ${format(cell.dot)} × ${format(cell.scale)} = ${format(cell.score)}`]);
      lines.push([`softmax: e^(${format(cell.score)} − ${format(cell.most)}) / ${format(cell.total)} = `, tinted("weight", format(cell.weight))]);
    } else lines.push([`the weight of this similarity is `, tinted("weight", format(cell.weight))]);
    if (cell.answer) lines.push(["weighted sum: … + ", tinted("weight", format(cell.weight, 3)), "·[", tinted("key", cell.value.map((each) => format(each, 3)).join(", ")), ", …] + … = [", tinted("answer", cell.answer.map((each) => format(each, 3)).join(", ")), ", …]"]);
    unfolded.replaceChildren(h("p", {}, q, " looks at ", k, " with ", tinted("weight", format(cell.weight))), ...lines.map((line) => h("div", { className: "formula", tabIndex: 0, role: "group", "aria-label": "A step of the formula" }, ...line)));
    shell.announce(`${one.pieces[s().row]} looks at ${one.pieces[s().column]} with ${format(cell.weight)}`);
    return undefined;
  }

  const text = h("textarea", { rows: 3, maxLength: 400, input: () => state.set({ text: text.value }, { settled: false }), change: () => state.set({ text: text.value }) });
  const text2 = h("input", { type: "text", maxLength: 400, change: () => state.set({ text2: text2.value }) });
  const model = select([["vectors", "word vectors (GloVe)"], ["minilm", "MiniLM, a transformer"], ...(shell.hello.opened?.kind === "model" ? [["open", shell.hello.opened.name]] : [])], (value) => state.set({ model: value }));
  const similarity = select(SIMILARITIES, (value) => state.set({ similarity: value }));
  const temperature = slider(0.05, 20, (value, settled) => state.set({ temperature: value }, { settled }), { log: true });
  temperature.className = "of-weight";
  const byVectors = h("div", { className: "stack" }, field("Similarity", similarity), field("Temperature", temperature));
  const number = (name) => select([], (value) => state.set({ [name]: Number(value) }));
  const [query, key, layer, headSelect, layer2, head2] = [number("row"), number("column"), number("layer"), number("head"), number("layer2"), number("head2")];
  const byModel = h("div", { className: "row" }, field("Layer", layer), field("Head", headSelect));
  const beside = select([["nothing", "nothing"], ["head", "another head"], ["sentence", "another sentence"]], (value) => state.set({ beside: value }));
  const besideHead = h("div", { className: "row" }, field("Layer beside", layer2), field("Head beside", head2));
  const besideText = field("Sentence beside", text2);
  const viewPlace = h("div", {});
  const viewButton = button("Open in the view", async () => {
    try {
      const [{ data }, { render }] = await Promise.all([ask("sentence/view", body()), import("/view/view.js")]);
      viewPlace.replaceChildren();
      render(viewPlace, data);
    } catch (error) { shell.refuse(error.message); }
  });

  function showChoices() {
    const { one } = answers;
    if (!one) return;
    layer.value = String(Math.min(s().layer, one.layers - 1));
    layer2.value = String(Math.min(s().layer2, one.layers - 1));
    headSelect.value = String(Math.min(s().head, one.heads - 1));
    head2.value = String(Math.min(s().head2, one.heads - 1));
    headSelect.disabled = s().layer < 0;
  }
  function showBeside() {
    besideHead.hidden = s().beside !== "head";
    besideText.hidden = s().beside !== "sentence";
    panels[1].element.hidden = s().beside === "nothing";
    panels[1].matrix.redraw();
  }

  const element = h("div", { className: "room with-controls" },
    h("div", { className: "stack" },
      h("div", { className: "pair" }, ...panels.map((panel) => panel.element)),
      h("section", { className: "panel stack", "aria-label": "One word as the query" }, facts, bars.element, unfolded)),
    h("section", { className: "panel stack", "aria-label": "Controls" },
      field("Sentence", text), field("Read by", model), byVectors, byModel,
      h("div", { className: "row" }, field("Query", query), field("Key", key)),
      field("Beside it", beside), besideHead, besideText, note),
    wallPart,
    h("section", { className: "panel stack wide", "aria-label": "View" }, h("h2", {}, "The view: search, hide, merge, zoom"), h("div", {}, viewButton), viewPlace));

  return {
    element,
    update(before) {
      const values = s();
      if (document.activeElement !== text) text.value = values.text;
      if (document.activeElement !== text2) text2.value = values.text2;
      [model.value, similarity.value, beside.value] = [values.model, values.similarity, values.beside];
      temperature.show(values.temperature);
      byVectors.hidden = values.model !== "vectors";
      byModel.hidden = values.model === "vectors";
      const changed = (names) => !before || names.some((name) => before[name] !== values[name]);
      if (changed([...READ, "layer", "head"])) {
        if (before && changed(READ)) viewPlace.replaceChildren();
        channels.one.ask(body(), JSON.stringify(READ.map((name) => values[name])));
        if (answers.one && !changed(READ)) showOne();
      } else if (answers.one) showOne();
      if (values.beside === "sentence" && (changed([...READ, "beside", "text2", "layer", "head"]))) channels.two.ask(body({ text: values.text2 }), JSON.stringify([READ.map((name) => values[name]), values.text2]));
      showBeside();
    },
    figures: () => [panels[0].matrix, ...(s().beside === "nothing" ? [] : [panels[1].matrix]), bars],
    rows() {
      const { one } = answers;
      if (!one) return [];
      const weights = weightsOf(one, s().layer, s().head);
      const n = one.pieces.length;
      return [["query", "key", "weight"], ...Array.from(weights, (weight, i) => [one.pieces[Math.floor(i / n)], one.pieces[i % n], weight])];
    },
    summary: () => "",
    page: async () => new Blob([(await ask("sentence/page", body())).page], { type: "text/html" }),
    redraw() {
      [...panels.map((panel) => panel.matrix), bars].forEach((figure) => figure.redraw());
      if (answers.one) showWall();
    },
    close() {
      Object.values(channels).forEach((channel) => channel.close());
      [...panels.map((panel) => panel.matrix), bars].forEach((figure) => figure.close());
    },
  };
}
