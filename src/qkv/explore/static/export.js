// Export of what a room shows: figures as PNG and SVG, numbers as CSV, all of it as one page.

import { h, button } from "./dom.js";

const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => escapes[sign]);

export function exports(name, title, view, shell, code) {
  const save = (make) => async () => {
    try {
      const [suffix, blob, file] = await make();
      download(blob, `${file ?? name}.${suffix}`);
      shell.announce(`${suffix.toUpperCase()} saved.`);
    } catch (error) {
      shell.refuse(error.message);
    }
  };
  return h("section", { className: "panel exports", "aria-label": "Export" },
    h("h3", {}, "Export"),
    button("PNG", save(async () => ["png", await png(figures(view)[0])])),
    button("SVG", save(async () => ["svg", new Blob([figures(view)[0].svg()], { type: "image/svg+xml" })])),
    button("CSV", save(async () => ["csv", new Blob([csv(rows(view))], { type: "text/csv" }), view.csvName])),
    button("HTML", save(async () => ["html", await (view.page?.() ?? page(title, view, shell, code()))])));
}

function figures(view) {
  const drawn = view.figures().filter((figure) => figure.scene);
  if (!drawn.length) throw new Error("there is nothing to export yet: ask something first");
  return drawn;
}

function rows(view) {
  const table = view.rows();
  if (table.length < 2) throw new Error("there is nothing to export yet: ask something first");
  return table;
}

function download(blob, file) {
  const link = h("a", { href: URL.createObjectURL(blob), download: file });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// As it is on the screen, on its ground.
function png(figure) {
  const { canvas } = figure;
  const whole = h("canvas", { width: canvas.width, height: canvas.height });
  const context = whole.getContext("2d");
  context.fillStyle = getComputedStyle(canvas).getPropertyValue("--ground");
  context.fillRect(0, 0, whole.width, whole.height);
  context.drawImage(canvas, 0, 0);
  return new Promise((done) => whole.toBlob(done, "image/png"));
}

export function csv(table) {
  const cell = (entry) => {
    const text = entry === null || entry === undefined ? "" : String(entry);
    return /[",\r\n]/.test(text) || /^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return table.map((row) => row.map(cell).join(",") + "\n").join("");
}

const MOST_ROWS = 2000;

// A separate page: no script, and a policy that blocks scripts.
async function page(title, view, shell, { python, command }) {
  const style = await (await fetch("/static/standalone.css")).text();
  const drawn = figures(view).map((figure) => `<figure>${figure.svg()}<figcaption>${escaped(figure.name)}</figcaption></figure>`);
  const table = rows(view);
  const [head, ...body] = table.slice(0, MOST_ROWS + 1);
  const cells = (row, tag) => `<tr>${row.map((entry) => `<${tag}>${escaped(entry ?? "")}</${tag}>`).join("")}</tr>`;
  const policy = `default-src 'none'; style-src '${shell.hello.style}'; base-uri 'none'; form-action 'none'`;
  const text = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)} · qkv</title>
<style>${style}</style>
</head>
<body>
<main>
<h1>${escaped(title)}</h1>
<p>${escaped(view.summary())}</p>
${drawn.join("\n")}
<h2>As Python</h2>
<pre>${escaped(python)}</pre>
${command ? `<h2>As command</h2>\n<pre>${escaped(command)}</pre>` : ""}
<h2>Numbers</h2>
${table.length > MOST_ROWS + 1 ? `<p>The first ${MOST_ROWS} of ${table.length - 1} rows.</p>` : ""}
<table><thead>${cells(head, "th")}</thead><tbody>${body.map((row) => cells(row, "td")).join("\n")}</tbody></table>
</main>
</body>
</html>
`;
  return new Blob([text], { type: "text/html" });
}
