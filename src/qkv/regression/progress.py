"""A progress bar for a search that takes more than a second."""

from __future__ import annotations

import time
from types import TracebackType

from rich import progress
from rich.console import Console

PATIENCE = 1.0


class SearchProgress:
    """Counts candidates; shows a bar only if `verbose`, and only if the search takes long."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose
        self.started = time.monotonic()
        self.tried, self.expected = 0, 0
        self.bar: progress.Progress | None = None

    def __enter__(self) -> SearchProgress:
        return self

    def expect(self, candidates: int) -> None:
        """At most so many more candidates will follow."""
        self.expected = self.tried + candidates

    def update(self, score: float, best: float) -> None:
        self.tried += 1
        if not self.verbose or time.monotonic() - self.started < PATIENCE:
            return
        if self.bar is None:
            columns = (
                *progress.Progress.get_default_columns(),
                progress.TextColumn("{task.fields[errors]}"),
            )
            self.bar = progress.Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task("searching the bandwidth", errors="")
            self.bar.start()
        errors = f"error {score:.4g}, best {best:.4g}"
        self.bar.update(self.task, completed=self.tried, total=self.expected, errors=errors)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is None:
            return
        if error is None:  # fewer may have been enough
            self.bar.update(self.task, completed=self.tried, total=self.tried)
        self.bar.stop()
