// Translate: a translator, its alignment, and the hypotheses that it pruned.

import { h, field, select, button, format, tinted, decodeFloats } from "../dom.js";
import { Figure, axes } from "../figure.js";
import { along, tips, zoom } from "../chart.js";
import { beamTree } from "./beam_tree.js";
import { ask, Channel } from "../ask.js";

const SAMPLES = ["Donnerstag, 14. März 2024", "2 juillet 1969", "2024年3月14日木曜日", "July 4, 1976"];

export const room = {
  lead: "A translator reads dates in fifteen languages and writes ISO dates. At every letter it attends to its input; here you see where.",
  question: {
    text: "It reads “Donnerstag, 14. März 2024” and writes 2024-03-14. Where does it look while it writes 03?",
    options: ["at 14", "at März", "everywhere equally"],
    right: 1,
    because: "It was never given the rule that März is 03: it learned both where to attend and what the word means. Choose an output letter and see.",
    state: { text: "Donnerstag, 14. März 2024", step: 6 },
  },
  surprise: {
    label: "no date at all",
    caption: "There is no date in this, yet the translator writes one, letter by letter, with a plausible score: it always answers. Look at how flat its attention is.",
    state: { text: "the dog wagged his tail", step: 0 },
  },
  defaults: (hello) => ({ text: SAMPLES[0], model: hello.opened?.kind === "translator" ? "open" : "dates", beam: 4, rank: 0, step: 0 }),
  open,
};

function open(state, shell) {
  const s = () => state.values;
  const answers = { found: null, progress: null };
  let timer = 0;
  let closed = false;
  const channel = new Channel("translate/run", (response) => { answers.found = response; show(); }, (text) => { if (!/not trained yet/.test(text)) shell.refuse(text); });

  const best = () => answers.found?.beam[Math.min(s().rank, answers.found.beam.length - 1)];
  const alignment = new Figure("Alignment", drawAlignment, { className: "middle" });
  const beamPart = beamTree({ found: () => answers.found, rank: () => s().rank }, shell);
  const tree = beamPart.figure;
  const curve = new Figure("Loss while training", drawCurve, { className: "low" });
  const sourceTokens = h("div", { className: "tokens", role: "group", "aria-label": "What was read" });
  const targetTokens = h("div", { className: "tokens", role: "group", "aria-label": "What was written: choose a token" });
  const looked = h("p", { className: "facts" });
  const side = h("div", { className: "pair" });
  const list = h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Hypotheses" });

  function show() {
    const translation = best();
    const step = Math.min(s().step, translation.target.length - 1);
    const n = translation.source.length;
    const weights = decodeFloats(translation.weights);
    const row = weights.subarray(step * n, (step + 1) * n);
    sourceTokens.replaceChildren(...translation.source.map((piece, i) => {
      const chip = h("span", { className: "button looked", title: format(row[i], 3) }, piece === " " ? "␣" : piece);
      chip.style.setProperty("--share", `${Math.round(60 * (row[i] || 0))}%`);
      return chip;
    }));
    if (targetTokens.children.length !== translation.target.length) {
      targetTokens.replaceChildren(...translation.target.map((_, i) => button("", () => state.set({ step: i }))));
    }
    [...targetTokens.children].forEach((token, i) => {
      token.textContent = translation.target[i] === " " ? "␣" : translation.target[i];
      token.setAttribute("aria-pressed", String(i === step));
    });
    const most = row.length ? row.indexOf(Math.max(...row)) : 0;
    looked.replaceChildren(...(translation.target.length ? [h("span", {}, "writing ", tinted("query", translation.target[step]), ", it looked most at ", tinted("key", translation.source[most]), ", ", tinted("weight", format(row[most], 3))),
      h("span", {}, "probability: ", tinted("answer", `${format(100 * Math.exp(translation.log_p[step]), 3)} %`))] : [h("span", {}, "Nothing was written.")]));
    const { greedy, beam } = answers.found;
    side.replaceChildren(...[["Greedy: the best token at every step", greedy], [`Beam of ${beam.length}: the best of several ways`, beam[0]]].map(([name, one]) =>
      h("div", { className: "stack" }, h("p", { className: "label" }, name), h("p", {}, tinted("answer", one.text || "–")), h("p", { className: "note" }, `score ${format(one.score)}; log p ${format(one.log_p.reduce((a, b) => a + b, 0))}`))));
    if (list.found !== answers.found) {
      // Made once for each answer: a button that is replaced while it is pressed would not be clicked.
      list.found = answers.found;
      list.replaceChildren(h("table", { className: "data" },
        h("thead", {}, h("tr", {}, ...["choose", "score", "written"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...beam.map((one, i) => h("tr", {}, h("td", {}, button(`Look at ${i + 1}`, () => state.set({ rank: i }), { className: "small" })), h("td", {}, format(one.score)), h("td", {}, one.text))))));
    }
    list.querySelectorAll("button").forEach((choice, i) => choice.setAttribute("aria-pressed", String(i === Math.min(s().rank, beam.length - 1))));
    alignment.label(`Alignment: rows are what was written, ${translation.text}; columns what was read`);
    tree.label(`The beam as a tree; the best way writes ${beam[0].text} with score ${format(beam[0].score)}`);
    shell.code(answers.found.python, answers.found.command);
    shell.announce(`Written: ${translation.text}`);
    alignment.redraw();
    beamPart.show();
  }

  const shown = (text) => (text === " " ? "a space" : text);
  const layout = (scene, translation) => ({ left: 40, top: 34, cell: Math.min((scene.width - 46) / translation.source.length, 34), high: Math.min((scene.height - 40) / Math.max(1, translation.target.length), 34) });
  function drawAlignment(scene) {
    const translation = best();
    if (!translation) return;
    const { left, top, cell, high } = layout(scene, translation);
    const [columns, rows] = [translation.source.length, translation.target.length];
    scene.cells(left, top, cell * columns, high * rows, rows, columns, decodeFloats(translation.weights));
    translation.source.forEach((piece, i) => scene.text(left + (i + 0.5) * cell, top - 8, piece, "key", { anchor: "middle", size: Math.min(14, cell + 4) }));
    translation.target.forEach((piece, i) => scene.text(left - 10, top + (i + 0.5) * high + 5, piece, i === s().step ? "query" : "muted", { anchor: "end", size: 14, weight: i === s().step ? 700 : 400 }));
    scene.rect(left, top + Math.min(s().step, rows - 1) * high, cell * columns, high, null, { stroke: "query" });
  }
  tips(alignment, {
    count: () => (best() ? best().target.length * best().source.length : 0),
    columns: () => best().source.length,
    at(i) {
      const translation = best();
      const { left, top, cell, high } = layout({ width: alignment.canvas.clientWidth, height: alignment.canvas.clientHeight }, translation);
      const [row, column] = [Math.floor(i / translation.source.length), i % translation.source.length];
      return { x: left + (column + 0.5) * cell, y: top + (row + 0.5) * high, text: `writing ${shown(translation.target[row])}, it looked at ${shown(translation.source[column])}: ${format(decodeFloats(translation.weights)[i], 3)}` };
    },
    near(x, y) {
      const translation = best();
      if (!translation) return null;
      const { left, top, cell, high } = layout({ width: alignment.canvas.clientWidth, height: alignment.canvas.clientHeight }, translation);
      const [row, column] = [Math.floor((y - top) / high), Math.floor((x - left) / cell)];
      return row >= 0 && row < translation.target.length && column >= 0 && column < translation.source.length ? row * translation.source.length + column : null;
    },
    chosen: (i) => state.set({ step: Math.floor(i / best().source.length) }),
  }, shell);
  alignment.canvas.addEventListener("click", (event) => {
    const translation = best();
    if (!translation) return;
    const { top, high } = layout({ width: alignment.canvas.clientWidth, height: alignment.canvas.clientHeight }, translation);
    const step = Math.floor((event.offsetY - top) / high);
    if (step >= 0 && step < translation.target.length) state.set({ step });
  });

  // The translator is trained on first use, in the background, with a curve to watch.
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Training" });
  const stage = h("p", { role: "status" });
  const start = button("Train it now, about a minute", () => follow("translate/train"));
  const stop = button("Stop", () => follow("translate/stop"), { className: "quiet" });
  let zoomed = null; // visible steps; not part of the address, since a training is not
  const steps = () => zoomed ?? [answers.progress?.steps[0] ?? 0, Math.max(answers.progress?.steps.at(-1) ?? 1, 1)];
  const stepAt = (i) => ({ x: curve.places.sx(answers.progress.steps[i]), y: curve.places.sy(answers.progress.losses[i]), text: `step ${answers.progress.steps[i]}: loss ${format(answers.progress.losses[i], 3)}` });
  const counted = () => (curve.places ? answers.progress?.steps.length ?? 0 : 0);
  function drawCurve(scene) {
    const { progress } = answers;
    if (!progress?.steps.length) return scene.text(scene.width / 2, scene.height / 2, "The curve begins when training does.", "muted", { anchor: "middle" });
    const places = (curve.places = axes(scene, { x: steps(), y: [0, Math.max(...progress.losses)], xName: "step", small: true, margin: { bottom: 34 } }));
    const { sx, sy } = places;
    scene.within(places, () => scene.line(progress.steps.map((at, i) => [sx(at), sy(progress.losses[i])]), "answer", { width: 2 }));
    curve.label(`Loss while training: ${format(progress.losses.at(-1), 3)} after ${progress.steps.at(-1)} steps`);
    return undefined;
  }
  tips(curve, { count: counted, at: stepAt, near: (x) => along(x, counted(), stepAt) }, shell);
  const zoomCurve = zoom(curve, "steps", { all: () => [answers.progress?.steps[0] ?? 0, answers.progress?.steps.at(-1) ?? 1], view: steps, show: (ends) => { zoomed = ends; curve.redraw(); } });
  const training = h("section", { className: "panel stack wide", "aria-label": "Training" }, h("h2", {}, "The date translator"), stage, h("div", { className: "row" }, start, stop), bar, curve.element, zoomCurve);
  async function follow(path = "translate/progress") {
    clearTimeout(timer);
    let response;
    try { response = await ask(path, {}); } catch (error) { return shell.refuse(error.message); }
    if (closed) return undefined;
    const before = answers.progress?.stage;
    answers.progress = response;
    showStage();
    if (response.stage === "training") timer = setTimeout(follow, 400);
    if (response.stage === "ready" && before && before !== "ready") run();
    return undefined;
  }
  function showStage() {
    const { stage: now, share, exact } = answers.progress;
    const needed = s().model === "dates" && now !== "ready";
    training.hidden = !needed && now !== "training";
    work.hidden = needed;
    start.hidden = now === "training";
    stop.hidden = now !== "training";
    bar.value = share;
    stage.textContent = { none: "It is not trained yet. It learns from 15,000 made-up dates, once; you can go on playing in other rooms meanwhile.",
      training: `Training, ${Math.round(100 * share)} % done${exact === null ? "" : `; ${format(exact, 3)} % of unseen dates are right so far`}.`,
      failed: "Training ended before it was done. Try once more; the package extra qkv[translate] must be installed.", ready: "" }[now];
    curve.redraw();
  }

  const text = h("input", { type: "text", maxLength: 400, input: () => state.set({ text: text.value, rank: 0 }, { settled: false }), change: () => state.set({ text: text.value }) });
  const beamSize = select(["1", "2", "3", "4", "5", "8", "10"], (value) => state.set({ beam: Number(value), rank: 0 }));
  const opened = shell.hello.opened?.kind === "translator";
  const model = select([["dates", "dates, trained here"], ...(opened ? [["open", shell.hello.opened.name]] : [])], (value) => state.set({ model: value, rank: 0, step: 0 }));
  const work = h("div", { className: "room with-controls wide" },
    h("section", { className: "panel stack", "aria-label": "Translation" },
      h("span", { className: "label" }, "What was read"), sourceTokens, h("span", { className: "label" }, "What was written: choose a token to see what it looked at"), targetTokens, looked, alignment.element),
    h("section", { className: "panel stack", "aria-label": "Controls" },
      field("Text", text), h("div", { className: "row" }, ...SAMPLES.map((sample) => button(sample, () => state.set({ text: sample, rank: 0, step: 0 }), { className: "small" }))),
      h("div", { className: "row" }, field("Translator", model), field("Beam", beamSize)), side),
    h("section", { className: "panel stack wide", "aria-label": "Beam" }, h("h2", {}, "The beam as a tree: all hypotheses considered"), h("p", { className: "note" }, "Each column is a step; each number the log p so far, in a box the score of what ends. Faint ones were looked at and pruned."), beamPart.element, list));
  const element = h("div", { className: "room" }, training, work);

  function run() {
    if (s().model === "dates" && answers.progress?.stage !== "ready") return;
    channel.ask({ text: s().text, model: s().model, beam: s().beam }, JSON.stringify([s().model, s().beam]));
  }

  training.hidden = true;
  return {
    element,
    update(before) {
      const values = s();
      if (document.activeElement !== text) text.value = values.text;
      beamSize.value = String(values.beam);
      model.value = values.model;
      if (!before) follow().then(run);
      else if (["text", "model", "beam"].some((name) => before[name] !== values[name])) { if (answers.progress) showStage(); run(); }
      else if (answers.found) show();
    },
    figures: () => [alignment, tree],
    rows() {
      const translation = best();
      if (!translation) return [];
      const weights = decodeFloats(translation.weights);
      return [["written", "read", "weight"], ...Array.from(weights, (weight, i) => [translation.target[Math.floor(i / translation.source.length)], translation.source[i % translation.source.length], weight])];
    },
    summary: () => (best() ? `${s().text} → ${best().text}, score ${format(best().score)}.` : ""),
    redraw: () => [alignment, tree, curve].forEach((figure) => figure.redraw()),
    close() {
      closed = true;
      clearTimeout(timer);
      channel.close();
      [alignment, tree, curve].forEach((figure) => figure.close());
    },
  };
}
