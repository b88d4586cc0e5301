"""Where machine code is kept between processes, and what is trusted of it.

A file names the function, the type and the processor, and a key of all else that its code depends
on. It counts if its checksum is right, if it says inside that it is what it is called, and if only
its owner, we ourselves, may write to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from qkv.atomic_write import replacing
from qkv.user_cache import user_cache

PACKAGE = Path(__file__).resolve().parent
#: Code that came with the package, compiled for some levels of x86-64.
PREBUILT = PACKAGE / "prebuilt"

_TO_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_TO_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_CHECKSUM = hashlib.sha256().digest_size


def _candidates() -> Iterator[Path]:
    chosen = os.environ.get("QKV_CACHE_DIR")
    if chosen:
        yield Path(chosen)
    yield PACKAGE / "__pycache__"
    with contextlib.suppress(FileNotFoundError):
        yield user_cache()
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"qkv-{user}"


def _usable(directory: Path) -> bool:
    """Whether we can write here, and nobody else could have: code is loaded as it is."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        status = directory.stat()
    except OSError:
        return False
    return _ours_alone(status)


def _ours_alone(status: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.getuid() and not shared


@cache
def directory() -> Path:
    """The first directory we may write to; made for this process alone if there is none."""
    for candidate in _candidates():
        if _usable(candidate) and _usable(candidate / "kernels"):
            return candidate / "kernels"
    return Path(tempfile.mkdtemp(prefix="qkv-"))


def file_name(function: str, cpu: str, *depends: str) -> str:
    """What the code of a function for a processor is called, for all else that it depends on."""
    key = hashlib.sha256("\0".join(depends).encode()).hexdigest()[:16]
    return f"{function}-{cpu}-{key}.code"


def read(path: Path) -> bytes | None:
    """The code in a file that we wrote whole, under this name, and nobody else could write to."""
    try:
        # A pipe in its place would let us wait for a writer that never comes.
        with open(os.open(path, _TO_READ), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode) or not _ours_alone(status):
                return None
            return _checked(opened.read(), path.name)
    except OSError:
        return None


def read_prebuilt(level: str, name: str) -> bytes | None:
    """Code that came with the package; it is trusted as the package's own modules are."""
    try:
        return _checked((PREBUILT / level / name).read_bytes(), name)
    except OSError:
        return None


def write(path: Path, code: bytes) -> None:
    """Keep code, at once whole or not at all; a full disk costs no more than time."""
    named = path.name.encode() + b"\n" + code
    with (
        contextlib.suppress(OSError),
        replacing(path) as unfinished,
        open(os.open(unfinished, _TO_WRITE, mode=0o600), "wb") as opened,  # for us alone
    ):
        opened.write(hashlib.sha256(named).digest() + named)


def _checked(content: bytes, name: str) -> bytes | None:
    checksum, named = content[:_CHECKSUM], content[_CHECKSUM:]
    if hashlib.sha256(named).digest() != checksum:
        return None
    # A file that was renamed, or copied from another processor's, is not what it is called.
    title, _, code = named.partition(b"\n")
    return code if title.decode(errors="replace") == name else None
