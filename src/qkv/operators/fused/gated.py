"""Gated attention: logit = sigmoid(query_d + key_d) * scale * (query_:d . key_:d).

The last column holds the gate's part; parameter[0] is the scale.
"""

from __future__ import annotations

from typing import Any

import numba

from qkv.operators.fused.arithmetic import INNER_OPTIONS, exp, tile_function
from qkv.operators.fused.matrix import add_product, add_transposed_product, transpose_into


@numba.njit(**INNER_OPTIONS)
def pack_query(query: Any, packed: Any) -> Any:
    for r in range(query.shape[0]):
        for c in range(query.shape[1]):
            packed[r, c] = query[r, c]
    return query.dtype.type(0)


@numba.njit(**INNER_OPTIONS)
def pack_key(key: Any, packed: Any) -> Any:
    transpose_into(key, packed)
    return key.dtype.type(0)


@numba.njit(**INNER_OPTIONS)
def scores(q: Any, k: Any, parameter: Any, out: Any, rows: int, reach: Any) -> None:
    tile_function()
    one, scale = out.dtype.type(1), parameter[0]
    d = k.shape[0] - 1
    for r in range(rows):
        for j in range(out.shape[1]):
            out[r, j] = 0
    add_product(q, k, out, rows, d)
    gate_key = k[d]
    for r in range(rows):
        line, gate_query = out[r], q[r, d]
        for j in range(line.size):
            x = gate_query + gate_key[j]
            t = exp(-abs(x))
            line[j] *= scale * (one if x >= 0 else t) / (one + t)


@numba.njit(**INNER_OPTIONS)
def gradient(
    q: Any,
    k: Any,
    parameter: Any,
    raw: Any,
    upstream: Any,
    rows: int,
    reach: Any,
    dq: Any,
    dk: Any,
    dparameter: Any,
) -> None:
    tile_function()
    one, scale = dk.dtype.type(1), parameter[0]
    d = k.shape[0] - 1
    gate_key, gate_key_gradient = k[d], dk[d]
    for r in range(rows):
        line, g, gate_query = raw[r], upstream[r], q[r, d]
        total = moment = dk.dtype.type(0)
        for j in range(line.size):
            moment += g[j] * line[j]
            x = gate_query + gate_key[j]
            t = exp(-abs(x))
            inverse = one / (one + t)
            # The gate's own slope: sigmoid' / sigmoid = 1 - sigmoid, and raw holds the product.
            slope = g[j] * line[j] * ((t if x >= 0 else one) * inverse)
            total += slope
            gate_key_gradient[j] += slope
            # From here on `raw` is the gradient of the dot product.
            line[j] = g[j] * scale * ((one if x >= 0 else t) * inverse)
        dq[r, d] += total
        if scale != 0:
            dparameter[0] += moment / scale
    add_transposed_product(raw, k, dq, rows, d)
    add_product(q[:rows].T, raw, dk, d, rows)
