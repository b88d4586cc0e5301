"""How a file reaches the disk whole: an interrupted write leaves the old one, or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it takes the place of `path` once the block is done."""
    half = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    half.unlink(missing_ok=True)  # it may be a link to somewhere else, in a folder that came so
    try:
        yield half
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
