// Table: ask a table softly, and see which rows spoke.

import { h, field, select, setOptions, button, slider, format, tinted } from "../dom.js";
import { Figure, axes, span } from "../figure.js";
import { Channel } from "../ask.js";
import { dropPlace } from "../drop.js";

const HOW = ["source", "key", "value", "similarity", "bandwidth", "where", "file"];
const SHOWN = 12; // rows in the table below the figure

export const room = {
  lead: "A database answers exactly or not at all. Ask it softly instead: every row answers, as loudly as its key is like yours.",
  question: {
    text: "Nobody in this table has a grade of exactly 3.475. What does the hard look-up, “equal”, say?",
    options: ["the salary of 3.47", "a mean of neighbours", "nothing at all"],
    right: 2,
    because: "Equal keys or silence: that is a dictionary. Choose gaussian and the same question has an answer, with an interval.",
    state: { source: "salaries", key: "gpa", value: "salary", similarity: "equal", query: "3.475", where: "" },
  },
  surprise: {
    label: "a name misspelt",
    caption: "“Jon Do” is in no row. Compared letter by letter, the table still knows whom you meant, and says how sure it is.",
    state: { source: "students", key: "name", value: "major", similarity: "fuzzy", bandwidth: "", query: "Jon Do" },
  },
  defaults: (hello) => ({
    source: hello.opened?.kind === "table" ? "open" : "salaries", file: "", key: "gpa", value: "salary", similarity: "gaussian",
    bandwidth: "0.1", where: "", query: "3.5", low: "", high: "",
  }),
  open,
};

function open(state, shell) {
  const told = { columns: [], rows: null, answer: null, curve: null };
  const s = () => state.values;
  const body = () => ({ ...Object.fromEntries(HOW.map((name) => [name, s()[name]])), bandwidth: s().bandwidth === "" ? null : Number(s().bandwidth) });
  const column = (name) => told.columns.find((one) => one.name === name);

  const channels = {
    columns: new Channel("table/columns", (found) => {
      Object.assign(told, found);
      showColumns();
      if (!column(s().key) || !column(s().value)) return settle();
      askAll();
    }, (text) => { Object.assign(told, { columns: [], rows: null, answer: null, curve: null }); shell.refuse(text); clear(); }),
    ask: new Channel("table/ask", (found) => { told.answer = found; showAnswer(); weights.redraw(); }, (text) => { told.answer = null; clear(); shell.refuse(text); }),
    curve: new Channel("table/curve", (found) => { told.curve = found; curveNote.textContent = ""; curve.redraw(); },
      (text) => { told.curve = null; curveNote.textContent = text[0].toUpperCase() + text.slice(1) + "."; curve.redraw(); }),
  };

  // A table that has not the columns that were asked for gets those it has.
  function settle() {
    const numbers = told.columns.filter((one) => one.kind === "number");
    const [key, value] = numbers.length > 1 ? numbers : [told.columns[0], told.columns[1] ?? told.columns[0]];
    chooseKey(key.name, { value: value.name });
  }
  function chooseKey(name, more = {}) {
    const own = column(name);
    const middle = own.ends ? String(Number(((own.ends[0] + own.ends[1]) / 2).toPrecision(3))) : "";
    state.set({ key: name, similarity: own.kind === "text" ? "fuzzy" : own.similarities.includes("gaussian") ? "gaussian" : "equal", bandwidth: "", query: middle, low: "", high: "", ...more });
  }

  const sources = select([], (value) => state.set({ source: value, file: "", where: "", ...(value === "students" ? room.surprise.state : value === "salaries" ? { key: "gpa", value: "salary", similarity: "gaussian", bandwidth: "0.1", query: "3.5" } : {}) }));
  const key = select([], (value) => chooseKey(value));
  const value = select([], (chosen) => state.set({ value: chosen }));
  const similarity = select([], (chosen) => state.set({ similarity: chosen }));
  const query = h("input", { type: "text", change: () => state.set({ query: query.value }) });
  const along = slider(0, 1, (number, settled) => state.set({ query: String(number) }, { settled }));
  const alongField = field("Move the query", along);
  const bandwidth = slider(0.001, 1, (number, settled) => state.set({ bandwidth: String(number) }, { settled }), { log: true });
  bandwidth.className = "of-weight";
  const bandwidthField = field("Bandwidth", bandwidth);
  const auto = h("input", { type: "checkbox", id: "table-auto", change: () => state.set({ bandwidth: auto.checked ? "" : "0.1" }) });
  const autoField = h("div", { className: "check" }, auto, h("label", { htmlFor: "table-auto" }, "Choose the bandwidth for me (leave-one-out)"));
  const where = h("input", { type: "text", placeholder: "year >= 2020", change: () => state.set({ where: where.value }) });
  const [low, high] = ["low", "high"].map((name) => h("input", { type: "number", step: "any", change: (event) => state.set({ [name]: event.target.value }) }));
  const drop = dropPlace(shell, "Drop a CSV or Parquet file of your own", async (source, name) => state.set({ ...state.defaults, source, file: name, key: "", value: "", where: "" }));

  const facts = h("div", { className: "facts" });
  const plan = h("pre", { className: "plan", tabIndex: 0, "aria-label": "The plan" });
  const rows = h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Rows that weighed most" });
  const curveNote = h("p", { className: "note", role: "status" });
  const weights = new Figure("Weights over the keys", drawWeights);
  const curve = new Figure("The answer over a range of queries", drawCurve, { className: "low" });

  function showColumns() {
    const own = [["salaries", "Sample: salaries"], ["students", "Sample: students"]];
    if (shell.hello.opened?.kind === "table") own.unshift(["open", shell.hello.opened.name]);
    if (!own.some(([name]) => name === s().source)) own.unshift([s().source, s().file || "Your file"]);
    setOptions(sources, own);
    sources.value = s().source;
    const names = told.columns.map((one) => one.name);
    setOptions(key, names);
    setOptions(value, names);
    const chosen = column(s().key);
    setOptions(similarity, chosen?.similarities ?? []);
    [key.value, value.value, similarity.value] = [s().key, s().value, s().similarity];
    alongField.hidden = !chosen?.ends;
    const soft = !["equal", "euclidean"].includes(s().similarity);
    bandwidthField.hidden = autoField.hidden = !soft;
    if (chosen?.ends) {
      const reach = chosen.ends[1] - chosen.ends[0] || 1;
      along.span(...chosen.ends);
      along.show(Number(s().query));
      bandwidth.span(reach / 500, reach * 20);
    } else bandwidth.span(0.005, 10);
    bandwidth.show(Number(s().bandwidth) || 0.1);
    auto.checked = s().bandwidth === "";
    bandwidth.disabled = auto.checked;
    if (document.activeElement !== query) query.value = s().query;
    if (document.activeElement !== where) where.value = s().where;
    const ends = range();
    [low.value, high.value] = ends ? ends.map(String) : ["", ""];
  }

  function range() {
    const ends = column(s().key)?.ends ?? keyEnds();
    if (!ends) return null;
    return [s().low === "" ? ends[0] : Number(s().low), s().high === "" ? ends[1] : Number(s().high)];
  }
  // Where the ends of a column are not known beforehand, those of the rows that answered serve.
  function keyEnds() {
    const keys = (told.answer?.rows ?? []).map((row) => row.cells[0]).filter((cell) => typeof cell === "number");
    return keys.length > 1 ? [Math.min(...keys), Math.max(...keys)] : null;
  }

  function clear() {
    facts.replaceChildren(h("span", { className: "note" }, "No answer yet: choose what to ask."));
    rows.replaceChildren();
    plan.textContent = "";
    weights.redraw();
    showColumns();
  }

  const shown = (cell) => (typeof cell === "number" ? format(cell, 6) : cell === null ? "–" : String(cell));
  function showAnswer() {
    const { answer } = told;
    const number = typeof answer.value === "number";
    const found = answer.value !== null;
    facts.replaceChildren(
      h("span", {}, `${s().key} `, tinted("query", s().query)),
      h("span", {}, `${s().value} `, tinted("answer", found ? shown(answer.value) : "no row speaks")),
      ...(number ? [h("span", {}, "± ", tinted("answer", format(answer.std))),
        h("span", {}, "90 % interval of the mean ", tinted("answer", answer.interval ? `${format(answer.interval[0])} to ${format(answer.interval[1])}` : "unknown"))] : []),
      h("span", {}, "effective rows ", tinted("weight", format(answer.effective, 3))));
    const most = answer.rows[0]?.weight || 1;
    rows.replaceChildren(h("table", { className: "data" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "weight"), ...answer.columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...answer.rows.slice(0, SHOWN).map((row) => {
        const bar = h("i", {});
        bar.style.width = `${Math.round((60 * row.weight) / most)}px`;
        return h("tr", {}, h("td", { className: "share" }, bar, format(row.weight, 3)), ...row.cells.map((cell) => h("td", {}, shown(cell))));
      }))));
    plan.textContent = answer.plan;
    shell.code(answer.python, answer.command);
    const sentence = found ? `${s().value} at ${s().query}: ${shown(answer.value)}, from ${format(answer.effective, 3)} effective rows` : "No row speaks to this query";
    weights.label(`Weights over the keys. ${sentence}.`);
    shell.announce(sentence);
    if (!column(s().key)?.ends && range()) askCurve();
  }

  function drawWeights(scene) {
    const { answer } = told;
    if (!answer?.rows.length) return scene.text(scene.width / 2, scene.height / 2, answer ? "No row weighs anything here: widen the bandwidth, or ask elsewhere." : "Loading …", "muted", { anchor: "middle" });
    const most = answer.rows[0].weight || 1;
    const numeric = (place) => answer.rows.every((row) => typeof row.cells[place] === "number");
    if (numeric(0) && numeric(1)) {
      const [xs, ys] = [0, 1].map((place) => answer.rows.map((row) => row.cells[place]));
      const q = Number(s().query);
      const { sx, sy, top, bottom } = axes(scene, { x: span(xs, [q]), y: span(ys), xName: s().key, yName: s().value, margin: { left: 62 } });
      const shares = answer.rows.map((row) => row.weight / most);
      // The heaviest last, so that they lie on top.
      const order = shares.map((_, i) => shares.length - 1 - i);
      scene.dots(order.map((i) => sx(xs[i])), order.map((i) => sy(ys[i])), order.map((i) => 2.5 + 6 * Math.sqrt(shares[i])), order.map((i) => shares[i]));
      scene.line([[sx(q), top], [sx(q), bottom]], "query", { width: 2 });
      if (typeof answer.value === "number") {
        if (answer.interval) scene.line(answer.interval.map((at) => [sx(q), sy(at)]), "answer", { width: 6, opacity: 0.4 });
        scene.circle(sx(q), sy(answer.value), 6, "answer", { stroke: "ground" });
      }
      return undefined;
    }
    const bars = answer.rows.slice(0, Math.max(3, Math.floor((scene.height - 30) / 26)));
    const left = Math.min(190, scene.width * 0.42);
    bars.forEach((row, i) => {
      const y = 12 + i * 26;
      scene.text(left - 8, y + 14, String(row.cells[0]).slice(0, 26), "key", { anchor: "end", size: 13 });
      scene.rect(left, y, Math.max(1, (scene.width - left - 150) * (row.weight / most)), 18, "weight", { opacity: 0.85 });
      scene.text(left + Math.max(1, (scene.width - left - 150) * (row.weight / most)) + 8, y + 14, `${format(row.weight, 3)}  ${String(row.cells[1]).slice(0, 18)}`, "ink", { size: 13 });
    });
    return undefined;
  }

  function drawCurve(scene) {
    if (!told.curve) return;
    const { grid, value: answers, low: bottom, high: top } = told.curve;
    const { sx, sy, top: up, bottom: down } = axes(scene, { x: [grid[0], grid.at(-1)], y: span(answers.filter(Number.isFinite), bottom.filter(Number.isFinite), top.filter(Number.isFinite)), xName: s().key, small: true, margin: { left: 62, bottom: 34 } });
    const path = (list) => grid.map((at, i) => [sx(at), list[i] === null ? NaN : sy(list[i])]);
    scene.area([...path(bottom), ...path(top).reverse()].filter(([, y]) => Number.isFinite(y)), "answer", { opacity: 0.14 });
    scene.line(path(answers), "answer", { width: 2.2 });
    const q = Number(s().query);
    if (q >= grid[0] && q <= grid.at(-1)) scene.line([[sx(q), up], [sx(q), down]], "query", { width: 1.5 });
    curve.label(`The answer over ${s().key} from ${format(grid[0])} to ${format(grid.at(-1))}: between ${format(Math.min(...answers.filter(Number.isFinite)))} and ${format(Math.max(...answers.filter(Number.isFinite)))}`);
  }

  function askCurve() {
    const ends = range();
    if (column(s().key)?.kind !== "number" || column(s().value)?.kind !== "number" || !ends) {
      channels.curve.close();
      told.curve = null;
      curvePart.hidden = true; // a curve needs numbers as key and as value
      return;
    }
    curvePart.hidden = false;
    channels.curve.ask({ ...body(), low: ends[0], high: ends[1] }, JSON.stringify([body(), ends]));
  }
  function askAll() {
    channels.ask.ask({ ...body(), query: s().query }, JSON.stringify(body()));
    askCurve();
  }

  const curvePart = h("section", { className: "panel stack wide", "aria-label": "Curve" }, h("h2", {}, "The same question over a range"), curve.canvas, curveNote,
    h("div", { className: "row" }, field("From", low), field("To", high), button("Whole range", () => state.set({ low: "", high: "" }))));
  const element = h("div", { className: "room with-controls" },
    h("section", { className: "panel stack", "aria-label": "The answer" }, weights.canvas,
      h("div", { className: "legend" }, tinted("query", "query"), tinted("key", "keys"), tinted("weight", "weight"), tinted("answer", "answer and its interval")), facts),
    h("section", { className: "panel stack", "aria-label": "Controls" },
      field("Table", sources), h("div", { className: "row" }, field("Key", key), field("Value", value)),
      field("Ask for", query), alongField, field("Similarity", similarity), bandwidthField, autoField, field("Where", where), drop),
    h("section", { className: "panel stack wide", "aria-label": "Rows" }, h("h2", {}, "The rows that weighed most"), rows),
    curvePart,
    h("section", { className: "panel stack wide", "aria-label": "Plan" }, h("h2", {}, "How the table was asked"), plan));

  function update(before) {
    if (!before || before.source !== s().source) {
      told.columns = [];
      channels.columns.ask({ source: s().source }, s().source);
      return;
    }
    showColumns();
    if (!told.columns.length) return;
    if (!column(s().key) || !column(s().value)) settle();
    else askAll();
  }

  return {
    element,
    update,
    figures: () => [weights, curve],
    rows: () => (told.answer ? [["weight", ...told.answer.columns], ...told.answer.rows.map((row) => [row.weight, ...row.cells])] : []),
    summary: () => (told.answer ? `${s().value} at ${s().key} ${s().query}: ${shown(told.answer.value)}, from ${format(told.answer.effective, 3)} effective rows.` : ""),
    redraw: () => [weights, curve].forEach((figure) => figure.redraw()),
    close() {
      Object.values(channels).forEach((channel) => channel.close());
      [weights, curve].forEach((figure) => figure.close());
    },
  };
}
