// The guided tour: the current step, its text, and links to the next.

import { h } from "./dom.js";

export function tourBar(steps) {
  if (!steps.length) return [];
  const number = new URLSearchParams(location.search).get("tour");
  const at = Number(number) - 1;
  const step = steps[at];
  const link = (to, text, name) => h("a", { href: steps[to].address, className: "button", "aria-label": name }, text);
  if (!step) {
    return [h("p", { className: "tour-start" }, h("a", { href: steps[0].address }, `Take the tour, ${steps.length} steps`))];
  }
  const leave = new URLSearchParams(location.search);
  leave.delete("tour");
  const rest = leave.toString();
  return [h("section", { className: "tour", "aria-label": "Tour" },
    h("p", {}, h("strong", {}, `${at + 1} of ${steps.length}: ${step.title}. `), step.text),
    h("p", { className: "ways" },
      at > 0 ? link(at - 1, "Back", "Back, step " + at) : null,
      at + 1 < steps.length ? link(at + 1, "Next", "Next, step " + (at + 2)) : null,
      h("a", { href: `${location.pathname}${rest ? `?${rest}` : ""}`, className: "button quiet" }, "Leave the tour")))];
}
