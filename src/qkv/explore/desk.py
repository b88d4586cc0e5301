"""What the rooms share: uploaded tables, what `--open` names, and the date translator."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from qkv.explore.dates import Dates
from qkv.explore.opened import Opened
from qkv.explore.uploads import Uploads

T = TypeVar("T")

#: Objects made for one state of a room, cached for later requests of the same state.
KEPT = 128


class Desk:
    """Shared by all requests of one server."""

    def __init__(self, opened: Opened | None = None, dates: Dates | None = None) -> None:
        self.opened = opened
        self.uploads = Uploads()
        self.dates = Dates() if dates is None else dates
        self._made: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached result of `make` for this key; the least recently used is dropped."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return cast(T, self._made[key])
        made = make()  # twice at once is work done twice, no harm
        with self._lock:
            self._made[key] = made
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return made

    def close(self) -> None:
        self.dates.stop()
