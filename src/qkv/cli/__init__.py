"""The command line: it parses words and calls functions, one command a file.

Heavy imports are delayed until a command runs.
"""

from __future__ import annotations

import sys

from rich.console import Console

from qkv.cli import (
    bench,
    doctor,
    explain,
    explore,
    gallery,
    join,
    query,
    regress,
    sentence,
    translate,
    view,
    warmup,
    weights,
)
from qkv.cli.app import app
from qkv.cli.plain import speak_plainly

__all__ = [
    "app",
    "bench",
    "doctor",
    "explain",
    "explore",
    "gallery",
    "join",
    "main",
    "query",
    "regress",
    "sentence",
    "translate",
    "view",
    "warmup",
    "weights",
]


def main() -> None:
    """The command `qkv`: a user's mistake is one line and exit code 2, never a traceback."""
    speak_plainly()
    try:
        app()
    except (ValueError, TypeError, MemoryError, OSError, ImportError) as error:
        Console(stderr=True, soft_wrap=True).print(f"qkv: {error}", style="red", markup=False)
        sys.exit(2)
