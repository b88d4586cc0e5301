// The shell: rooms, the address, the tour, errors, undo, and what all rooms share.

import { h, button } from "./dom.js";
import { State } from "./state.js";
import { exports } from "./export.js";
import { guess } from "./guess.js";
import { tourBar } from "./tour.js";

const ROOMS = { pooling: "Pooling", similarity: "Similarity", sentence: "Sentence", table: "Table", translate: "Translate" };

const app = document.getElementById("app");
const live = h("p", { className: "unseen", role: "status" });
const trouble = h("p", { className: "trouble", role: "alert", hidden: true });
const progress = h("div", { className: "loading", hidden: true });
const main = h("main", { id: "main", tabIndex: -1 });
const links = Object.entries(ROOMS).map(([room, name]) => h("a", { href: `/${room}` }, name));
const tour = h("div", { className: "tour-place" });
let hello = null;
let shown = null;

// What rooms are given in addition to their state.
const shell = {
  get hello() { return hello; },
  announce(text) {
    // Announced after a pause, or a screen reader would never stop.
    clearTimeout(shell.timer);
    shell.timer = setTimeout(() => { live.textContent = text; }, 400);
  },
  refuse(text) {
    const sentence = text ? text[0].toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".") : "";
    if (trouble.textContent !== sentence) trouble.textContent = sentence;
    trouble.hidden = !text;
  },
};

function theme() {
  const saved = localStorage.getItem("qkv-theme");
  const dark = saved ? saved === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  toggle.setAttribute("aria-pressed", String(dark));
  shown?.view.redraw?.();
}
const toggle = button("Dark", () => {
  localStorage.setItem("qkv-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  theme();
}, { className: "quiet" });
const undo = button("Undo", () => { if (shown?.state.undo()) live.textContent = "Undone."; }, { className: "quiet", title: "Ctrl+Z", disabled: true });

app.replaceChildren(
  h("a", { className: "skip", href: "#main" }, "Skip to the room"),
  h("header", {},
    h("div", { className: "bar" },
      h("a", { className: "brand", href: "/pooling", "aria-label": "qkv explorer" }, "qkv"),
      h("nav", { "aria-label": "Rooms" }, ...links),
      h("span", { className: "tools" }, undo, toggle)),
    progress, tour),
  main, live);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);

async function open() {
  const name = location.pathname.slice(1);
  if (shown?.name === name) {
    const before = shown.state.values;
    shown.state.values = shown.state.read();
    shown.state.changed(before);
    drawTour();
    return;
  }
  const { room } = await import(`./rooms/${name}.js`);
  if (location.pathname.slice(1) !== name) return; // gone on while it was loaded
  shown?.view.close();
  shell.refuse("");
  const started = room.defaults(hello);
  const state = new State(name, started, (before) => {
    undo.disabled = !state.past.length;
    shell.refuse("");
    view.update(before);
  });
  const python = h("code", {});
  const command = h("code", {});
  shell.code = (lines, line) => {
    python.textContent = lines;
    command.textContent = line ?? "";
    commandPart.hidden = !line;
  };
  const commandPart = h("div", {}, h("h3", {}, "As command"), h("pre", { className: "command", tabIndex: 0, "aria-label": "As command" }, command), copy(command));
  const view = room.open(state, shell);
  shown = { name, state, view };
  undo.disabled = true;
  document.title = `${ROOMS[name]} · qkv explorer`;
  for (const link of links) {
    if (link.pathname === `/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(
    h("div", { className: "intro" }, h("h1", {}, ROOMS[name]), h("p", { className: "lead" }, room.lead)),
    guess(room, state, live),
    trouble,
    view.element,
    h("section", { className: "panel code", "aria-label": "The same in code" },
      h("div", {}, h("h3", {}, "As Python"), h("pre", { tabIndex: 0, "aria-label": "As Python" }, python), copy(python)), commandPart),
    exports(name, ROOMS[name], view, shell, () => ({ python: python.textContent, command: command.textContent })));
  drawTour();
  view.update(null);
}

function copy(element) {
  return button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(element.textContent);
      live.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(element);
      live.textContent = "Selected: copy it with Ctrl+C.";
    }
  }, { className: "quiet small" });
}

function drawTour() {
  tour.replaceChildren(...tourBar(hello.tour));
}

export function go(address) {
  history.pushState(null, "", address);
  open();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/']");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", open);
addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key === "z" && !/^(text|textarea)$/.test(event.target.type ?? "x")) {
    event.preventDefault();
    undo.click();
  }
});

// Heavy parts are loaded behind the first page; until they are there, a line says how far it is.
async function watchLoading() {
  const { loading } = hello;
  progress.hidden = loading.ready;
  if (loading.ready) return;
  const bar = h("progress", { max: loading.of, value: loading.done, "aria-label": "Loading" });
  progress.replaceChildren(bar, h("span", {}, `Loading ${loading.loading} …`));
  await new Promise((rest) => setTimeout(rest, 250));
  hello = await (await fetch("/api/hello")).json();
  watchLoading();
}

hello = await (await fetch("/api/hello")).json();
theme();
watchLoading();
open();
