"""What comes out of compressed files: a few bytes can hold any number, so there is a limit."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

#: A compressed file may hold so many times its size. Texts and numbers that somebody has hold 2 to
#: 10 times as much, tables of repeated cells up to 40; what gzip can hold is a thousand times.
MOST_TIMES = 50
#: And so many bytes whatever its size.
ALWAYS = 2**24


def unpacked(path: Path, stream: Any) -> io.RawIOBase:
    """What `stream` reads from the compressed file at `path`, up to the limit; then ValueError."""
    return _Limited(path, stream)


def limit(path: Path) -> int:
    """How many bytes the file may hold; QKV_UNPACK_LIMIT (in bytes) overrules it."""
    chosen = os.environ.get("QKV_UNPACK_LIMIT")
    if chosen is None:
        return max(ALWAYS, MOST_TIMES * path.stat().st_size)
    if not chosen.isdecimal():
        raise ValueError(f"QKV_UNPACK_LIMIT must be a number of bytes; got {chosen!r:.80}")
    return int(chosen)


class _Limited(io.RawIOBase):
    def __init__(self, path: Path, stream: Any) -> None:
        self._path, self._stream = path, stream
        self._limit = self._left = limit(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise ValueError(
                f"{self._path.name} must unpack to at most {self._limit:,} bytes, and more came "
                f"from its {self._path.stat().st_size:,}; unpack it first, or set QKV_UNPACK_LIMIT"
            )
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
