"""The kernels of search and loss find the same on any number of threads, to the last bit."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from qkv.jit import threads
from qkv.similarity import pair_scores as scoring
from qkv.similarity.pair_scores import additive_scores
from qkv.translate.decoding import top_tokens
from qkv.translate.decoding.beam import Ended, Rows, Sentences, Step, Ways, advance
from qkv.translate.decoding.top_tokens import TopTokens
from qkv.translate.models import softmax_gradient
from qkv.translate.models.softmax_gradient import turn

BATCH, N, K, VOCABULARY = 37, 3, 3, 1009


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take a row or a sentence at a time, so that all of them get some."""
    for module in (scoring, softmax_gradient):
        monkeypatch.setattr(module, "_AT_ONCE", 1)


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def _compared(dtype: torch.dtype) -> list[np.ndarray]:
    query, key = _numbers(BATCH, N, 29, dtype=dtype), _numbers(BATCH, 7, 29, dtype=dtype)
    with torch.no_grad():
        return [additive_scores(query, key, _numbers(29, dtype=dtype)).numpy()]


def _turned(dtype: torch.dtype) -> list[np.ndarray]:
    rows, bias = _numbers(BATCH, VOCABULARY, dtype=dtype), _numbers(VOCABULARY, dtype=dtype)
    loss = turn(rows, bias, torch.arange(BATCH), 0.1)
    return [np.array(loss), rows.numpy()]


def _likely(dtype: torch.dtype) -> TopTokens:
    """Without the product before it, whose sums torch's own threads may take in another order."""
    shape, best = (BATCH, N, 2 * K), (2 * K + 2,)
    found = TopTokens(np.empty(shape), np.empty(shape, np.int64), np.empty(shape[:-1]))
    top_tokens._search(
        _numbers(BATCH * N, VOCABULARY, dtype=dtype), _numbers(VOCABULARY, dtype=dtype), *found,
        count=BATCH * N,
        scratch=top_tokens.Scratch((-(-VOCABULARY // top_tokens._STRIPS),), best, best),
    )  # fmt: skip
    return found


def _advanced(dtype: torch.dtype) -> list[np.ndarray]:
    before, ended, after = Rows.room(BATCH, N), Ended.none(BATCH, K), Rows.room(BATCH, K)
    before.log_p[:] = -np.arange(N)
    found = _likely(dtype)
    found.tokens[::3, 1, 0] = top_tokens.END
    for now in range(2):
        advance(
            Step(now, 1.5, 2),
            Sentences(np.arange(BATCH)[::-1].copy(), np.arange(BATCH) % 5 == 0, before.log_p / 9),
            before, found, ended, after,
            count=BATCH, grain=1, scratch=Ways.shapes(N, 2 * K),
        )  # fmt: skip
        before, after = after, before
    return [*ended, *before, *after]


KERNELS = {"compare": _compared, "turn": _turned, "likely": _likely, "advance": _advanced}


def _bits(name: str, dtype: torch.dtype, count: int) -> list[bytes]:
    torch.set_num_threads(count)
    return [each.tobytes() for each in KERNELS[name](dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_any_number_of_threads_gives_the_same_bits(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _bits(name, dtype, 1)
    teams: list[int] = []
    run = threads.run_native

    def watched(function: Any, data: int, count: int, held: object) -> None:
        teams.append(count)
        run(function, data, count, held)

    monkeypatch.setattr(threads, "run_native", watched)
    for count in (2, 3, 4, 4, 4):
        assert _bits(name, dtype, count) == expected
        assert set(teams) == {count}
        teams.clear()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_gives_the_same_bits(name: str) -> None:
    expected = _bits(name, torch.float32, 4)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply_async(_bits, (name, torch.float32, 4)).get(timeout=120)
    assert found == expected
