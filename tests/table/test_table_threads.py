"""Answers do not depend on how many threads find them, to the last bit."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import qkv
from qkv.jit import threads

ROWS = 5003


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _table() -> pa.Table:
    rng = np.random.default_rng(7)
    return pa.table(
        {
            "k": rng.random(ROWS),
            "place": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * ROWS)), 3),
            "v": rng.normal(size=ROWS),
            "label": rng.choice(["x", "y", "z"], ROWS),
        }
    )


TABLE = _table()
LINE = np.linspace(0.1, 0.9, 61).tolist()
#: Few queries meet a batch as it is, many meet it sorted; vectors are compared on their own.
QUESTIONS: dict[str, tuple[str, str, list[Any]]] = {
    "few": ("k", "v", LINE[:7]),
    "sorted": ("k", "v", LINE),
    "labels": ("k", "label", LINE),
    "vectors": ("place", "place", [[x, -x, 0.5] for x in LINE]),
}


def _bits(question: str, count: int) -> list[Any]:
    """All that is answered by some threads."""
    torch.set_num_threads(count)
    key, value, asked = QUESTIONS[question]
    answers = qkv.Database(TABLE, key=key, value=value).query(
        asked, similarity="gaussian", bandwidth=0.2, top=3
    )
    return [
        (own.value, own.std, own.effective_rows, dict(own.distribution), own.rows)
        for own in answers
    ]


@pytest.mark.parametrize("question", QUESTIONS)
def test_any_number_of_threads_gives_the_same_bits(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _bits(question, 1)
    teams: list[int] = []
    run = threads.run_native

    def watched(function: Any, data: int, count: int, held: object) -> None:
        teams.append(count)
        run(function, data, count, held)

    monkeypatch.setattr(threads, "run_native", watched)
    for count in (2, 3, 4, 4, 4):
        assert _bits(question, count) == expected
        assert max(teams) == count
        teams.clear()


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_gives_the_same_bits(question: str) -> None:
    expected = _bits(question, 4)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_bits, (question, 4)).get(timeout=120) == expected
