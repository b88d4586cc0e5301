"""What chart libraries do under the explorer's policy, and how long 10,000 points take them.

    python tools/chart_libraries.py PLOTLY.min.js BOKEH.min.js BOKEH-GL.min.js

The scripts are those inside the wheels: plotly/package_data/plotly.min.js and
bokeh/server/static/js/bokeh.min.js, bokeh-gl.min.js. Needs chromium and playwright.
"""

from __future__ import annotations

import http.server
import shutil
import statistics
import sys
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from qkv.explore.guard import POLICY

POINTS, MOVES = 10_000, 12

#: The link is plotly's own way to be spared its inline style.
PAGE = """<!doctype html><meta charset="utf-8">
<link id="plotly.js-style-global" class="no-inline-styles" rel="stylesheet" href="/plotly.css">
<div id="place"></div>%s<script src="/case.js" type="module"></script>"""

#: Points, and one move: new sizes for all of them, as each move of the pointer brings.
_DATA = (
    f"""
const n = {POINTS}, moves = {MOVES};
"""
    + """
const x = Array.from({ length: n }, (_, i) => i / n);
const y = x.map((at) => Math.sin(9 * at) + Math.random());
const sizes = (k) => x.map((at) => 2 + 8 * Math.exp(-((at - k / moves) ** 2) * 90));
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
const taken = [];
async function timed(move) {
  for (let k = 0; k < moves; k++) {
    const start = performance.now();
    await move(k);
    await frame();
    taken.push(performance.now() - start);
  }
  window.taken = taken;
}
"""
)

_PLOTLY = """
const place = document.getElementById("place");
const marker = { size: sizes(0), color: sizes(0) };
const layout = { width: 760, height: 520 };
await Plotly.newPlot(place, [{ x, y, type: "%s", mode: "markers", marker }], layout);
await timed((k) => {
  const now = [sizes(k)];
  return Plotly.restyle(place, { "marker.size": now, "marker.color": now });
});
"""
_BOKEH = """
const B = Bokeh, source = new B.ColumnDataSource({ data: { x, y, size: sizes(0) } });
const plot = new B.Plot({
  width: 760, height: 520, output_backend: "%s",
  x_range: new B.Range1d({ start: 0, end: 1 }), y_range: new B.Range1d({ start: -1, end: 2 }),
});
const fields = { x: { field: "x" }, y: { field: "y" }, size: { field: "size" } };
plot.add_glyph(new B.Scatter(fields), source);
await B.Plotting.show(plot, document.getElementById("place"));
await timed(async (k) => { source.data = { x, y, size: sizes(k) }; });
"""


def main(plotly: str, bokeh: str, bokeh_gl: str) -> None:
    api = str(Path(bokeh).with_name("bokeh-api.min.js"))
    cases = {
        "plotly, SVG": ([plotly], _PLOTLY % "scatter"),
        "plotly, WebGL": ([plotly], _PLOTLY % "scattergl"),
        "bokeh, canvas": ([bokeh, api], _BOKEH % "canvas"),
        "bokeh, WebGL": ([bokeh, bokeh_gl, api], _BOKEH % "webgl"),
    }
    with sync_playwright() as driver:
        path = shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, (scripts, case) in cases.items():
            size = sum(Path(script).stat().st_size for script in scripts) / 1e6
            said: list[str] = []
            server = _served(scripts, _DATA + case)
            page = browser.new_page()
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            try:
                page.wait_for_function("() => window.taken", timeout=25_000)
                taken = f"{statistics.median(page.evaluate('() => window.taken')):.0f} ms a move"
            except Exception:
                taken = "nothing was drawn"
            refused = [text for text in said if "Content Security Policy" in text]
            print(f"{name}: {size:.1f} MB, {taken}, {len(refused)} refused by the policy")  # noqa: T201
            for text in dict.fromkeys(text[:150] for text in said):
                print(f"    {text}")  # noqa: T201
            page.close()
            server.shutdown()
        browser.close()


def _served(scripts: list[str], case: str) -> http.server.ThreadingHTTPServer:
    tags = "".join(f'<script src="/{place}.js"></script>' for place in range(len(scripts)))
    files = {
        "/": ("text/html", (PAGE % tags).encode()),
        "/case.js": ("text/javascript", case.encode()),
    }
    for place, script in enumerate(scripts):
        files[f"/{place}.js"] = ("text/javascript", Path(script).read_bytes())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = files.get(self.path, ("text/css", b""))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-security-policy", POLICY)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    main(*sys.argv[1:4])
