"""A hash table of rows, and sums over rows of one group, as compiled loops.

The table holds places of keys, and rows are compared number by number: two rows of one hash never
pass for equal. A group is named by the first of its keys.
"""

from __future__ import annotations

from typing import Any

from qkv.jit import device, kernel
from qkv.jit.builtins import ordered
from qkv.jit.signature import Bool1, Double2, Double3, Int2, Int32_2, Real3

#: Columns that are summed at a time: as many numbers as a line of memory holds.
COLUMNS = 8

# Two odd numbers with bits all over, as multiplicative hashes take them.
_SPREAD = -7046029254386353131
_MIX = -4658895280553007687


@device
def _hash(row: Any) -> Any:
    hashed = 0
    for c in range(row.size):
        hashed = (hashed ^ ordered(row[c])) * _SPREAD
        hashed ^= hashed >> 29
    return (hashed * _MIX) >> 30


@device
def _has_nan(row: Any) -> Any:
    c = 0
    while c < row.size and row[c] == row[c]:
        c += 1
    return c < row.size


@device
def _same(left: Any, right: Any) -> Any:
    c = 0
    while c < left.size and left[c] == right[c]:
        c += 1
    return c == left.size


@device
def _slot(keys: Any, table: Any, row: Any) -> Any:
    """Where in the table the place of an equal key is, or would be."""
    last = table.size - 1  # the size is a power of 2, and at least twice the number of keys
    slot = _hash(row) & last
    while table[slot] >= 0 and not _same(keys[table[slot]], row):
        slot = (slot + 1) & last
    return slot


@kernel
def group_keys(
    start: int,
    stop: int,
    key: Real3,  # (entries, m, d)
    allowed: Bool1,  # (entries · m,), or of size 0: all are
    table: Int32_2,  # (entries, slots), all -1
    group: Int2,  # (entries, m): -1 where a key takes no part
    count: Double2,  # (entries, m), all 0: the size of each group
    seen: Int2,  # (entries, 2), all 0: the keys that are allowed, and those of them with NaN
) -> None:
    """Put the keys of each entry into its table."""
    m = key.shape[1]
    for e in range(start, stop):
        for j in range(m):
            group[e, j] = -1
            if allowed.size > 0 and not allowed[e * m + j]:
                continue
            seen[e, 0] += 1
            if _has_nan(key[e, j]):
                seen[e, 1] += 1
                continue
            slot = _slot(key[e], table[e], key[e, j])
            if table[e, slot] < 0:
                table[e, slot] = j
            first = table[e, slot]
            group[e, j] = first
            count[e, first] += 1


@kernel
def find_queries(
    start: int,
    stop: int,
    query: Real3,  # (entries, n, d)
    key: Real3,
    table: Int32_2,
    seen: Int2,
    group: Int2,  # (entries, n): m where no key is equal, m + 1 where NaN keeps it unknown
) -> None:
    """The group of each query, counted over all entries."""
    n, m = query.shape[1], key.shape[1]
    for item in range(start, stop):
        e, i = item // n, item % n
        if seen[e, 0] == 0:
            group[e, i] = m
        elif seen[e, 1] > 0 or _has_nan(query[e, i]):
            group[e, i] = m + 1
        else:
            first = table[e, _slot(key[e], table[e], query[e, i])]
            group[e, i] = first if first >= 0 else m


@kernel
def add_rows(
    start: int,
    stop: int,
    rows: Real3,  # (entries, r, c)
    group: Int2,  # (entries, r); a negative one is left out
    total: Double3,  # (entries, groups, c), all 0
) -> None:
    """Sum up the rows of each group, some columns of an entry at a time."""
    columns = rows.shape[2]
    strips = (columns + COLUMNS - 1) // COLUMNS
    for item in range(start, stop):
        e, first = item // strips, item % strips * COLUMNS
        last = min(first + COLUMNS, columns)
        for r in range(rows.shape[1]):
            place = group[e, r]
            if place >= 0:
                for c in range(first, last):
                    total[e, place, c] += rows[e, r, c]
