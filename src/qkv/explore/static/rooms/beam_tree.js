// The beam as a tree: at each step, hypotheses that continue, end, or are pruned.

import { h, format } from "../dom.js";
import { Figure } from "../figure.js";
import { nearest, tips } from "../chart.js";

const [NEAR, FAR] = [58, 84]; // pixels from one token to the next, as there is room
const ROW = 30;
const TOP = 34;

const FATES = { kept: "goes on", ended: "ends here", pruned: "pruned: others were likelier" };
// Log p, rounded.
const brief = (number) => (Math.abs(number) < 0.005 ? "−0" : format(number, 3));
const piece = (text) => (text === " " ? "␣" : text);

// `found()` is the answer of translate/run, `rank()` the hypothesis that is looked at.
export function beamTree({ found, rank }, shell) {
  const figure = new Figure("The beam as a tree", draw, { className: "tree" });
  const scroll = h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "The beam, step by step" }, figure.element);

  // Nodes of a step are in one column: those that continue first, in their order.
  let laid = { tree: null };
  function layout() {
    const { tree, beam } = found();
    if (laid.tree === tree) return laid;
    const steps = [];
    tree.forEach((node, i) => { (steps[node.step] ??= []).push(i); });
    const row = new Array(tree.length);
    const order = { kept: 0, ended: 1, pruned: 2 };
    for (const siblings of steps) [...siblings].sort((a, b) => order[tree[a].fate] - order[tree[b].fate]).forEach((i, at) => { row[i] = at; });
    const deepest = Math.max(...steps.map((siblings) => siblings.length));
    const apart = Math.max(NEAR, Math.min(FAR, (scroll.clientWidth - 70) / steps.length));
    laid = { tree, row, apart, steps: steps.length, width: 70 + apart * steps.length, height: TOP + ROW * deepest + 8, ways: beam.map((one) => one.way) };
    return laid;
  }
  const place = (i) => (i < 0 ? { x: 14, y: TOP } : { x: 40 + laid.apart * laid.tree[i].step, y: TOP + ROW * laid.row[i] });

  function draw(scene) {
    if (!found()) return;
    const { tree, ways } = layout();
    const best = new Set(ways[Math.min(rank(), ways.length - 1)]);
    scene.text(14, 12, "begin", "muted", { size: 10, anchor: "middle" });
    for (let step = 0; step < laid.steps; step++) scene.text(40 + laid.apart * step, 12, String(step + 1), "muted", { size: 10, anchor: "middle" });
    scene.circle(14, TOP, 4, "answer");
    tree.forEach((node, i) => {
      const [from, to] = [place(node.parent), place(i)];
      const isBest = best.has(i);
      scene.line([[from.x + 9, from.y], [to.x - 11, to.y]], isBest ? "answer" : node.fate === "pruned" ? "line" : "key", { width: isBest ? 2.5 : node.fate === "pruned" ? 1 : 1.2, opacity: isBest ? 1 : 0.7 });
    });
    tree.forEach((node, i) => {
      const { x, y } = place(i);
      const isBest = best.has(i);
      const colour = isBest ? "answer" : node.fate === "pruned" ? "muted" : "ink";
      if (node.fate === "ended") scene.rect(x - 10, y - 10, 20, 20, "cell", { stroke: isBest ? "answer" : "muted" });
      scene.text(x, y + 5, piece(node.text).slice(0, 6), colour, { anchor: "middle", size: node.fate === "pruned" ? 12 : 14, weight: isBest ? 700 : node.fate === "pruned" ? 400 : 600 });
      scene.text(x + 12, y - 5, brief(node.fate === "ended" ? node.score : node.total), colour, { size: 9 });
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
