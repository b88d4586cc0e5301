"""Where compiled kernels are kept between processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


@cache
def source_digest() -> str:
    """A digest of the package's sources.

    Numba looks only at the file of the kernel itself, not at those of the functions it calls;
    a directory per digest makes a stale kernel impossible.
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
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


@cache
def directory() -> Path:
    """The first directory we may write to; made for this process alone if there is none."""
    for candidate in _candidates():
        if _usable(candidate) and _usable(candidate / f"kernels-{source_digest()}"):
            return candidate / f"kernels-{source_digest()}"
    return Path(tempfile.mkdtemp(prefix="qkv-"))


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
