"""What a table lacks has no part in the choice of a bandwidth."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import qkv


@pytest.mark.parametrize("vectors", [False, True])
def test_rows_with_gaps_do_not_move_the_bandwidth(vectors: bool) -> None:
    generator = np.random.default_rng(3)
    keys = generator.uniform(0, 4, (101, 2 if vectors else 1))
    values = np.sin(keys[:, 0]) + 0.1 * generator.normal(size=101)
    rows = keys.tolist() if vectors else keys[:, 0].tolist()
    gap = [np.nan, 1.0] if vectors else np.nan
    whole = pa.table({"k": rows, "v": values.tolist()})
    gaps = pa.table({"k": [gap, *rows, None], "v": [3.0, *values.tolist(), 5.0]})
    at = [2.0, 2.0] if vectors else 2.0
    plans = [
        qkv.Database(table, key="k", value="v").query(at, similarity="gaussian").plan
        for table in (whole, gaps)
    ]
    # Which rows are drawn is the same: all of them.
    assert plans[0].similarity == plans[1].similarity
    assert plans[1].missing["k"] == 2
