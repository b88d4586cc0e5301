// The beam as a tree: at each step, what went on, what ended, and what was pruned.

import { h, format } from "../dom.js";
import { Figure } from "../figure.js";
import { nearest, tips } from "../chart.js";

const STEP = 58; // pixels from one token to the next
const ROW = 30;
const TOP = 34;

const FATES = { kept: "goes on", ended: "ends here", pruned: "pruned: others were likelier" };
const piece = (text) => (text === " " ? "␣" : text);

// `found()` is the answer of translate/run, `rank()` the hypothesis that is looked at.
export function beamTree({ found, rank }, shell) {
  const figure = new Figure("The beam as a tree", draw, { className: "tree" });
  const scroll = h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "The beam, step by step" }, figure.element);

  // Nodes of a step stand below each other: those that go on first, in their order.
  let laid = { tree: null };
  function layout() {
    const { tree, beam } = found();
    if (laid.tree === tree) return laid;
    const steps = [];
    tree.forEach((node, i) => { (steps[node.step] ??= []).push(i); });
    const row = new Array(tree.length);
    const order = { kept: 0, ended: 1, pruned: 2 };
    for (const own of steps) [...own].sort((a, b) => order[tree[a].fate] - order[tree[b].fate]).forEach((i, at) => { row[i] = at; });
    const deepest = Math.max(...steps.map((own) => own.length));
    laid = { tree, row, steps: steps.length, width: 40 + STEP * steps.length + 60, height: TOP + ROW * deepest + 8, ways: beam.map((one) => one.way) };
    return laid;
  }
  const place = (i) => (i < 0 ? { x: 14, y: TOP } : { x: 40 + STEP * laid.tree[i].step, y: TOP + ROW * laid.row[i] });

  function draw(scene) {
    if (!found()) return;
    const { tree, ways } = layout();
    const best = new Set(ways[Math.min(rank(), ways.length - 1)]);
    scene.text(14, 12, "begin", "muted", { size: 10, anchor: "middle" });
    for (let step = 0; step < laid.steps; step++) scene.text(40 + STEP * step, 12, String(step + 1), "muted", { size: 10, anchor: "middle" });
    scene.circle(14, TOP, 4, "answer");
    tree.forEach((node, i) => {
      const [from, to] = [place(node.parent), place(i)];
      const own = best.has(i);
      scene.line([[from.x + 9, from.y], [to.x - 11, to.y]], own ? "answer" : node.fate === "pruned" ? "line" : "key", { width: own ? 2.5 : node.fate === "pruned" ? 1 : 1.2, opacity: own ? 1 : 0.7 });
    });
    tree.forEach((node, i) => {
      const { x, y } = place(i);
      const own = best.has(i);
      const colour = own ? "answer" : node.fate === "pruned" ? "muted" : "ink";
      if (node.fate === "ended") scene.rect(x - 10, y - 10, 20, 20, "cell", { stroke: own ? "answer" : "muted" });
      scene.text(x, y + 5, piece(node.text).slice(0, 6), colour, { anchor: "middle", size: node.fate === "pruned" ? 12 : 14, weight: own ? 700 : node.fate === "pruned" ? 400 : 600 });
      scene.text(x + 12, y - 5, node.score === null || node.fate !== "ended" ? format(node.total, 2) : format(node.score, 3), colour, { size: 9 });
    });
  }

  tips(figure, {
    count: () => found()?.tree.length ?? 0,
    at: (i) => {
      layout();
      const node = laid.tree[i];
      const spoken = node.text === "⏎" ? "the end" : `“${piece(node.text)}”`;
      return { ...place(i), text: `step ${node.step + 1}, ${spoken}: ${format(100 * Math.exp(node.log_p), 3)} %, log p so far ${format(node.total, 4)}${node.fate === "ended" ? `, score ${format(node.score, 4)}` : ""}; ${FATES[node.fate]}` };
    },
    near: (x, y) => (found() ? (layout(), nearest(x, y, laid.tree.length, place, 24)) : null),
  }, shell);

  function show() {
    const { width, height } = layout();
    figure.canvas.style.width = `${width}px`;
    figure.canvas.style.height = `${height}px`;
    figure.redraw();
  }
  return { figure, element: scroll, show };
}
