"""What the rooms have at hand: tables that were dropped in, what was opened, and a translator."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from qkv.explore.dates import Dates
from qkv.explore.opened import Opened
from qkv.explore.uploads import Uploads

T = TypeVar("T")

#: Things made for one state of a room that later questions of the same state use again.
KEPT = 64


class Desk:
    """Shared by all requests of one server."""

    def __init__(self, opened: Opened | None = None, dates: Dates | None = None) -> None:
        self.opened = opened
        self.uploads = Uploads()
        self.dates = Dates() if dates is None else dates
        self._made: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave for this key before, or gives now; the least used is forgotten."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return cast(T, self._made[key])
        found = make()  # twice at once is work done twice, no harm
        with self._lock:
            self._made[key] = found
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return found

    def close(self) -> None:
        self.dates.stop()
