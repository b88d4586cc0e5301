// Every room opens with a question to guess first, and has one surprising preset.

import { h, button } from "./dom.js";

export function guess(room, state, live) {
  const { text, options, right, because } = room.question;
  const verdict = h("p", { className: "because", role: "status" });
  const buttons = options.map((option, place) => button(option, () => {
    buttons.forEach((each, at) => {
      each.classList.toggle("right", at === right);
      each.setAttribute("aria-pressed", String(at === place));
    });
    verdict.textContent = `${place === right ? "Yes." : `Not quite: ${options[right]}.`} ${because}`;
    if (room.question.state) state.set(room.question.state);
  }, { "aria-pressed": "false" }));
  return h("section", { className: "guess", "aria-label": "Guess first" },
    h("p", { className: "asked" }, h("strong", {}, "Guess first. "), text),
    h("div", { className: "options" }, ...buttons,
      button(`Surprise: ${room.surprise.label}`, () => {
        state.set({ ...state.defaults, ...room.surprise.state });
        verdict.textContent = room.surprise.caption;
        live.textContent = "";
      }, { className: "surprise" })),
    verdict);
}
