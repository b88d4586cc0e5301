"""A line that tells how far a long search has come, once it has taken more than a second."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status

PATIENCE = 1.0


class Progress:
    """Hears of each candidate; speaks only where `verbose`, and only if it takes long."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose
        self.begun = time.monotonic()
        self.tried = 0
        self.status: Status | None = None

    def __enter__(self) -> Progress:
        return self

    def heard(self, score: float, best: float) -> None:
        self.tried += 1
        if not self.verbose or time.monotonic() - self.begun < PATIENCE:
            return
        text = f"searching the bandwidth: {self.tried} tried, error {score:.4g}, best {best:.4g}"
        if self.status is None:
            self.status = Console(stderr=True).status(text)
            self.status.start()
        self.status.update(text)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.status is not None:
            self.status.stop()
