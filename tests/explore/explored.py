"""The explorer, started as a user starts it, and asked without a browser."""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from playwright.sync_api import Page

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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
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


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[Server]:
    command = [sys.executable, "-c", _MAIN, "explore", "--no-browser", "--port", "0", *arguments]
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
