"""Where files are kept between one use and the next, for this user."""

from __future__ import annotations

from pathlib import Path

import platformdirs


def user_cache() -> Path:
    """The user's directory for caches of qkv, which need not exist yet.

    FileNotFoundError where the user has no home directory.
    """
    try:
        directory = platformdirs.user_cache_path("qkv", appauthor=False)
    except RuntimeError:  # as in some containers
        directory = Path()
    if not directory.is_absolute():
        raise FileNotFoundError("there is no home directory for a cache; set HOME")
    return directory
