"""The explorer, started as a user starts it, and asked without a browser."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, Route
from typer.testing import CliRunner

from qkv.cli import app

#: Opens an address of the server in a browser.
Open = Callable[..., Page]

_MAIN = "from qkv.cli import main; main()"


@dataclass
class Server:
    address: str  # without a slash at the end
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers; names of headers with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        found = response.status, response.read(), dict(response.headers)
        connection.close()
        return found

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        content = json.dumps(body).encode()
        status, said, _ = self.send(
            "POST", f"/api/{path}", content, content_type="application/json"
        )
        return status, json.loads(said)

    def answer(self, path: str, body: Any) -> Any:
        status, said = self.ask(path, body)
        assert status == 200, said
        return said

    def upload(self, content: bytes) -> tuple[int, Any]:
        status, said, _ = self.send(
            "POST", "/api/upload", content, content_type="application/octet-stream"
        )
        return status, json.loads(said)

    def ready(self) -> None:
        """Wait until the heavy parts are there."""
        self.send("GET", "/pooling")
        for _ in range(600):
            if json.loads(self.send("GET", "/api/hello")[1])["loading"]["ready"]:
                return
            time.sleep(0.1)
        raise TimeoutError("the explorer is still loading")


#: A server whose translator learns from few dates, for many epochs, and is kept at sys.argv[1].
_LEARNING = """
import sys; from pathlib import Path
from qkv.explore.dates import Dates; from qkv.explore.desk import Desk
from qkv.explore.server import serve
dates = Dates(Path(sys.argv[1]), pairs=400, epochs=500)
serve(Desk(dates=dates), port=0, browser=False, say=lambda line: print(line, flush=True))
"""


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[Server]:
    """The explorer as the command starts it."""
    command = [_MAIN, "explore", "--no-browser", "--port", "0", *arguments]
    with _started(command, environment) as server:
        yield server


@contextmanager
def learning(folder: Path) -> Iterator[Server]:
    """The explorer with a translator that is quick to begin and slow to end its training."""
    with _started([_LEARNING, str(folder)], {}) as server:
        yield server


@contextmanager
def _started(arguments: list[str], environment: dict[str, str]) -> Iterator[Server]:
    command = [sys.executable, "-c", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("the explorer is at "), (line, process.communicate())
    try:
        yield Server(line.split()[4].rstrip("/").partition("/?")[0], process)
    finally:
        process.terminate()
        process.communicate(timeout=20)


def doubles(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<f8")


def floats(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<f4")


def run_command(command: str, folder: Path | None = None) -> str:
    """What a line of "as command" prints; in this process, which has loaded everything."""
    _, *words = shlex.split(command)
    before = os.getcwd()
    try:
        os.chdir(folder or before)
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.output
    return done.stdout


def run_python(code: str, folder: str | None = None) -> dict[str, Any]:
    """The names that lines of "as Python" leave behind."""
    names: dict[str, Any] = {}
    before = os.getcwd()
    try:
        os.chdir(folder or before)
        exec(compile(code, "<as Python>", "exec"), names)
    finally:
        os.chdir(before)
    return names


def new_page(
    browser: Browser, server: Server, asked: list[str], wrong: list[str], **options: object
) -> Page:
    """A page that reaches this server alone; what it asks for and what goes wrong is noted."""
    context = browser.new_context(
        **{"viewport": {"width": 1200, "height": 900}, "accept_downloads": True, **options}
    )
    page = context.new_page()
    page.set_default_timeout(10_000)

    def only_ours(route: Route) -> None:
        ours = route.request.url.startswith((server.address, "blob:", "data:"))
        route.continue_() if ours else route.abort()

    page.route("**/*", only_ours)
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    # What the server refuses, the page says itself; the browser notes it on the console, too.
    page.on(
        "console",
        lambda message: (
            None if message.text.startswith("Failed to load") else wrong.append(message.text)
        ),
    )
    return page
