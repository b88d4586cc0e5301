// Light or dark as the system says until the button is pressed; buttons that copy code.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const button = document.querySelector(".theme");
let chosen = null;

function paint() {
  const dark = chosen ?? system.matches;
  root.dataset.theme = dark ? "dark" : "light";
  button.textContent = dark ? "☀ light" : "☾ dark";
}
button.addEventListener("click", () => { chosen = !(chosen ?? system.matches); paint(); });
system.addEventListener("change", paint);
paint();

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page opened as a file may not reach the clipboard that way
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
for (const code of document.querySelectorAll(".code")) {
  const button = code.querySelector("button");
  button.addEventListener("click", async () => {
    await copy(code.querySelector("pre").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
