"""How files and folders reach the disk whole: an interrupted write leaves the old one, or none."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else writes to, with the suffix by which writers go."""
    return path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it takes the place of `path` once the block is done."""
    unfinished = temporary_name(path)
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """The same for a folder: an empty one to write into, which takes the place of `path`."""
    unfinished = temporary_name(path)
    try:
        unfinished.mkdir(mode=0o700)
        yield unfinished
        if path.exists():
            shutil.rmtree(path)  # a folder that is not empty cannot be replaced
        unfinished.replace(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
