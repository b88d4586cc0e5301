"""The soft join against those who join in their own way: pandas and rapidfuzz."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rapidfuzz import fuzz, process
from table import joins

import qkv
from qkv.table import soft_join
from qkv.table.join.candidates import Candidates
from qkv.table.join.texts import FuzzyIndex, Texts


@given(
    left=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=17),
    right=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=23, unique=True),
    tolerance=st.sampled_from([0, 3, 10**9]),
)
def test_the_nearest_nanosecond_is_that_of_pandas(
    left: list[int], right: list[int], tolerance: int
) -> None:
    close = [entry + step for entry, step in zip(right, (1, -2, 0, 3) * 6, strict=False)]
    times = sorted(t for t in [*left, *close] if -(2**62) < t < 2**62)
    right = sorted(t for t in right if -(2**62) < t < 2**62)
    assume(times and right)
    asked = pd.DataFrame({"t": np.array(times).astype("datetime64[ns]")})
    known = pd.DataFrame({"t": np.array(right).astype("datetime64[ns]"), "v": range(len(right))})
    expected = pd.merge_asof(asked, known, on="t", direction="nearest")["v"]
    assert soft_join(asked, known, on={"t": "nearest"})["v"].to_pylist() == expected.to_list()
    within = pd.merge_asof(
        asked, known, on="t", direction="nearest", tolerance=pd.Timedelta(tolerance + 1)
    )["v"]
    found = soft_join(asked, known, on={"t": qkv.Boxcar((tolerance + 1) * 1e-9)})["v"]
    assert found.to_pylist() == [None if math.isnan(v) else v for v in within]


def test_groups_and_times_are_those_of_pandas() -> None:
    rng = np.random.default_rng(3)
    asked = pd.DataFrame({"t": np.sort(rng.random(307)), "g": rng.choice(list("abc"), 307)})
    known = pd.DataFrame({"t": np.sort(rng.random(211)), "g": rng.choice(list("abd"), 211)})
    known["v"] = np.arange(211.0)
    expected = pd.merge_asof(asked, known, on="t", by="g", direction="nearest")["v"]
    found = soft_join(asked, known, on={"g": "equal", "t": "nearest"})["v"].to_pandas()
    pd.testing.assert_series_equal(found, expected, check_names=False)
    for how in (qkv.Triangular(0.01), qkv.Epanechnikov(0.01)):
        within = pd.merge_asof(asked, known, on="t", direction="nearest", tolerance=0.01)["v"]
        found = soft_join(asked, known, on={"t": how}, take="v")["v"].to_pandas()
        pd.testing.assert_series_equal(found, within, check_names=False)


@pytest.mark.parametrize("key", ["number", "text", "time", "decimal", "unsigned"])
def test_equal_is_the_merge_of_pandas(key: str) -> None:
    rng = np.random.default_rng(4)
    number = rng.integers(0, 40, 203)
    unique = rng.permutation(60)[:31]
    of = {
        "number": lambda n: pa.array(n * 2**55),
        "text": lambda n: pa.array([f"é{each}" for each in n]),
        "time": lambda n: pa.array(n * 10**15, pa.timestamp("ns", "UTC")),
        "decimal": lambda n: pa.array(n).cast(pa.decimal128(19, 0)).cast(pa.decimal128(22, 2)),
        "unsigned": lambda n: pa.array(n.astype(np.uint64) + np.uint64(2**64 - 100)),
    }[key]
    left, right = pa.table({"k": of(number)}), pa.table({"k": of(unique), "v": unique * 1.5})
    expected = left.to_pandas().merge(right.to_pandas(), on="k", how="left")["v"]
    found = soft_join(left, right, on={"k": "equal"})["v"].to_pandas()
    pd.testing.assert_series_equal(found, expected, check_names=False)


_LETTERS = st.text(st.sampled_from("abcABC éßﬁǘ"), max_size=9)


@given(
    left=st.lists(st.none() | _LETTERS, max_size=13),
    right=st.lists(st.none() | _LETTERS, max_size=17),
    cutoff=st.sampled_from([0.0, 0.3, 0.5, 0.6, 2 / 3, 0.75, 0.8, 1.0]),
)
def test_fuzzy_is_rapidfuzz(left: list[str | None], right: list[str | None], cutoff: float) -> None:
    asked = pa.table({"t": pa.array(left, pa.string())})
    known = pa.table({"t": pa.array(right, pa.string()), "v": list(range(len(right)))})
    joined = soft_join(asked, known, on={"t": "fuzzy"}, cutoff=cutoff, top=None)
    for own, row in zip(left, joined.to_pylist(), strict=True):
        ratios = {
            number: fuzz.ratio(joins.spelt(own), joins.spelt(other), score_cutoff=100 * cutoff)
            for number, other in enumerate(right)
            if own is not None and other is not None
        }
        found = {n: r for n, r in ratios.items() if r > 0 or cutoff == 0}
        if not found:
            assert row["row"] is None
            continue
        best = max(found.values())
        assert row["row"] == min(n for n, r in found.items() if r == best)
        assert row["similarity"] == pytest.approx(math.exp((best / 100 - 1) / 0.05), rel=1e-9)
        weights = {n: math.exp((r / 100 - 1) / 0.05) for n, r in found.items()}
        expected = math.fsum(w * n for n, w in weights.items()) / math.fsum(weights.values())
        assert row["v"] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_long_texts_and_many_matches() -> None:
    """Texts of more than one word of bits, and more matches than there is room for at first."""
    rng = np.random.default_rng(8)

    def text(length: int) -> str:
        return "".join(rng.choice(list("abcdefgh"), length))

    known = [text(length) for length in (0, 1, 63, 64, 65, 127, 128, 129, 400) for _ in range(13)]
    asked = [
        known[place][:cut] + text(3) + known[place][cut + 2 :]
        for place, cut in zip(rng.integers(0, len(known), 61), rng.integers(0, 60, 61), strict=True)
    ]
    for cutoff in (0.0, 0.5, 0.9):
        index = FuzzyIndex(Texts.of(pa.array(known)))
        queries = Texts.of(pa.array(asked))
        rows = np.arange(len(asked))
        spans = np.tile([0, len(known)], (len(asked), 1))
        every = Candidates(rows, spans, np.arange(len(known)))
        ratios = np.full((len(asked), len(known)), -1.0)
        for part in index.compare(queries, every, cutoff, 1.0):
            whose, places = part.pairs()
            ratios[part.left[whose], part.right[places]] = 1.0 + part.logs[places]
        expected = process.cdist(asked, known, scorer=fuzz.ratio, dtype=np.float64) / 100
        np.testing.assert_allclose(ratios, np.where(expected >= cutoff, expected, -1.0), rtol=1e-12)
