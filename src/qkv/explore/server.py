"""The server of the explorer: start, browser, shutdown."""

from __future__ import annotations

import contextlib
import secrets
import socket
import warnings
import webbrowser
from collections.abc import Callable

import uvicorn

from qkv.explore.app import build
from qkv.explore.desk import Desk
from qkv.explore.guard import LOOPBACK

#: Tried first; where it is taken, any other.
PORT = 8642


def serve(
    desk: Desk,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the explorer until Ctrl-C; `say` is called with its address."""
    token = None if host in LOOPBACK else secrets.token_urlsafe(16)
    listening = _bound(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}/"
    if token is not None:
        address += f"?token={token}"
    config = uvicorn.Config(
        build(desk, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=512,
        timeout_graceful_shutdown=2,
    )
    warnings.simplefilter("ignore")  # the page itself says that no example is within reach
    server = _Server(config, lambda: _announce(address, browser, say))
    with contextlib.suppress(KeyboardInterrupt):
        server.run([listening])


class _Server(uvicorn.Server):
    """A server with a callback when it is ready."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self.on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()


def _announce(address: str, browser: bool, say: Callable[[str], None]) -> None:
    say(f"the explorer is at {address}  (Ctrl-C ends it)")
    if browser:
        webbrowser.open(address)


def _bound(host: str, port: int | None) -> socket.socket:
    """A socket at this port; without one, at the usual port or any other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [port] if port is not None else [PORT, 0]:
        # asyncio sends without delay only where the protocol is said, and 40 ms are felt.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
        except OSError as error:
            listening.close()
            why = f"cannot listen at {host}:{candidate}: {error.strerror}"
        else:
            return listening
    raise OSError(why)
