"""Worker threads beside the event loop: a bounded queue, and cancellation if clients leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from qkv.explore import limits

T = TypeVar("T")


class Busy(Exception):  # noqa: N818 - the client is told to wait
    """The queue is full."""


class TooLong(Exception):  # noqa: N818
    """The time limit is exceeded."""


class Gone(Exception):  # noqa: N818
    """The client has left, so the work is cancelled."""


class Ticket:
    """A cancellation token, which long work checks from time to time."""

    def __init__(self) -> None:
        self._void = threading.Event()

    def cancel(self) -> None:
        self._void.set()

    def check(self, *_: object) -> None:
        """Raise if cancelled; can serve as any progress callback."""
        if self._void.is_set():
            raise Gone


class Workers:
    """Threads that compute answers, one question at a time each."""

    def __init__(
        self,
        threads: int = limits.THREADS,
        waiting: int = limits.WAITING,
        seconds: float = limits.SECONDS,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="qkv-explore")
        self._most, self._seconds = waiting, seconds
        self._under_way = 0

    async def run(self, request: Request, work: Callable[[Ticket], T]) -> T:
        """The result of `work`, unless the client leaves or the time limit is exceeded."""
        if self._under_way >= self._most:
            raise Busy
        ticket = Ticket()
        self._under_way += 1
        future = self._pool.submit(work, ticket)
        loop = asyncio.get_running_loop()
        # Counted until it really ends: work that was given up may still be on its way out.
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended))
        answer = asyncio.wrap_future(future)
        left = asyncio.ensure_future(_departure(request))
        either: set[asyncio.Future[Any]] = {answer, left}
        try:
            await asyncio.wait(either, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise Gone if left.done() else TooLong
        finally:
            left.cancel()
            if not answer.done():
                ticket.cancel()
                future.cancel()
                answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _ended(self) -> None:
        self._under_way -= 1

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


async def _departure(request: Request) -> None:
    """Ends when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
