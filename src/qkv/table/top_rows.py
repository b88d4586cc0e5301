"""The rows that weigh most: found while reading, shown with all their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from qkv.table.sources import Scan


class TopRows:
    """The best rows of each query so far. Rows are numbered as they come, missing ones left out."""

    def __init__(self, n: int, top: int) -> None:
        self.logs = np.full((n, top), -np.inf)  # best first
        self.rows = np.full((n, top), -1, np.int64)
        self._kept: dict[int, Any] = {}

    def extend(self, more: int) -> None:
        """Make room for more queries."""
        top = self.logs.shape[1]
        self.logs = np.concatenate([self.logs, np.full((more, top), -np.inf)])
        self.rows = np.concatenate([self.rows, np.full((more, top), -1, np.int64)])

    def merge_at(self, places: np.ndarray, logs: np.ndarray, rows: np.ndarray) -> None:
        """Let the best of other rows compete for some of the queries, each once."""
        self.logs[places], self.rows[places] = best(
            np.hstack([self.logs[places], logs]), np.hstack([self.rows[places], rows])
        )

    def takes_over(self, other: TopRows, first: int) -> tuple[np.ndarray, np.ndarray]:
        """The best rows of another pass as they are numbered here, from `first` on."""
        rows = np.where(other.rows >= 0, other.rows + first, -1)
        alive = set(other.rows.ravel().tolist())
        self._kept |= {row + first: entry for row, entry in other._kept.items() if row in alive}
        return other.logs, rows

    def remember(
        self, scan: Scan, batch: pa.RecordBatch, first: int, positions: np.ndarray | None
    ) -> None:
        """Keep what is needed to show the rows that this batch brought.

        `first` is the number of its first row; `positions`, where rows were left out, says where
        the others stand in the batch.
        """
        new = np.unique(self.rows[self.rows >= first])
        if len(new) == 0:
            return
        places = new - first if positions is None else positions[new - first]
        tokens = scan.keep(batch, places.tolist())
        self._kept.update(zip(new.tolist(), tokens, strict=True))
        if len(self._kept) > 4 * self.rows.size + 64:
            self.forget()

    def forget(self) -> None:
        """Forget rows that have been overtaken."""
        alive = set(self.rows.ravel().tolist())
        self._kept = {row: entry for row, entry in self._kept.items() if row in alive}

    def shown(self, scan: Scan) -> dict[int, dict[str, Any]]:
        """All rows in the lead, by number."""
        numbers = np.unique(self.rows[self.rows >= 0]).tolist()
        return dict(zip(numbers, scan.fetch([self._kept[row] for row in numbers]), strict=True))


def best(logs: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The better half of two lots side by side, the best first; of equals, the one met first."""
    order = np.argsort(-logs, axis=1, kind="stable")[:, : logs.shape[1] // 2]
    return np.take_along_axis(logs, order, axis=1), np.take_along_axis(rows, order, axis=1)
