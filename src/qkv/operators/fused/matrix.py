"""Small matrix products over tiles, blocked so that LLVM keeps four by four in registers."""

from __future__ import annotations

from typing import Any

from qkv.jit import device
from qkv.jit.builtins import noalias, noinline


@device
def add_product(a: Any, b: Any, out: Any, rows: int, depth: int, width: int) -> None:
    """out[:rows, :width] += a[:rows, :depth] @ b[:depth, :width]; the lanes run along b's rows."""
    noinline()
    noalias()
    blocked, whole = rows - rows % 4, depth - depth % 4
    # Not `+=`: summed from the left, each product is one fused multiply-add.
    for r in range(0, blocked, 4):
        for c in range(0, whole, 4):
            a00, a01, a02, a03 = a[r, c], a[r, c + 1], a[r, c + 2], a[r, c + 3]
            a10, a11, a12, a13 = a[r + 1, c], a[r + 1, c + 1], a[r + 1, c + 2], a[r + 1, c + 3]
            a20, a21, a22, a23 = a[r + 2, c], a[r + 2, c + 1], a[r + 2, c + 2], a[r + 2, c + 3]
            a30, a31, a32, a33 = a[r + 3, c], a[r + 3, c + 1], a[r + 3, c + 2], a[r + 3, c + 3]
            for j in range(width):
                x0, x1, x2, x3 = b[c, j], b[c + 1, j], b[c + 2, j], b[c + 3, j]
                out[r, j] = out[r, j] + a00 * x0 + a01 * x1 + a02 * x2 + a03 * x3
                out[r + 1, j] = out[r + 1, j] + a10 * x0 + a11 * x1 + a12 * x2 + a13 * x3
                out[r + 2, j] = out[r + 2, j] + a20 * x0 + a21 * x1 + a22 * x2 + a23 * x3
                out[r + 3, j] = out[r + 3, j] + a30 * x0 + a31 * x1 + a32 * x2 + a33 * x3
        for c in range(whole, depth):
            a00, a10, a20, a30 = a[r, c], a[r + 1, c], a[r + 2, c], a[r + 3, c]
            for j in range(width):
                x0 = b[c, j]
                out[r, j] += a00 * x0
                out[r + 1, j] += a10 * x0
                out[r + 2, j] += a20 * x0
                out[r + 3, j] += a30 * x0
    for r in range(blocked, rows):
        for c in range(0, whole, 4):
            a00, a01, a02, a03 = a[r, c], a[r, c + 1], a[r, c + 2], a[r, c + 3]
            for j in range(width):
                x0, x1, x2, x3 = b[c, j], b[c + 1, j], b[c + 2, j], b[c + 3, j]
                out[r, j] = out[r, j] + a00 * x0 + a01 * x1 + a02 * x2 + a03 * x3
        for c in range(whole, depth):
            a00 = a[r, c]
            for j in range(width):
                out[r, j] += a00 * b[c, j]


@device
def add_transposed_product(a: Any, b: Any, out: Any, rows: int, columns: int) -> None:
    """out[:rows, :columns] += a[:rows] @ b[:columns].T; the lanes run along the depth."""
    noinline()
    noalias()
    blocked = rows - rows % 4
    for c in range(columns):
        for r in range(0, blocked, 4):
            t0, t1, t2, t3 = out[r, c], out[r + 1, c], out[r + 2, c], out[r + 3, c]
            for j in range(a.shape[1]):
                x = b[c, j]
                t0 += a[r, j] * x
                t1 += a[r + 1, j] * x
                t2 += a[r + 2, j] * x
                t3 += a[r + 3, j] * x
            out[r, c], out[r + 1, c], out[r + 2, c], out[r + 3, c] = t0, t1, t2, t3
        for r in range(blocked, rows):
            total = out[r, c]
            for j in range(a.shape[1]):
                total += a[r, j] * b[c, j]
            out[r, c] = total


@device
def copy_into(row: Any, out: Any) -> None:
    """out[: row.size] = row; an index that is a sum could be negative and costs a check each."""
    noinline()
    noalias()
    for c in range(row.size):
        out[c] = row[c]


@device
def four_rows(array: Any, r: int) -> Any:
    return array[r], array[r + 1], array[r + 2], array[r + 3]


@device
def four_entries(row: Any, c: int) -> Any:
    return row[c], row[c + 1], row[c + 2], row[c + 3]


@device
def transpose_into(rows: Any, out: Any) -> None:
    """out[:, :len(rows)] = rows.T, the columns beyond it 0."""
    noinline()
    count = rows.shape[0]
    # Few rows at a time: more would evict each other from the innermost cache.
    for first in range(0, count, 32):
        last = min(first + 32, count)
        for c in range(rows.shape[1]):
            for j in range(first, last):
                out[c, j] = rows[j, c]
    for c in range(rows.shape[1]):
        for j in range(count, out.shape[1]):
            out[c, j] = 0


@device
def add_into(total: Any, part: Any) -> None:
    """total += part, of two axes."""
    noinline()
    for r in range(part.shape[0]):
        for c in range(part.shape[1]):
            total[r, c] += part[r, c]


@device
def add_rows(total: Any, part: Any, rows: Any) -> None:
    """total += part, or its transpose where it holds columns; what is beyond total is left out."""
    noinline()
    real = total.dtype.type
    for j in range(total.shape[0]):
        if rows:
            for c in range(total.shape[1]):
                total[j, c] += real(part[j, c])
        else:
            for c in range(total.shape[1]):
                total[j, c] += real(part[c, j])


@device
def all_finite(rows: Any) -> Any:
    """Whether no entry is NaN or infinite: zero times such an entry is not zero."""
    noinline()
    zero = rows.dtype.type(0)
    total = zero
    for r in range(rows.shape[0]):
        line = rows[r]
        for c in range(line.size):
            total += line[c] * zero
    return total == zero
