"""Additive attention of a single query, as in a decoder's step: nothing is worth preparing.

There each key meets one query, so the exponential of their sum costs no more than its own, and keys
stay as they lie in memory.
"""

from __future__ import annotations

from typing import Any

from qkv.jit import callback, device
from qkv.jit.builtins import noalias, noinline
from qkv.jit.signature import Real, Real1, Real2
from qkv.operators.fused.additive import add_total, gradient_direct, pull_four
from qkv.operators.fused.matrix import four_entries, four_rows
from qkv.similarity.pair_scores import FAR32, FAR64, four_scores, one_score, power


@callback
def row_scores(q: Real2, k: Real2, parameter: Real1, out: Real2, rows: int, reach: Real) -> None:
    noinline()
    real, width = out.dtype.type, k.shape[0]
    far = real(FAR32) if out.itemsize == 4 else real(FAR64)
    fours = width - width % 4
    for r in range(rows):
        for j in range(0, fours, 4):
            four_scores(q[r], k, j, parameter, far, out[r])
        for j in range(fours, width):
            out[r, j] = one_score(q[r], k[j], parameter, far)


@device
def _add_four(
    q: Any, k: Any, weight: Any, g: Any, far: Any, dq: Any, dk: Any, dweight: Any
) -> None:
    """Add what a query and four keys contribute."""
    noinline()
    noalias()
    four = dq.dtype.type(4)
    k0, k1, k2, k3 = k
    dk0, dk1, dk2, dk3 = dk
    for c in range(weight.size):
        y = q[c]
        x = power(y, k0[c], far), power(y, k1[c], far), power(y, k2[c], far), power(y, k3[c], far)
        pull, t0, t1, t2, t3 = pull_four(x, g, four * weight[c])
        dweight[c] -= pull
        dq[c] += (t0 + t1) + (t2 + t3)
        dk0[c] += t0
        dk1[c] += t1
        dk2[c] += t2
        dk3[c] += t3


@callback
def row_gradient(
    q: Real2,
    k: Real2,
    parameter: Real1,
    raw: Real2,
    slopes: Real2,
    rows: int,
    reach: Real,
    dq: Real2,
    dk: Real2,
    dparameter: Real1,
) -> None:
    noinline()
    real, width = dk.dtype.type, k.shape[0]
    far = real(FAR32) if dk.itemsize == 4 else real(FAR64)
    fours = width - width % 4
    for r in range(rows):
        for j in range(0, fours, 4):
            _add_four(
                q[r], four_rows(k, j), parameter, four_entries(slopes[r], j), far,
                dq[r], four_rows(dk, j), dparameter,
            )  # fmt: skip
    gradient_direct(q, k, 0, parameter, slopes, rows, (fours, width), dq, dk, dparameter)
    add_total(slopes, rows, width, dparameter)
