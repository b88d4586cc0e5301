"""Gated attention: logit = sigmoid(query_d + key_d) * scale * (query_:d . key_:d).

The last column holds the gate's part; parameter[0] is the scale.
"""

from __future__ import annotations

from typing import Any

from qkv.jit import callback, device
from qkv.jit.builtins import exp, noalias, noinline
from qkv.jit.signature import Real, Real1, Real2
from qkv.operators.fused.matrix import add_product


@device
def _gate(q: Any, k: Any, scale: Any, out: Any, rows: int) -> None:
    """Turn dot products into scores; `k` holds the keys' part of the gate."""
    noinline()
    noalias()
    one = out.dtype.type(1)
    for r in range(rows):
        gate_query = q[r, q.shape[1] - 1]
        for j in range(k.size):
            x = gate_query + k[j]
            t = exp(-abs(x))
            out[r, j] *= scale * (one if x >= 0 else t) / (one + t)


@callback
def scores(q: Real2, k: Real2, parameter: Real1, out: Real2, rows: int, reach: Real) -> None:
    noinline()
    d, width = k.shape[0] - 1, k.shape[1]
    for r in range(rows):
        for j in range(width):
            out[r, j] = 0
    add_product(q, k, out, rows, d, width)
    _gate(q, k[d], parameter[0], out, rows)


@callback
def row_scores(q: Real2, k: Real2, parameter: Real1, out: Real2, rows: int, reach: Real) -> None:
    noinline()
    d = k.shape[1] - 1
    one = out.dtype.type(1)
    for r in range(rows):
        for j in range(k.shape[0]):
            total = out.dtype.type(0)
            for c in range(d):
                total += q[r, c] * k[j, c]
            x = q[r, d] + k[j, d]
            t = exp(-abs(x))
            out[r, j] = total * parameter[0] * (one if x >= 0 else t) / (one + t)


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
    one, scale = dk.dtype.type(1), parameter[0]
    width, d = k.shape[0], k.shape[1] - 1
    for r in range(rows):
        line, g, gate_query = raw[r], slopes[r], q[r, d]
        total = moment = dk.dtype.type(0)
        for j in range(width):
            moment += g[j] * line[j]
            x = gate_query + k[j, d]
            t = exp(-abs(x))
            inverse = one / (one + t)
            # The gate's own slope: sigmoid' / sigmoid = 1 - sigmoid, and raw holds the product.
            slope = g[j] * line[j] * ((t if x >= 0 else one) * inverse)
            total += slope
            dk[j, d] += slope
            # From here on `raw` is the gradient of the dot product.
            line[j] = g[j] * scale * ((one if x >= 0 else t) * inverse)
        dq[r, d] += total
        if scale != 0:
            dparameter[0] += moment / scale
    add_product(raw, k, dq, rows, width, d)
    add_product(raw[:rows].T, q, dk, width, rows, d)
