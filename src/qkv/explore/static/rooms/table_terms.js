// Further terms of a query to a table: more keys, groups, and the rows' own weights.

import { h, field, select, setOptions, button, fresh } from "../dom.js";

const MOST = 3; // keys beside the first
const SOFT = (name) => !["equal", "euclidean"].includes(name);

export function furtherTerms(state, { columns, usual }) {
  const s = () => state.values;
  const also = () => {
    try {
      const list = JSON.parse(s().also || "[]");
      const text = (term, name) => (typeof term?.[name] === "string" ? term[name] : "");
      return Array.isArray(list) ? list.slice(0, MOST).map((term) => Object.fromEntries(["key", "query", "similarity", "bandwidth"].map((name) => [name, text(term, name)]))) : [];
    } catch { return []; } // a link that was cut off
  };
  const write = (list) => state.set({ also: list.length ? JSON.stringify(list) : "", low: "", high: "" });
  const column = (name) => columns().find((one) => one.name === name);
  const change = (i, patch) => write(also().map((term, at) => (at === i ? { ...term, ...patch } : term)));

  // A key of its own column, compared in its own way.
  function furtherKey(i) {
    const key = select([], (name) => change(i, { key: name, similarity: usual(column(name)), bandwidth: "", query: "" }));
    const query = h("input", { type: "text", change: () => change(i, { query: query.value }) });
    const similarity = select([], (name) => change(i, { similarity: name }));
    const bandwidth = h("input", { type: "number", min: 0, step: "any", placeholder: "chosen for me", change: () => change(i, { bandwidth: Number(bandwidth.value) > 0 ? bandwidth.value : "" }) });
    const width = field("Its bandwidth", bandwidth);
    const number = i + 2;
    const element = h("fieldset", {}, h("legend", {}, `Key ${number}`),
      h("div", { className: "row" }, field(`Column of key ${number}`, key), field(`Ask key ${number} for`, query)),
      h("div", { className: "row" }, field(`Similarity of key ${number}`, similarity), width, button("Remove", () => write(also().filter((_, at) => at !== i)), { "aria-label": `Remove key ${number}` })));
    function show(term) {
      setOptions(key, columns().map((one) => one.name));
      setOptions(similarity, column(term.key)?.similarities ?? []);
      [key.value, similarity.value] = [term.key, term.similarity];
      if (document.activeElement !== query) query.value = term.query;
      if (document.activeElement !== bandwidth) bandwidth.value = term.bandwidth;
      width.hidden = !SOFT(term.similarity);
    }
    return { element, show };
  }
  const keys = Array.from({ length: MOST }, (_, i) => furtherKey(i));
  const add = button("Add a key", () => {
    const taken = [s().key, s().value, ...also().map((term) => term.key)];
    const free = columns().find((one) => !taken.includes(one.name)) ?? columns().find((one) => one.name !== s().key) ?? columns()[0];
    // A text is asked for by itself; the rest starts in the middle.
    const query = free.ends ? String(Number(((free.ends[0] + free.ends[1]) / 2).toPrecision(3))) : "";
    write([...also(), { key: free.name, query, similarity: usual(free), bandwidth: "" }]);
    keys[also().length - 1]?.element.querySelector("input")?.focus();
  });

  const by = select([], (name) => state.set({ by: name }));
  const weight = select([], (name) => state.set({ weight: name }));
  const decay = select([], (name) => state.set({ decay: name, half_life: name && !s().half_life ? (column(name).kind === "time" ? "90d" : "1") : name ? s().half_life : "", as_of: "" }));
  const life = h("input", { type: "text", change: () => state.set({ half_life: life.value }) });
  const asOf = h("input", { type: "text", change: () => state.set({ as_of: asOf.value }) });
  const ageing = h("div", { className: "row" }, field("Half-life", life), field("As of", asOf));

  const summary = h("summary", {}, "More terms: keys, groups, weights, age");
  const element = h("details", { className: "more", id: fresh("more") }, summary,
    h("div", { className: "stack" }, ...keys.map((one) => one.element), add,
      field("An answer for each", by), field("Rows are multiplied by", weight), field("Older rows weigh less, by", decay), ageing));

  function show() {
    const list = also();
    keys.forEach((one, i) => { one.element.hidden = i >= list.length; if (list[i]) one.show(list[i]); });
    add.disabled = list.length >= Math.min(MOST, columns().length - 1);
    const named = (kinds) => columns().filter((one) => kinds.includes(one.kind)).map((one) => [one.name, one.name]);
    setOptions(by, [["", "all rows together"], ...named(["number", "time", "text", "boolean"])]);
    setOptions(weight, [["", "nothing"], ...named(["number"])]);
    setOptions(decay, [["", "nothing"], ...named(["time", "number"])]);
    [by.value, weight.value, decay.value] = [s().by, s().weight, s().decay];
    ageing.hidden = !s().decay;
    if (document.activeElement !== life) life.value = s().half_life;
    if (document.activeElement !== asOf) asOf.value = s().as_of;
    if (list.length || s().by || s().weight || s().decay) element.open = true;
  }
  return { element, also, show };
}
