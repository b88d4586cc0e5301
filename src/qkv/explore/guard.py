"""Protection against requests from other sites: only the explorer's own page may ask."""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
COOKIE = "qkv-explore"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Guard:
    """Checks every request before the application handles it.

    - The Host must be loopback, unless the server was bound elsewhere: a site whose name suddenly
      points here (DNS rebinding) has another.
    - What posts must come from this page (Origin), or from no page at all.
    - Bound elsewhere, every request needs the token of the address that was printed; the first
      page puts it into a cookie.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        why = self._refusal(scope, headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent.setdefault(name, value)
                if self.token is not None and why is None:
                    sent["set-cookie"] = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            await send(message)

        if why is not None:
            await JSONResponse({"error": why}, 403)(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if self.token is None and _name(host) not in LOOPBACK:
            return "this explorer answers to 127.0.0.1 and localhost only"
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
                return "a question must come from the explorer's own page"
            if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
                return "a question must come from the explorer's own page"
        if self.token is not None and not self._knows_token(scope, headers):
            return "the address must hold the token that was printed when the explorer started"
        return None

    def _knows_token(self, scope: Scope, headers: Headers) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        cookies = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return False
        if COOKIE in cookies:
            given = [*given, cookies[COOKIE].value]
        expected = str(self.token).encode()
        return any(hmac.compare_digest(each.encode(), expected) for each in given)


def _name(host: str) -> str:
    """The name in a Host header, without the port: [::1]:8642 is ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host
