"""The web application: pages, static files, and requests that rooms answer."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from qkv.explore import limits
from qkv.explore.desk import Desk
from qkv.explore.fields import Fields
from qkv.explore.guard import Guard
from qkv.explore.loading import Loading
from qkv.explore.tour import STEPS
from qkv.explore.workers import Busy, Gone, Ticket, TooLong, Workers

STATIC = Path(__file__).parent / "static"
VIEWER = Path(__file__).parent.parent / "visualization" / "viewer" / "static"

#: In the order of the navigation.
ROOMS = ("pooling", "similarity", "sentence", "table", "translate")

#: Packages whose errors are answers of a database to a query.
_DATABASES = ("duckdb", "_duckdb", "adbc_driver_manager", "pyarrow")

#: What a room does with a question; see the ACTIONS of each module in `rooms`.
Action = Callable[[Fields, Desk, Ticket], dict[str, Any]]


def build(desk: Desk, token: str | None = None) -> ASGIApp:
    """The explorer as an ASGI application. Rooms, and torch, are imported on their first use."""
    explorer = Explorer(desk)
    routes = [
        Route("/", explorer.front),
        Route("/api/hello", explorer.hello),
        Route("/api/upload", explorer.upload, methods=["POST"]),
        Route("/api/{room}/{action}", explorer.answer, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
        Mount("/view", StaticFiles(directory=VIEWER)),
        *(Route(f"/{room}", explorer.page) for room in ROOMS),
    ]
    handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _failed}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=explorer.life)
    return Guard(app, token)


class Explorer:
    """The endpoints, and what they share."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.workers, self.loading = desk, Workers(), Loading()

    @asynccontextmanager
    async def life(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self.workers.stop()
        self.desk.close()

    def front(self, request: Request) -> Response:
        opened = self.desk.opened
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/{opened.room if opened else ROOMS[0]}{query}", 307)

    def page(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html", background=BackgroundTask(self.loading.start))

    def hello(self, _: Request) -> Response:
        """What the page must know before any room opens."""
        opened = self.desk.opened
        return JSONResponse(
            {
                "loading": self.loading.progress(),
                "opened": opened and {"name": opened.name, "kind": opened.kind},
                "tour": STEPS,
                "style": _style_digest(),
            }
        )

    async def upload(self, request: Request) -> Response:
        if _kind(request) != "application/octet-stream":
            return _error("a file must be sent as application/octet-stream", 415)
        content = await _body(request, limits.UPLOAD_BYTES)
        return await self._told(
            request, lambda ticket: {"source": self.desk.uploads.add(content, ticket)}
        )

    async def answer(self, request: Request) -> Response:
        room, action = request.path_params["room"], request.path_params["action"]
        if room not in ROOMS:
            return _error(f"there is no room {room!r}", 404)
        if _kind(request) != "application/json":
            return _error("a question must be sent as application/json", 415)
        content = await _body(request, limits.JSON_BYTES)
        try:
            body = json.loads(content, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return _error("a question must be JSON, and this is not", 400)
        return await self._told(request, lambda ticket: self._in(room, action, body, ticket))

    def _in(self, room: str, action: str, body: object, ticket: Ticket) -> dict[str, Any]:
        ticket.check()
        actions: dict[str, Action] = importlib.import_module(f"qkv.explore.rooms.{room}").ACTIONS
        if action not in actions:
            raise ValueError(f"the room {room} answers {', '.join(actions)}; got {action[:40]!r}")
        return actions[action](Fields(body), self.desk, ticket)

    async def _told(
        self, request: Request, work: Callable[[Ticket], dict[str, Any]]
    ) -> Response:  # fmt: skip
        """The answer of a worker, or its error in one sentence."""
        try:
            # Encoded by the worker, too: long arrays would hold up the event loop.
            return Response(
                await self.workers.run(request, lambda ticket: _encoded(work(ticket))),
                media_type="application/json",
            )
        except Busy:
            return _error("too many requests: try again in a moment", 429)
        except TooLong:
            return _error(f"this took over {limits.SECONDS:.0f} seconds and was given up", 408)
        except Gone:
            return Response(status_code=499)
        except (ValueError, TypeError, ArithmeticError, NotImplementedError) as error:
            return _error(_sentence(error), 400)
        except (MemoryError, OSError, ImportError) as error:
            return _error(_sentence(error), 422)
        except Exception as error:
            if type(error).__module__.partition(".")[0] in _DATABASES:
                return _error(_sentence(error), 422)
            raise


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()


async def _body(request: Request, most: int) -> bytes:
    """The body, unless it is larger than is taken."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise HTTPException(
                    413, f"at most {most / 2**20:.3g} MB are taken at a time; this is more"
                )
            parts.append(part)
    except ClientDisconnect:
        raise HTTPException(499, "the client has left") from None
    return b"".join(parts)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _sentence(error: Exception) -> str:
    """An error's first line; libraries write more than a reader needs."""
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else type(error).__name__


def _error(sentence: str, status: int) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)


def _http_error(_: Request, error: HTTPException) -> Response:
    messages = {
        404: "there is nothing at this address",
        405: "this address has another method",
    }
    return _error(messages.get(error.status_code, error.detail), error.status_code)


def _failed(_: Request, error: Exception) -> Response:
    logging.getLogger("qkv.explore").error("a question failed", exc_info=error)
    return _error("an unexpected error occurred; see the terminal for details", 500)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@cache
def _style_digest() -> str:
    """By which the policy of an exported page names its style."""
    style = (STATIC / "standalone.css").read_bytes()
    return f"sha256-{base64.b64encode(hashlib.sha256(style).digest()).decode()}"
