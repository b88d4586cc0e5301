"""Frames of pandas and Polars can be asked themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pandas as pd
import polars as pl
import pytest
from table.tables import people

import qkv
import qkv.table.accessor

TABLE = people(101).select(["height", "town", "income"])


@pytest.mark.parametrize(
    "frame",
    [TABLE.to_pandas(), pl.DataFrame(TABLE), pl.DataFrame(TABLE).lazy()],
    ids=["pandas", "polars", "lazy"],
)
def test_a_frame_answers_as_its_database(frame: Any) -> None:
    options: dict[str, Any] = {"similarity": "gaussian", "bandwidth": 0.05}
    database = qkv.Database(TABLE, key="height", value="income")
    answer = frame.qkv.query(1.7, key="height", value="income", **options)
    assert answer.value == database.query(1.7, **options).value
    groups = frame.qkv.query(1.7, key="height", value="income", by="town", **options)
    assert list(groups) == ["Kyiv", "Oslo", "Rome"]
    curve = frame.qkv.curve([1.6, 1.7], key="height", value="income", **options)
    assert curve.value[1] == pytest.approx(answer.value, rel=1e-14)
    assert isinstance(frame.qkv.database(key="town", value="income"), qkv.Database)


def test_only_its_own_import_registers_it() -> None:
    code = (
        "import sys, qkv; assert not {'pandas', 'polars'} & set(sys.modules); "
        "import pandas; qkv.Database; assert not hasattr(pandas.DataFrame, 'qkv')"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    assert hasattr(pd.DataFrame, "qkv")
