"""Where compiled kernels are kept between processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent

_CHECKSUM = hashlib.sha256().digest_size


@cache
def source_digest() -> str:
    """A digest of the package's sources.

    A directory per digest makes a stale kernel impossible. Numba, which keeps those of other
    packages in here, looks only at the file of the kernel itself, not at those of what it calls.
    """
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _candidates() -> Iterator[Path]:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        yield Path(chosen)
    yield PACKAGE / "__pycache__"
    user_cache = os.environ.get("XDG_CACHE_HOME")
    if user_cache:
        yield Path(user_cache) / "qkv"
    with contextlib.suppress(RuntimeError):
        yield Path.home() / ".cache" / "qkv"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"qkv-{user}"


def _usable(directory: Path) -> bool:
    """Whether we can write here, and nobody else could have: kernels are loaded as they are."""
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
        if _usable(candidate) and _usable(candidate / f"kernels-{source_digest()}"):
            return candidate / f"kernels-{source_digest()}"
    return Path(tempfile.mkdtemp(prefix="qkv-"))


def file(name: str, *depends: str) -> Path:
    """Where the machine code of this name is kept, for all else that it depends on."""
    key = hashlib.sha256("\0".join(depends).encode()).hexdigest()[:16]
    return directory() / f"{name}-{key}.code"


def read(path: Path) -> bytes | None:
    """The machine code in a file that we wrote whole and that nobody else could write to."""
    try:
        with path.open("rb") as opened:
            if not _ours_alone(os.fstat(opened.fileno())):
                return None
            checksum, code = opened.read(_CHECKSUM), opened.read()
    except OSError:
        return None
    return code if hashlib.sha256(code).digest() == checksum else None


def write(path: Path, code: bytes) -> None:
    """Keep machine code, at once whole or not at all; a full disk costs no more than time."""
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=path.parent)  # which only we may open
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(hashlib.sha256(code).digest() + code)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@contextlib.contextmanager
def kernel_cache() -> Iterator[None]:
    """Functions that ask for Numba's disk cache in here keep it in `directory()`."""
    from numba import config

    before = getattr(config, "CACHE_DIR")  # noqa: B009 - numba makes its settings at run time
    setattr(config, "CACHE_DIR", str(directory()))  # noqa: B010
    try:
        yield
    finally:
        setattr(config, "CACHE_DIR", before)  # noqa: B010
