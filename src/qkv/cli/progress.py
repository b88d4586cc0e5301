"""A progress bar for work that counts rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from qkv.table.aggregation import ProgressCallback


@contextlib.contextmanager
def progress_bar(work: str) -> Iterator[ProgressCallback]:
    """A bar on the error stream, where that is a terminal; removed when done."""
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(work, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
