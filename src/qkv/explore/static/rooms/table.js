// Table: a soft query to a table, and the weights of its rows.

import { h, field, select, setOptions, slider, format, tinted } from "../dom.js";
import { Figure, axes, span } from "../figure.js";
import { along as alongX, nearest, tips, zoom } from "../chart.js";
import { furtherTerms } from "./table_terms.js";
import { Channel } from "../ask.js";
import { dropPlace } from "../drop.js";

const HOW = ["source", "key", "value", "similarity", "where", "by", "weight", "decay", "half_life", "as_of", "file"];
const SHOWN = 12; // rows in the table below the figure

export const room = {
  lead: "A database answers exactly or not at all. Ask it softly instead: every row answers, weighted by the similarity of its key.",
  question: {
    text: "Nobody in this table has a grade of exactly 3.475. What does the hard look-up, “equal”, say?",
    options: ["the salary of 3.47", "a mean of neighbours", "nothing at all"],
    right: 2,
    because: "A dictionary answers equal keys only. Choose gaussian and the same query has an answer, with an interval.",
    state: { source: "salaries", key: "gpa", value: "salary", similarity: "equal", query: "3.475", where: "" },
  },
  surprise: {
    label: "a name misspelt",
    caption: "“Jon Do” is in no row. Compared letter by letter, the table still finds the most similar name, with its weight.",
    state: { source: "students", key: "name", value: "major", similarity: "fuzzy", bandwidth: "", query: "Jon Do" },
  },
  defaults: (hello) => ({
    source: hello.opened?.kind === "table" ? "open" : "salaries", file: "", key: "gpa", value: "salary", similarity: "gaussian",
    bandwidth: "0.1", where: "", query: "3.5", low: "", high: "", also: "", by: "", weight: "", decay: "", half_life: "", as_of: "", view: "",
  }),
  open,
};

function open(state, shell) {
  const answers = { columns: [], rows: null, answer: null, curve: null };
  const s = () => state.values;
  const wide = (text) => (text === "" ? null : Number(text));
  const body = () => ({ ...Object.fromEntries(HOW.map((name) => [name, s()[name]])), bandwidth: wide(s().bandwidth), also: terms.also().map((term) => ({ ...term, bandwidth: wide(term.bandwidth) })) });
  const column = (name) => answers.columns.find((one) => one.name === name);

  const channels = {
    columns: new Channel("table/columns", (response) => {
      Object.assign(answers, response);
      showColumns();
      if (!column(s().key) || !column(s().value)) return settle();
      askAll();
    }, (text) => { Object.assign(answers, { columns: [], rows: null, answer: null, curve: null }); shell.refuse(text); clear(); }),
    ask: new Channel("table/ask", (response) => { answers.answer = response; showAnswer(); weights.redraw(); }, (text) => { answers.answer = null; clear(); shell.refuse(text); }),
    curve: new Channel("table/curve", (response) => { answers.curve = response; curveNote.textContent = ""; curve.redraw(); },
      (text) => { answers.curve = null; curveNote.textContent = text[0].toUpperCase() + text.slice(1) + "."; curve.redraw(); }),
  };

  // If the table lacks the requested columns, use others.
  function settle() {
    const numbers = answers.columns.filter((one) => one.kind === "number");
    const [key, value] = numbers.length > 1 ? numbers : [answers.columns[0], answers.columns[1] ?? answers.columns[0]];
    chooseKey(key.name, { ...PLAIN, value: value.name });
  }
  const usual = (described) => (described.kind === "text" ? "fuzzy" : described.similarities.includes("gaussian") ? "gaussian" : "equal");
  const PLAIN = { also: "", by: "", weight: "", decay: "", half_life: "", as_of: "", view: "" };
  function chooseKey(name, more = {}) {
    const described = column(name);
    const middle = described.ends ? String(Number(((described.ends[0] + described.ends[1]) / 2).toPrecision(3))) : "";
    state.set({ key: name, similarity: usual(described), bandwidth: "", query: middle, low: "", high: "", view: "", ...more });
  }

  const sources = select([], (value) => state.set({ source: value, file: "", where: "", ...PLAIN, ...(value === "students" ? room.surprise.state : value === "salaries" ? { key: "gpa", value: "salary", similarity: "gaussian", bandwidth: "0.1", query: "3.5" } : {}) }));
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
  const terms = furtherTerms(state, { columns: () => answers.columns, usual });
  const weights = new Figure("Weights over the keys", drawWeights);
  const curve = new Figure("The answer over a range of queries", drawCurve, { className: "low" });

  function showColumns() {
    const choices = [["salaries", "Sample: salaries"], ["students", "Sample: students"]];
    if (shell.hello.opened?.kind === "table") choices.unshift(["open", shell.hello.opened.name]);
    if (!choices.some(([name]) => name === s().source)) choices.unshift([s().source, s().file || "Your file"]);
    setOptions(sources, choices);
    sources.value = s().source;
    const names = answers.columns.map((one) => one.name);
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
    terms.show();
    const ends = range();
    [low.value, high.value] = ends ? ends.map(String) : ["", ""];
  }

  function range() {
    const ends = column(s().key)?.ends ?? keyEnds();
    if (!ends) return null;
    return [s().low === "" ? ends[0] : Number(s().low), s().high === "" ? ends[1] : Number(s().high)];
  }
  // Where the range of a column is unknown, that of the rows in the answer is used.
  function keyEnds() {
    const keys = (answers.answer?.rows ?? []).map((row) => row.cells[0]).filter((cell) => typeof cell === "number");
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
  const asked = () => [[s().key, s().query], ...terms.also().map((term) => [term.key, term.query])];
  const interval = (ends) => (ends ? `${format(ends[0])} to ${format(ends[1])}` : "unknown");
  const tableOf = (head, lines) => h("table", { className: "data" },
    h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...lines.map((line) => h("tr", {}, ...line))));
  function share(weight, most) {
    const bar = h("i", {});
    bar.style.width = `${Math.round((60 * weight) / most)}px`;
    return h("td", { className: "share" }, bar, format(weight, 3));
  }
  function showAnswer() {
    const { answer } = answers;
    const summary = answer.groups ? showGroups(answer) : showOne(answer);
    plan.textContent = answer.plan;
    shell.code(answer.python, answer.command);
    weights.label(`Weights over the keys. ${summary}.`);
    shell.announce(summary);
    if (!column(s().key)?.ends && range()) askCurve();
  }
  function showOne(answer) {
    const number = typeof answer.value === "number";
    const hasValue = answer.value !== null;
    rowsTitle.textContent = "The rows that weighed most";
    facts.replaceChildren(
      ...asked().map(([name, query]) => h("span", {}, `${name} `, tinted("query", query))),
      h("span", {}, `${s().value} `, tinted("answer", hasValue ? shown(answer.value) : "no row has weight")),
      ...(number ? [h("span", {}, "± ", tinted("answer", format(answer.std))),
        h("span", {}, "90 % interval of the mean ", tinted("answer", interval(answer.interval)))] : []),
      h("span", {}, "effective rows ", tinted("weight", format(answer.effective, 3))));
    const most = answer.rows[0]?.weight || 1;
    rows.replaceChildren(tableOf(["weight", ...answer.columns], answer.rows.slice(0, SHOWN).map((row) => [share(row.weight, most), ...row.cells.map((cell) => h("td", {}, shown(cell)))])));
    return hasValue ? `${s().value} at ${s().query}: ${shown(answer.value)}, from ${format(answer.effective, 3)} effective rows` : "No row has weight for this query";
  }
  function showGroups(answer) {
    rowsTitle.textContent = `An answer for each ${s().by}`;
    facts.replaceChildren(
      ...asked().map(([name, query]) => h("span", {}, `${name} `, tinted("query", query))),
      h("span", {}, "groups ", tinted("answer", String(answer.of))),
      h("span", {}, "effective rows ", tinted("weight", format(answer.groups.reduce((sum, one) => sum + one.effective, 0), 3)), " in all"));
    const most = Math.max(...answer.groups.map((one) => one.effective), 1e-9);
    rows.replaceChildren(tableOf(["effective rows", s().by, s().value, "90 % interval of the mean"], answer.groups.map((one) => [share(one.effective, most), h("td", {}, shown(one.group)), h("td", {}, shown(one.value)), h("td", {}, one.interval ? interval(one.interval) : "–")])));
    return `${answer.of} groups answer`;
  }

  // Keys and values as a scatter where both are numbers, else as bars.
  function scattered() {
    const { answer } = answers;
    if (!answer?.rows.length) return null;
    const [x, y] = [0, answer.columns.indexOf(s().value)];
    if (!answer.rows.every((row) => typeof row.cells[x] === "number" && typeof row.cells[y] === "number")) return null;
    return { xs: answer.rows.map((row) => row.cells[x]), ys: answer.rows.map((row) => row.cells[y]) };
  }
  const ends = () => { const { xs } = scattered() ?? { xs: [0, 1] }; return span(xs, Number.isFinite(Number(s().query)) ? [Number(s().query)] : []); };
  const view = () => (s().view ? s().view.split(",").map(Number) : ends());
  const bars = (width, height) => {
    const list = answers.answer?.groups ?? answers.answer?.rows ?? [];
    const left = Math.min(190, width * 0.38);
    const shown = list.slice(0, Math.max(3, Math.floor((height - 30) / 26)));
    return { left, list: shown, gap: Math.max(26, Math.min(48, (height - 30) / shown.length)), wide: width - left - Math.min(150, width * 0.36) };
  };
  function drawWeights(scene) {
    const { answer } = answers;
    weights.places = null;
    zoomWeights.hidden = !scattered();
    if (!answer?.rows.length && !answer?.groups?.length) return scene.text(scene.width / 2, scene.height / 2, answer ? "No row weighs anything here: widen the bandwidth." : "Loading …", "muted", { anchor: "middle" });
    if (answer.groups) return drawGroups(scene, answer.groups);
    const most = answer.rows[0].weight || 1;
    const scatter = scattered();
    if (scatter) {
      const { xs, ys } = scatter;
      const q = Number(s().query);
      const places = (weights.places = axes(scene, { x: view(), y: span(ys), xName: s().key, yName: s().value, margin: { left: 62 } }));
      const { sx, sy, top, bottom } = places;
      const shares = answer.rows.map((row) => row.weight / most);
      // The heaviest last, so that they lie on top.
      const order = shares.map((_, i) => shares.length - 1 - i);
      return scene.within(places, () => {
        scene.dots(order.map((i) => sx(xs[i])), order.map((i) => sy(ys[i])), order.map((i) => 2.5 + 6 * Math.sqrt(shares[i])), order.map((i) => shares[i]));
        scene.line([[sx(q), top], [sx(q), bottom]], "query", { width: 2 });
        if (typeof answer.value !== "number") return;
        if (answer.interval) scene.line(answer.interval.map((at) => [sx(q), sy(at)]), "answer", { width: 6, opacity: 0.4 });
        scene.circle(sx(q), sy(answer.value), 6, "answer", { stroke: "ground" });
      });
    }
    const { left, list, gap, wide: room } = bars(scene.width, scene.height);
    const value = answer.columns.indexOf(s().value);
    list.forEach((row, i) => {
      const y = 12 + i * gap;
      const long = Math.max(1, room * (row.weight / most));
      scene.text(left - 8, y + 14, clipped(row.cells[0], left - 12), "key", { anchor: "end", size: 13 });
      scene.rect(left, y, long, 18, "weight", { opacity: 0.85 });
      scene.text(left + long + 8, y + 14, clipped(`${format(row.weight, 3)}  ${shown(row.cells[value])}`, scene.width - left - long - 10), "ink", { size: 13 });
    });
    return undefined;
  }
  // Text that fits: a letter takes about 7.5 pixels.
  const clipped = (text, room) => { const most = Math.max(3, Math.floor(room / 7.5)); const whole = shown(text); return whole.length > most ? `${whole.slice(0, most - 1)}…` : whole; };
  function drawGroups(scene, groups) {
    const { left, list, gap, wide: room } = bars(scene.width, scene.height);
    const numbers = groups.every((one) => typeof one.value === "number");
    const [low, high] = numbers ? span(groups.map((one) => one.value), groups.flatMap((one) => one.interval ?? [])) : [0, 1];
    const most = Math.max(...groups.map((one) => one.effective), 1e-9);
    const at = (value) => left + ((value - low) / (high - low)) * room;
    list.forEach((one, i) => {
      const y = 22 + i * gap;
      scene.text(left - 8, y + 5, clipped(one.group, left - 12), "key", { anchor: "end", size: 13 });
      if (numbers) {
        scene.line([[left, y], [left + room, y]], "line", { width: 1 });
        if (one.interval) scene.line(one.interval.map((end) => [at(end), y]), "answer", { width: 6, opacity: 0.35 });
        scene.circle(at(one.value), y, 3 + 5 * Math.sqrt(one.effective / most), "answer", { stroke: "ground" });
      } else scene.rect(left, y - 9, Math.max(1, room * (one.effective / most)), 18, "weight", { opacity: 0.85 });
      scene.text(left + room + 8, y + 5, clipped(one.value, scene.width - left - room - 10), "answer", { size: 13 });
    });
  }
  const mark = (i) => {
    const { answer } = answers;
    const { gap } = bars(weights.canvas.clientWidth, weights.canvas.clientHeight);
    if (answer.groups) {
      const one = answer.groups[i];
      return { x: weights.canvas.clientWidth / 2, y: 22 + i * gap, text: `${shown(one.group)}: ${shown(one.value)}, 90 % interval ${interval(one.interval)}, ${format(one.effective, 3)} effective rows` };
    }
    const row = answer.rows[i];
    const text = `${answer.columns.slice(0, 4).map((name, at) => `${name} ${shown(row.cells[at])}`).join(", ")}: weight ${format(row.weight, 3)}`;
    const scatter = weights.places && scattered();
    return scatter ? { x: weights.places.sx(scatter.xs[i]), y: weights.places.sy(scatter.ys[i]), text } : { x: weights.canvas.clientWidth / 2, y: 12 + i * gap, text };
  };
  const marked = () => (weights.places ? answers.answer.rows.length : bars(weights.canvas.clientWidth, weights.canvas.clientHeight).list.length);
  const onBar = (y) => { const at = Math.floor((y - 8) / bars(weights.canvas.clientWidth, weights.canvas.clientHeight).gap); return at >= 0 && at < marked() ? at : null; };
  tips(weights, {
    count: () => (answers.answer ? marked() : 0),
    at: mark,
    near: (x, y) => (!answers.answer ? null : weights.places ? nearest(x, y, marked(), mark) : onBar(y)),
  }, shell);
  const zoomWeights = zoom(weights, "weights", { all: ends, view, about: () => Number(s().query), show: (to) => state.set({ view: to ? to.join(",") : "" }) });

  function drawCurve(scene) {
    curve.places = null;
    if (!answers.curve) return;
    const { grid, lines } = answers.curve;
    const finite = lines.flatMap((line) => [...line.value, ...line.low, ...line.high]).filter(Number.isFinite);
    const named = lines.length > 1;
    const places = (curve.places = axes(scene, { x: [grid[0], grid.at(-1)], y: span(finite), xName: s().key, small: true, margin: { left: 62, bottom: 34, right: named ? 90 : 12 } }));
    const { sx, sy, top: up, bottom: down } = places;
    const path = (list) => grid.map((at, i) => [sx(at), list[i] === null ? NaN : sy(list[i])]);
    lines.forEach((line, i) => {
      if (!named) scene.area([...path(line.low), ...path(line.high).reverse()].filter(([, y]) => Number.isFinite(y)), "answer", { opacity: 0.14 });
      scene.line(path(line.value), "answer", { width: 2.2, dash: [[], [7, 4], [2, 4], [10, 3, 2, 3], [4, 2], [1, 2]][i % 6] });
    });
    if (named) {
      // Names at the ends of their lines, from the top downwards, none upon another.
      const last = lines.map((line) => [path(line.value).findLast(([, y]) => Number.isFinite(y)), line.group]).filter(([end]) => end).sort((one, other) => one[0][1] - other[0][1]);
      let free = -Infinity;
      for (const [[x, y], group] of last) {
        free = Math.max(y, free + 12);
        scene.text(x + 5, free + 4, clipped(group, 84), "answer", { size: 11 });
      }
    }
    const q = Number(s().query);
    if (q >= grid[0] && q <= grid.at(-1)) scene.line([[sx(q), up], [sx(q), down]], "query", { width: 1.5 });
    const values = lines.flatMap((line) => line.value).filter(Number.isFinite);
    curve.label(`The answer over ${s().key} from ${format(grid[0])} to ${format(grid.at(-1))}: between ${format(Math.min(...values))} and ${format(Math.max(...values))}`);
  }
  const onCurve = (i) => {
    const { grid, lines } = answers.curve;
    const line = lines[Math.floor(i / grid.length)];
    const at = i % grid.length;
    const whose = lines.length > 1 ? `${shown(line.group)}, ` : "";
    return { x: curve.places.sx(grid[at]), y: line.value[at] === null ? curve.places.bottom : curve.places.sy(line.value[at]), text: `${whose}${s().key} ${format(grid[at])}: ${shown(line.value[at])}${line.low[at] === null ? "" : `, mean within ${interval([line.low[at], line.high[at]])}`}` };
  };
  const points = () => (answers.curve && curve.places ? answers.curve.grid.length * answers.curve.lines.length : 0);
  tips(curve, { count: points, at: onCurve, near: (x, y) => (answers.curve?.lines.length > 1 ? nearest(x, y, points(), onCurve, Infinity) : alongX(x, points(), onCurve)) }, shell);
  const zoomCurve = zoom(curve, "range", {
    all: () => column(s().key)?.ends ?? keyEnds() ?? [0, 1], view: () => range() ?? [0, 1],
    show: (to) => state.set(to ? { low: String(to[0]), high: String(to[1]) } : { low: "", high: "" }),
  });

  function askCurve() {
    const ends = range();
    if (column(s().key)?.kind !== "number" || column(s().value)?.kind !== "number" || !ends || s().also) {
      channels.curve.close();
      answers.curve = null;
      curvePart.hidden = true; // a curve needs one key, and numbers as key and as value
      return;
    }
    curvePart.hidden = false;
    channels.curve.ask({ ...body(), low: ends[0], high: ends[1] }, JSON.stringify([body(), ends]));
  }
  function askAll() {
    channels.ask.ask({ ...body(), query: s().query }, JSON.stringify(body()));
    askCurve();
  }

  const curvePart = h("section", { className: "panel stack wide", "aria-label": "Curve" }, h("h2", {}, "The same question over a range"), curve.element, zoomCurve, curveNote,
    h("div", { className: "row" }, field("From", low), field("To", high)));
  const rowsTitle = h("h2", {}, "The rows that weighed most");
  const element = h("div", { className: "room with-controls" },
    h("section", { className: "panel stack", "aria-label": "The answer" }, weights.element, zoomWeights,
      h("div", { className: "legend" }, tinted("query", "query"), tinted("key", "keys"), tinted("weight", "weight"), tinted("answer", "answer and its interval")), facts),
    h("section", { className: "panel stack", "aria-label": "Controls" },
      field("Table", sources), h("div", { className: "row" }, field("Key", key), field("Value", value)),
      field("Ask for", query), alongField, field("Similarity", similarity), bandwidthField, autoField, field("Where", where), terms.element, drop),
    h("section", { className: "panel stack wide", "aria-label": "Rows" }, rowsTitle, rows),
    curvePart,
    h("section", { className: "panel stack wide", "aria-label": "Plan" }, h("h2", {}, "Plan of the query"), plan));

  function update(before) {
    if (!before || before.source !== s().source) {
      answers.columns = [];
      channels.columns.ask({ source: s().source }, s().source);
      return;
    }
    showColumns();
    if (!answers.columns.length) return;
    if (!column(s().key) || !column(s().value)) settle();
    else askAll();
  }

  return {
    element,
    update,
    figures: () => [weights, curve],
    rows: () => (answers.answer?.groups ? [["effective_rows", s().by, s().value, "interval_low", "interval_high"], ...answers.answer.groups.map((one) => [one.effective, one.group, one.value, ...(one.interval ?? ["", ""])])]
      : answers.answer ? [["weight", ...answers.answer.columns], ...answers.answer.rows.map((row) => [row.weight, ...row.cells])] : []),
    summary: () => (answers.answer?.groups ? `${s().value} at ${s().key} ${s().query}, for each of ${answers.answer.of} groups by ${s().by}.` : answers.answer ? `${s().value} at ${s().key} ${s().query}: ${shown(answers.answer.value)}, from ${format(answers.answer.effective, 3)} effective rows.` : ""),
    redraw: () => [weights, curve].forEach((figure) => figure.redraw()),
    close() {
      Object.values(channels).forEach((channel) => channel.close());
      [weights, curve].forEach((figure) => figure.close());
    },
  };
}
