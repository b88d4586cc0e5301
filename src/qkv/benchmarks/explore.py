"""The explorer: the first page, the pointer at 10,000 points, and fifty people at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from qkv.benchmarks import Figure
from qkv.optional_dependencies import require

_MAIN = "from qkv.cli import main; main()"
CLIENTS, SECONDS, EVERY = 50, 60.0, 0.2
MOVES = 80

#: Moves the pointer over the points, one place a frame, and notes when each answer is painted.
_MOVES = """async (moves) => {
  const chart = document.querySelector("canvas.figure");
  const box = chart.getBoundingClientRect();
  const shown = () => document.querySelector(".facts .is-query").textContent;
  const taken = [];
  for (let i = 0; i < moves; i++) {
    const before = shown();
    const start = performance.now();
    const place = { clientX: box.left + 60 + (i * 37) % 400, clientY: box.top + 60 };
    chart.dispatchEvent(new PointerEvent("pointermove", place));
    while (shown() === before && performance.now() - start < 3000) {
      await new Promise((done) => setTimeout(done));
    }
    taken.push(performance.now() - start);
  }
  return taken;
}"""


class Server(NamedTuple):
    port: int
    process: int


def measure() -> Iterator[Figure]:
    yield from first_page()
    with running() as server:
        yield from pointer(server)
        yield from soak(server, CLIENTS, SECONDS)


def first_page() -> Iterator[Figure]:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with running(wait=False) as server:
            ask(server.port, "GET", "/pooling")
            times.append(time.perf_counter() - start)
    yield Figure("from the command to the first page", statistics.median(times), "s", "≤ 2")


def pointer(server: Server) -> Iterator[Figure]:
    """In a browser: from a move of the pointer to its answer on the page."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return
    playwright = require("playwright.sync_api", "test")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        for count in (100, 10_000):
            page.goto(f"http://127.0.0.1:{server.port}/pooling?count={count}")
            page.get_by_text(re.compile("effective neighbours")).wait_for()
            page.wait_for_timeout(1500)
            times = sorted(page.evaluate(_MOVES, MOVES))
            name = f"a move of the pointer over {count:,} points, median"
            yield Figure(name, statistics.median(times), "ms", "≤ 50")
            yield Figure("… 95th percentile", times[int(0.95 * len(times))], "ms", "")
        browser.close()


def soak(server: Server, clients: int, seconds: float) -> Iterator[Figure]:
    """Many clients that move the pointer over different points."""
    times: list[float] = []
    wrong: list[int] = []
    before = _resident(server.process)
    end = time.perf_counter() + seconds

    def play(number: int) -> None:
        step = 0
        while time.perf_counter() < end:
            step += 1
            body = {"query": (step * 7 + number) % 40 / 10, "seed": number, "bandwidth": 0.3}
            start = time.perf_counter()
            status, _ = ask(server.port, "POST", "/api/pooling/ask", body)
            times.append(time.perf_counter() - start)
            if status != 200:
                wrong.append(status)
            time.sleep(max(0.0, EVERY - times[-1]))

    people = [threading.Thread(target=play, args=(number,)) for number in range(clients)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    times.sort()
    name = f"{clients} clients for {seconds:.0f} s, five questions a second each"
    yield Figure(f"{name}: errors", len(wrong), f"of {len(times):,}", "≤ 0")
    yield Figure("… an answer, median", 1e3 * statistics.median(times), "ms", "")
    yield Figure("… 95th percentile", 1e3 * times[int(0.95 * len(times))], "ms", "≤ 500")
    grown = (_resident(server.process) - before) / 2**20
    yield Figure("… growth of memory", grown, "MB", "≤ 50")


@contextmanager
def running(wait: bool = True) -> Iterator[Server]:
    """The explorer, as the command starts it."""
    command = [sys.executable, "-c", _MAIN, "explore", "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    match = re.search(r":(\d+)/", process.stdout.readline())
    assert match is not None
    server = Server(int(match[1]), process.pid)
    try:
        if wait:
            ask(server.port, "GET", "/pooling")
            while not ask(server.port, "GET", "/api/hello")[1]["loading"]["ready"]:
                time.sleep(0.1)
            ask(server.port, "POST", "/api/pooling/ask", {})
        yield server
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    kind = response.headers.get("content-type", "")
    return response.status, json.loads(content) if kind == "application/json" else content


def _resident(process: int) -> int:
    """Bytes of memory that a process holds (Linux only; elsewhere 0)."""
    status = Path(f"/proc/{process}/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0
