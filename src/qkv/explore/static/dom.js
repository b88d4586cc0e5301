// Elements without markup: text stays text, whatever it holds.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name in element && !name.startsWith("aria") && name !== "list" && name !== "role") {
      element[name] = value;
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

let numbered = 0;
export const fresh = (name) => `${name}-${++numbered}`;

// A label, its control, and an optional suffix.
export function field(label, control, ...rest) {
  control.id ||= fresh("field");
  return h("div", { className: "field" }, h("label", { htmlFor: control.id }, label), control, ...rest);
}

export function select(options, change) {
  const element = h("select", { change: () => change(element.value) });
  setOptions(element, options);
  return element;
}

// Options as [value, text] or as plain text; left alone where they are the same already.
export function setOptions(element, options) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  const now = [...element.options].map((option) => `${option.value}\n${option.text}`).join("\n");
  if (now === pairs.map((pair) => pair.join("\n")).join("\n")) return;
  element.replaceChildren(...pairs.map(([value, text]) => h("option", { value }, text)));
}

export function button(text, click, attributes = {}) {
  return h("button", { type: "button", click, ...attributes }, text);
}

// A range whose steps are even in the logarithm where `log` is set; `change` is told what is chosen
// and whether the hand has let go.
export function slider(low, high, change, { log = false, steps = 400 } = {}) {
  const inner = log ? Math.log : Number;
  const outer = log ? Math.exp : Number;
  let [a, b] = [inner(low), inner(high)];
  const element = h("input", { type: "range", min: 0, max: steps, step: 1 });
  const value = () => Number(outer(a + ((b - a) * element.value) / steps).toPrecision(4));
  element.addEventListener("input", () => change(value(), false));
  element.addEventListener("change", () => change(value(), true));
  element.show = (number, spoken) => {
    const place = Math.round(((inner(number) - a) / (b - a)) * steps);
    element.value = Math.max(0, Math.min(steps, place));
    element.setAttribute("aria-valuetext", spoken ?? format(number));
  };
  element.span = (from, to) => { [a, b] = [inner(from), inner(to)]; };
  return element;
}

// Readable numbers, with four digits.
export function format(number, digits = 4) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e7 || size < 1e-4) return number.toExponential(2).replace("e+", "e");
  const text = size >= 10000 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(digits)));
  return text.replace("-", "−");
}

// Values as swatches and numbers in the colour that query, key, weight and answer have everywhere.
export const tinted = (kind, text) => h("span", { className: `is-${kind}` }, text);

export function decodeDoubles(text) {
  return new Float64Array(bytes(text).buffer);
}

export function decodeFloats(text) {
  return new Float32Array(bytes(text).buffer);
}

function bytes(text) {
  const raw = atob(text);
  const array = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) array[i] = raw.charCodeAt(i);
  return array;
}
