// Pooling: a query follows the pointer, and is answered by the points near it.

import { h, field, select, setOptions, button, slider, format, tinted, decodeDoubles, decodeFloats } from "../dom.js";
import { Figure, axes, span } from "../figure.js";
import { along as alongX, tips, zoom } from "../chart.js";
import { Channel, ask } from "../ask.js";
import { dropPlace } from "../drop.js";

const KERNELS = ["gaussian", "boxcar", "triangular", "epanechnikov", "laplacian", "biweight", "tricube"];
const POINTS = ["source", "x", "y", "seed", "count", "noise", "edits"];
const FIT = [...POINTS, "kernel", "bandwidth", "degree", "level"];

export const room = {
  lead: "Each point is a key with a value. A query is compared with all of them, and the answer is their mean, weighted by how near they are.",
  question: {
    text: "The bandwidth grows without end. What does the curve become?",
    options: ["the finest detail", "a flat line, the mean of all", "a straight line through all"],
    right: 1,
    because: "In the limit all points have equal weights, for every query: uniform attention is a mean. Drag the bandwidth back and watch it turn into a look-up.",
    state: { bandwidth: 60 },
  },
  surprise: {
    label: "one wild point",
    caption: "One outlier shifts the entire curve, however many other points there are: a mean is sensitive to every value. Make the bandwidth smaller and see how far its influence reaches.",
    state: { edits: "a:2,60", bandwidth: 0.4, query: 2.3 },
  },
  defaults: () => ({ query: 2.5, kernel: "gaussian", bandwidth: 0.3, degree: 0, level: 0.9, seed: 5, count: 100, noise: 1, edits: "", source: "", x: "", y: "", view: "", widths: "", file: "" }),
  open,
};

function open(state, shell) {
  const answers = { x: new Float64Array(), y: new Float64Array(), curve: null, asked: null, weights: null, chosen: null, kernels: null };
  const s = () => state.values;
  const body = (names) => Object.fromEntries(names.map((name) => [name, s()[name]]));
  const key = (names) => JSON.stringify(body(names));
  const refused = (text) => shell.refuse(text);

  const channels = {
    points: new Channel("pooling/points", (response) => {
      answers.x = decodeDoubles(response.x);
      answers.y = decodeDoubles(response.y);
      answers.weights = null;
      showEditor();
      chart.redraw();
    }, refused),
    curve: new Channel("pooling/curve", (response) => {
      answers.curve = Object.fromEntries(Object.entries(response).map(([name, text]) => [name, decodeDoubles(text)]));
      query.span(...ends());
      query.show(s().query);
      chart.redraw();
    }, refused),
    ask: new Channel("pooling/ask", (response) => {
      answers.asked = response;
      answers.weights = decodeFloats(response.weights);
      showAnswer();
      chart.redraw();
    }, refused),
    choose: new Channel("pooling/choose", (response) => { answers.chosen = response; choose.disabled = false; errors.redraw(); },
      (text) => { answers.chosen = null; choose.disabled = true; chosenNote.textContent = text; errors.redraw(); }),
    kernels: new Channel("pooling/kernels", (response) => { answers.kernels = response; showKernels(); }, refused),
  };

  // The chart, and what the pointer does on it.
  const chart = new Figure("Points, weights and the pooled curve", drawChart, { className: "figure live" });
  const errors = new Figure("Leave-one-out error by bandwidth", drawErrors, { className: "low" });
  let dragged = null; // the point that is dragged

  function ends() {
    const grid = answers.curve?.grid;
    if (s().view) return s().view.split(",").map(Number);
    return grid?.length ? [grid[0], grid[grid.length - 1]] : span(answers.x);
  }

  // Positions and weights of the points; computed again only when something changed.
  let dots = null;
  function laid({ sx, sy }, ...made) {
    if (dots?.made.every((thing, i) => thing === made[i])) return dots;
    const n = answers.x.length;
    const fits = answers.weights?.length === n;
    const most = fits ? answers.weights.reduce((one, other) => Math.max(one, other), 1e-30) : 1;
    const [small, large] = n > 2000 ? [1.5, 2.4] : [3, 6];
    dots = { made, xs: new Float32Array(n), ys: new Float32Array(n), radii: new Float32Array(n), shares: new Float32Array(n) };
    for (let i = 0; i < n; i++) {
      dots.shares[i] = fits ? answers.weights[i] / most : 0;
      dots.radii[i] = small + Math.sqrt(dots.shares[i]) * large;
      dots.xs[i] = sx(answers.x[i]);
      dots.ys[i] = sy(answers.y[i]);
    }
    return dots;
  }

  // The ends of the y axis, cached for fast moves over many points.
  let heights = null;
  function height() {
    if (heights?.y !== answers.y || heights.curve !== answers.curve || heights.moved !== answers.moved) heights = { y: answers.y, curve: answers.curve, moved: answers.moved, ends: span(answers.y, answers.curve?.answer ?? []) };
    return heights.ends;
  }

  function drawChart(scene) {
    if (!answers.x.length) return scene.text(scene.width / 2, scene.height / 2, "Loading the points …", "muted", { anchor: "middle" });
    const { curve, weights, asked } = answers;
    const x = ends();
    const places = (chart.places = axes(scene, { x, y: height(), xName: s().x || "x (keys)", yName: s().y || "y (values)" }));
    const { sx, sy } = places;
    const along = (list) => Array.from(curve.grid, (at, i) => [sx(at), sy(list[i])]);
    const { xs, ys, radii, shares } = laid(places, scene.width, scene.height, ...x, height(), weights, answers.x, answers.moved);
    const at = sx(s().query);
    return scene.within(places, () => {
      if (curve) {
        scene.area([...along(curve.low), ...along(curve.high).reverse()].filter(([, y]) => Number.isFinite(y)), "answer", { opacity: 0.12 });
        scene.line(along(curve.truth), "muted", { width: 1, dash: [4, 4] });
      }
      scene.dots(xs, ys, radii, shares);
      if (curve) scene.line(along(curve.answer), "answer", { width: 2.5 });
      scene.line([[at, places.top], [at, places.bottom]], "query", { width: 2 });
      const right = at > scene.width * 0.8;
      scene.text(at + (right ? -6 : 6), places.top + 10, `q = ${format(s().query, 3)}`, "query", { size: 12, weight: 600, anchor: right ? "end" : "start" });
      if (asked && asked.answer !== null) {
        const q = sx(asked.query);
        if (asked.low !== null) scene.line([[q, sy(asked.low)], [q, sy(asked.high)]], "answer", { width: 5, opacity: 0.35 });
        scene.circle(q, sy(asked.answer), 6, "answer", { stroke: "ground" });
      }
      if (dragged !== null) scene.circle(xs[dragged], ys[dragged], radii[dragged] + 4, null, { stroke: "query" });
    });
  }
  const weightOf = (i) => (answers.weights?.length === answers.x.length ? format(answers.weights[i], 3) : "–");
  tips(chart, {
    count: () => answers.x.length,
    at: (i) => ({ x: chart.places.sx(answers.x[i]), y: chart.places.sy(answers.y[i]), text: `point ${i}: key ${format(answers.x[i])}, value ${format(answers.y[i])}, weight ${weightOf(i)}` }),
    near: (px, py) => (dragged === null ? nearTo(px, py) : null),
    chosen: (i) => { which.value = i; showEditor(); editY.focus(); },
  }, shell);

  function nearTo(px, py) {
    let [best, least] = [null, 14 ** 2];
    for (let i = 0; i < answers.x.length; i++) {
      const apart = (chart.places.sx(answers.x[i]) - px) ** 2 + (chart.places.sy(answers.y[i]) - py) ** 2;
      if (apart < least) [best, least] = [i, apart];
    }
    return best;
  }
  const near = (event) => {
    const box = chart.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    return { px, py };
  };
  const rounded = (number) => Number(number.toPrecision(5));
  chart.canvas.addEventListener("pointermove", (event) => {
    if (!chart.places) return;
    const { px, py } = near(event);
    if (dragged !== null) {
      move(dragged, rounded(chart.places.atX(px)), rounded(chart.places.atY(py)), false);
      return;
    }
    if (px < chart.places.left || px > chart.places.right) return;
    state.set({ query: rounded(chart.places.atX(px)) }, { settled: false });
  });
  chart.canvas.addEventListener("pointerdown", (event) => {
    if (!chart.places) return;
    const { px, py } = near(event);
    dragged = nearTo(px, py);
    if (dragged !== null) {
      chart.canvas.setPointerCapture(event.pointerId);
      which.value = dragged;
      showEditor();
      event.preventDefault();
    }
  });
  chart.canvas.addEventListener("pointerup", (event) => {
    if (dragged === null) return state.set({}, {});
    const { px, py } = near(event);
    const [x, y, place] = [rounded(chart.places.atX(px)), rounded(chart.places.atY(py)), dragged];
    dragged = null;
    if (state.dragged && state.dragged.edits !== s().edits) move(place, x, y, true);
    chart.redraw();
  });
  chart.canvas.addEventListener("dblclick", (event) => {
    if (!chart.places) return;
    const { px, py } = near(event);
    edit(`a:${rounded(chart.places.atX(px))},${rounded(chart.places.atY(py))}`);
  });
  const zoomChart = zoom(chart, "points", {
    all: () => (answers.curve?.grid.length ? [answers.curve.grid[0], answers.curve.grid.at(-1)] : span(answers.x)), view: ends, drag: false,
    about: () => s().query, show: (view) => state.set({ view: view ? view.join(",") : "" }),
  });

  // Points by hand: edits are written one after the other, and moves of one point become one.
  function edit(one, settled = true) {
    state.set({ edits: [...(s().edits ? s().edits.split(";") : []), one].join(";") }, { settled });
  }
  function move(place, x, y, settled) {
    answers.x[place] = x;
    answers.y[place] = y;
    answers.moved = (answers.moved ?? 0) + 1;
    const edits = s().edits ? s().edits.split(";") : [];
    if (edits.at(-1)?.startsWith(`m:${place},`)) edits.pop();
    state.set({ edits: [...edits, `m:${place},${x},${y}`].join(";") }, { settled });
  }

  // Controls.
  const query = slider(0, 4, (value, settled) => state.set({ query: value }, { settled }));
  const bandwidth = slider(0.008, 120, (value, settled) => state.set({ bandwidth: value }, { settled }), { log: true });
  bandwidth.className = "of-weight";
  const kernel = select(KERNELS, (value) => state.set({ kernel: value }));
  const degree = select([["0", "0: a mean"], ["1", "1: a line"]], (value) => state.set({ degree: Number(value) }));
  const noise = slider(0, 3, (value, settled) => state.set({ noise: value }, { settled }));
  const count = select(["20", "100", "1000", "10000"], (value) => state.set({ count: Number(value), edits: "" }));
  const level = select([["0.5", "50 %"], ["0.9", "90 %"], ["0.95", "95 %"]], (value) => state.set({ level: Number(value) }));
  const choose = button("Choose for me", () => answers.chosen && state.set({ bandwidth: Number(answers.chosen.choice.toPrecision(4)) }));
  const chosenNote = h("p", { className: "note" });
  const [columnX, columnY] = ["x", "y"].map((name) => select([], (value) => state.set({ [name]: value, edits: "", view: "" })));
  const columns = h("div", { className: "row", hidden: true }, field("Keys", columnX), field("Values", columnY));
  const drop = dropPlace(shell, "Drop a CSV or Parquet file of your own", async (source, name) => {
    const { columns: names } = await ask("pooling/columns", { source });
    state.set({ source, x: names[0], y: names[1], edits: "", view: "", file: name });
    const response = await ask("pooling/points", body(POINTS)).catch(() => null);
    if (response) {
      const [low, high] = span(decodeDoubles(response.x));
      state.set({ query: rounded((low + high) / 2), bandwidth: rounded((high - low) / 10) });
    }
  });

  const which = h("input", { type: "number", min: 0, step: 1, value: 0, input: () => showEditor() });
  const [editX, editY] = [0, 1].map(() => h("input", { type: "number", step: "any" }));
  const numbers = () => [editX, editY].map((input) => rounded(Number(input.value)));
  const editor = h("fieldset", {}, h("legend", {}, "Points by hand: drag one, double-click to add, or type"),
    h("div", { className: "row" }, field("Point", which), field("x", editX), field("y", editY)),
    h("div", { className: "row" },
      button("Move", () => move(Number(which.value), ...numbers(), true)),
      button("Add", () => edit(`a:${numbers().join(",")}`)),
      button("Delete", () => edit(`d:${Number(which.value)}`))));
  function showEditor() {
    const place = Number(which.value);
    which.max = answers.x.length - 1;
    if (place < answers.x.length) {
      editX.value = rounded(answers.x[place]);
      editY.value = rounded(answers.y[place]);
    }
  }

  const facts = h("div", { className: "facts" });
  const formula = h("div", { className: "formula", tabIndex: 0, role: "group", "aria-label": "The formula with its numbers" });
  const kind = h("span", {});
  const shapes = KERNELS.map((name) => {
    const figure = new Figure(name, (scene) => drawKernel(scene, name), { className: "tiny" });
    const answer = h("span", {});
    const element = button("", () => state.set({ kernel: name }), { "aria-pressed": "false", "aria-label": `Use ${name}` });
    element.append(h("strong", {}, name), figure.canvas, answer);
    return { name, figure, answer, element };
  });

  function showAnswer() {
    const { asked } = answers;
    const n = answers.weights.length;
    const empty = asked.neighbours === 0;
    const word = empty ? "no point within reach: the nearest one answers"
      : asked.neighbours < 1.5 ? "a hard look-up" : asked.neighbours > 0.97 * n && n > 3 ? "the plain mean of all" : "a soft look-up";
    kind.textContent = word;
    facts.replaceChildren(
      h("span", {}, "query ", tinted("query", format(asked.query))),
      h("span", {}, "answer ", tinted("answer", format(asked.answer))),
      h("span", {}, `${Math.round(s().level * 100)} % of new values `, tinted("answer", asked.low === null ? "unknown" : `${format(asked.low)} to ${format(asked.high)}`)),
      h("span", {}, "effective neighbours ", tinted("weight", format(asked.neighbours, 3)), ` of ${n.toLocaleString("en")}`),
      h("span", {}, word));
    const terms = asked.terms.flatMap(({ weight, y }, i) => [i ? " + " : "", tinted("weight", weight.toFixed(3)), "·", tinted("key", format(y, 3))]);
    const more = n - asked.terms.length;
    formula.replaceChildren(...(s().degree === 1
      ? ["the line through the points, weighted about q = ", tinted("query", format(asked.query)), ", at q: ", tinted("answer", format(asked.answer))]
      : empty ? ["Σ α(q, k) v has no term: the nearest point says ", tinted("answer", format(asked.answer))]
        : ["Σ α(q, kᵢ) vᵢ = ", ...terms, more > 0 ? ` + … (${more.toLocaleString("en")} more) = ` : " = ", tinted("answer", format(asked.answer))]));
    shell.code(asked.python, asked.command);
    chart.label(`Points and the pooled curve. At ${format(asked.query)} the answer is ${format(asked.answer)}, ${word}.`);
    shell.announce(`At ${format(asked.query)} the answer is ${format(asked.answer)}; ${format(asked.neighbours, 3)} effective neighbours.`);
  }

  const widths = () => (s().widths ? s().widths.split(",").map(Number) : [answers.chosen.bandwidths[0], answers.chosen.bandwidths.at(-1)]);
  function drawErrors(scene) {
    if (!answers.chosen) return;
    const { bandwidths, errors: list, choice } = answers.chosen;
    const x = widths();
    const inSight = list.filter((_, i) => bandwidths[i] >= x[0] && bandwidths[i] <= x[1]);
    const places = (errors.places = axes(scene, { x, y: span(inSight.length ? inSight : list), logX: true, xName: "bandwidth", small: true, margin: { bottom: 34, left: 36 } }));
    const { sx, sy, top, bottom, left, right } = places;
    scene.within(places, () => scene.line(bandwidths.map((at, i) => [sx(at), sy(list[i])]), "ink", { width: 1.5 }));
    const line = (at, colour, dash, text, before) => {
      const place = Math.max(left, Math.min(right, sx(at)));
      const end = place > left + 70 && (before || place > right - 70);
      scene.line([[place, top], [place, bottom]], colour, { width: 1.5, dash });
      scene.text(place + (end ? -4 : 4), top + (dash ? 22 : 9), text, colour, { size: 11, anchor: end ? "end" : "start" });
    };
    line(choice, "muted", [4, 4], `best ${format(choice, 3)}`, choice < s().bandwidth);
    line(s().bandwidth, "weight", undefined, `yours ${format(s().bandwidth, 3)}`, s().bandwidth <= choice);
    chosenNote.textContent = `Each point is predicted from all others; the error is least at ${format(choice, 3)}.`;
    errors.label(`Leave-one-out error by bandwidth; least at ${format(choice, 3)}, yours is ${format(s().bandwidth, 3)}`);
  }

  const tried = (i) => ({ x: errors.places.sx(answers.chosen.bandwidths[i]), y: errors.places.sy(answers.chosen.errors[i]), text: `bandwidth ${format(answers.chosen.bandwidths[i], 3)}: error ${format(answers.chosen.errors[i])}` });
  tips(errors, {
    count: () => answers.chosen?.bandwidths.length ?? 0,
    at: tried,
    near: (x) => (errors.places ? alongX(x, answers.chosen?.bandwidths.length ?? 0, tried) : null),
    chosen: (i) => state.set({ bandwidth: Number(answers.chosen.bandwidths[i].toPrecision(4)) }),
  }, shell);
  const zoomErrors = zoom(errors, "bandwidths", {
    all: () => [answers.chosen.bandwidths[0], answers.chosen.bandwidths.at(-1)], view: widths, log: true,
    show: (view) => state.set({ widths: view ? view.join(",") : "" }),
  });

  function drawKernel(scene, name) {
    const fit = answers.kernels?.kernels.find((one) => one.name === name);
    if (!fit) return;
    const grid = decodeDoubles(answers.kernels.grid);
    const { sx, sy } = axes(scene, { x: [grid[0], grid.at(-1)], y: span(answers.y), small: true, margin: { left: 4, right: 4, top: 4, bottom: 4 } });
    const shape = decodeFloats(fit.shape);
    const high = scene.height - 4;
    scene.area([[sx(grid[0]), high], ...Array.from(grid, (at, i) => [sx(at), high - shape[i] * (high - 24)]), [sx(grid.at(-1)), high]], "weight", { opacity: 0.22 });
    scene.line(Array.from(grid, (at, i) => [sx(at), sy(decoded(fit)[i])]), "answer", { width: 1.8 });
    scene.line([[sx(s().query), 4], [sx(s().query), high]], "query", { width: 1 });
  }
  const decoded = (fit) => (fit.list ??= decodeDoubles(fit.curve));

  function showKernels() {
    for (const { name, figure, answer } of shapes) {
      const fit = answers.kernels.kernels.find((one) => one.name === name);
      answer.replaceChildren(tinted("answer", format(fit.answer, 3)), ` from ${format(fit.neighbours, 2)} points`);
      figure.label(`${name}: answers ${format(fit.answer, 3)} from ${format(fit.neighbours, 2)} points`);
      figure.redraw();
    }
  }

  const element = h("div", { className: "room with-controls" },
    h("section", { className: "panel stack", "aria-label": "The points" }, chart.element, zoomChart,
      h("div", { className: "legend" }, tinted("query", "query"), tinted("key", "keys and values"), tinted("weight", "weight"), tinted("answer", "answer and interval")),
      facts, formula),
    h("section", { className: "panel stack", "aria-label": "Controls" },
      field("Query: move the pointer over the points, or this", query),
      field("Bandwidth", bandwidth, h("div", { className: "ends", "aria-hidden": "true" }, h("span", {}, "hard look-up"), h("span", {}, "plain mean"))),
      h("div", { className: "row" }, field("Kernel", kernel), field("Degree", degree)),
      h("div", {}, errors.element, zoomErrors, chosenNote), choose,
      h("div", { className: "row" }, field("Points", count), field("Interval", level)),
      field("Noise", noise),
      h("div", { className: "row" },
        button("New noise", () => state.set({ seed: (s().seed * 7 + 3) % 99991, edits: "" })),
        button("Clear my edits", () => state.set({ edits: "" })))),
    h("section", { className: "panel stack wide", "aria-label": "All kernels side by side" },
      h("h2", {}, "All kernels of Eq. 5, side by side"),
      h("p", { className: "note" }, "The same points, query and bandwidth; the slides' third formula, max(0, 1 − u), is the triangular one."),
      h("div", { className: "many" }, ...shapes.map((shape) => shape.element))),
    h("section", { className: "panel stack wide", "aria-label": "Your own points" }, editor, drop, columns));

  function update(before) {
    const values = s();
    kernel.value = values.kernel;
    degree.value = values.degree;
    level.value = String(values.level);
    if (![...count.options].some((option) => option.value === String(values.count))) count.append(h("option", {}, String(values.count)));
    count.value = String(values.count);
    noise.show(values.noise);
    query.show(values.query);
    bandwidth.show(values.bandwidth, `${format(values.bandwidth)}`);
    columns.hidden = !values.source;
    count.disabled = noise.disabled = Boolean(values.source);
    for (const { name, element: shape } of shapes) shape.setAttribute("aria-pressed", String(name === values.kernel));
    if (values.source && before?.source !== values.source) {
      ask("pooling/columns", { source: values.source }).then(({ columns: names }) => {
        setOptions(columnX, names);
        setOptions(columnY, names);
        [columnX.value, columnY.value] = [s().x, s().y];
      }).catch((error) => shell.refuse(error.message));
    }
    [columnX.value, columnY.value] = [values.x, values.y];
    const changed = (names) => !before || names.some((name) => before[name] !== values[name]);
    const fit = key(FIT);
    if (changed(POINTS)) channels.points.ask(body(POINTS), key(POINTS));
    if (changed(FIT)) channels.curve.ask(body(FIT), fit);
    if (changed([...POINTS, "kernel", "degree"])) channels.choose.ask(body(FIT), key([...POINTS, "kernel", "degree"]));
    if (changed([...FIT, "query"])) {
      channels.ask.ask(body([...FIT, "query"]), fit);
      clearTimeout(room.timer);
      room.timer = setTimeout(() => channels.kernels.ask(body([...FIT, "query"]), fit), before ? 120 : 0);
    }
    chart.redraw();
    errors.redraw();
  }

  return {
    element,
    update,
    figures: () => [chart, errors],
    csvName: "points",
    rows: () => [["x", "y", "weight"], ...Array.from(answers.x, (x, i) => [x, answers.y[i], answers.weights?.[i] ?? ""])],
    summary: () => answers.asked ? `At ${format(answers.asked.query)} the answer is ${format(answers.asked.answer)}: ${s().kernel} kernel, bandwidth ${format(s().bandwidth)}, ${answers.x.length} points.` : "",
    redraw: () => [chart, errors, ...shapes.map((shape) => shape.figure)].forEach((figure) => figure.redraw()),
    close() {
      Object.values(channels).forEach((channel) => channel.close());
      [chart, errors, ...shapes.map((shape) => shape.figure)].forEach((figure) => figure.close());
      clearTimeout(room.timer);
    },
  };
}
