"""Groups of rows: which one each row belongs to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of, plain
from qkv.table.where import check_column

#: Sums that may be kept, one for each query and group: about 1 GB.
MOST_SUMS = 2**23


class Membership(NamedTuple):
    """Which groups the rows of a batch belong to."""

    codes: np.ndarray  # (m,): which of `numbers`, int32; or (0,) where all are of one group
    numbers: np.ndarray  # (g,): the numbers of the groups, each once; some may have no row


class Groups:
    """The groups that `by` makes, numbered as they first occur; without `by` there is one."""

    def __init__(self, by: list[str], n: int) -> None:
        self.by = by
        self.labels: list[tuple[Any, ...]] = [] if by else [()]
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._most = MOST_SUMS // n

    def of(self, batch: pa.RecordBatch) -> Membership:
        """The group of each row."""
        if not self.by:
            return Membership(np.empty(0, np.int32), np.zeros(1, np.int64))
        encoded = [_encoded(batch.column(name)) for name in self.by]
        sizes = [len(column.dictionary) for column in encoded]
        codes = [column.indices.to_numpy() for column in encoded]
        combined = codes[0] if len(codes) == 1 else np.ravel_multi_index(codes, sizes)
        met, places = _distinct(combined, int(np.prod(sizes)))
        entries = [
            column.dictionary.take(pa.array(number)).to_pylist()
            for column, number in zip(encoded, np.unravel_index(met, sizes), strict=True)
        ]
        known = [self._number(label) for label in zip(*entries, strict=True)]
        numbers = np.array(known, np.int64)
        if len(set(known)) < len(known):  # a dictionary may say the same twice
            numbers, same = np.unique(numbers, return_inverse=True)
            places = same[places]
        return Membership(places.astype(np.int32, copy=False), numbers)

    def numbers(self, other: Groups) -> np.ndarray:
        """The numbers here of the groups of another pass, (g,); new ones are added."""
        if not self.by:
            return np.zeros(1, np.int64)
        return np.array([self._number(label) for label in other.labels], np.int64)

    def _number(self, label: tuple[Any, ...]) -> int:
        number = self._numbers.setdefault(label, len(self.labels))
        if number == len(self.labels):
            if number == self._most:
                raise ValueError(
                    f"by makes more than {self._most:,} groups of {', '.join(self.by)}, too many "
                    "to keep sums for each of them and each query"
                )
            self.labels.append(label)
        return number


def check_groups(by: Any, schema: pa.Schema) -> list[str]:
    """The columns that make groups."""
    names = [] if by is None else [by] if isinstance(by, str) else list(by)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"by must name a column, or several; got {by!r}")
        check_column(schema, name, "by")
        if kind_of(schema.field(name).type) in (Kind.VECTOR, Kind.OTHER):
            raise TypeError(
                f"by must name a column of numbers, texts, dates or booleans; {name!r} is "
                f"{schema.field(name).type}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"by must name each column once; got {names}")
    return names


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return column if isinstance(column, pa.DictionaryArray) else plain(column).dictionary_encode()


def _distinct(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct codes, and which of them each is; a few that do not occur may be among them."""
    if size > len(codes):
        return np.unique(codes, return_inverse=True)
    return np.arange(size), codes
