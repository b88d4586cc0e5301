"""The fused kernels on several threads: more than there are cores, in pools and teams."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.jit import threads
from qkv.operators.fused import launch
from qkv.operators.fused.launch import Call, Launch

THREADS = [2, 3, 4]
SIMILARITIES = {
    "additive": lambda: qkv.Additive(5, 5, 7),
    "gated": lambda: qkv.Gated(5, 5, base=qkv.ScaledDot()),
    "laplacian": lambda: qkv.Laplacian(1.3, learnable=True),
    "epanechnikov": lambda: qkv.Epanechnikov(4.0, learnable=True),
}


@pytest.fixture(autouse=True)
def _every_thread_takes_part(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch, "SMALL", 0)
    monkeypatch.setattr(launch, "LAUNCHES", {})  # made with another limit
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _tensors(batch: tuple[int, ...] = (2,), n: int = 137, m: int = 1301) -> list[Tensor]:
    torch.manual_seed(3)
    return [
        torch.randn(*batch, rows, d, dtype=torch.float64) for rows, d in ((n, 5), (m, 5), (m, 3))
    ]


def _gradients(name: str, tensors: list[Tensor], operator: str, **options: Any) -> list[Tensor]:
    torch.manual_seed(5)
    similarity = SIMILARITIES[name]().double()
    leaves = [x.clone().requires_grad_() for x in tensors]
    mask = options.pop("mask", None)
    if isinstance(mask, Tensor) and mask.is_floating_point():
        mask = mask.clone().requires_grad_()
        leaves.append(mask)
    torch.manual_seed(7)
    answer = qkv.attend(*leaves[:3], similarity=similarity, mask=mask, operator=operator, **options)
    wanted = [*leaves, *similarity.parameters()]
    return [answer.detach(), *torch.autograd.grad((answer * answer).sum(), wanted)]


def _masks() -> dict[str, Any]:
    torch.manual_seed(9)
    return {
        "none": None,
        "causal": qkv.mask.Causal(),
        "window": qkv.mask.Window(700, 300),
        "boolean": torch.rand(137, 1301) > 0.4,
        "bias": torch.randn(137, 1301, dtype=torch.float64),
        "bias of each query": torch.randn(137, 1, dtype=torch.float64),
        "bias of each key": torch.randn(1, 1301, dtype=torch.float64),
    }


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize("name", SIMILARITIES)
def test_answers_and_gradients_are_those_of_the_formula(name: str, count: int) -> None:
    torch.set_num_threads(count)
    tensors = _tensors()
    for mask in _masks().values():
        options = {"mask": mask, "dropout": 0.2 if mask is None else 0.0}
        fused = _gradients(name, tensors, "fused", **options)
        for own, plain in zip(fused, _gradients(name, tensors, "dense", **options), strict=True):
            torch.testing.assert_close(own, plain, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("count", [1, *THREADS])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_same_bits_every_time(count: int, batch: tuple[int, ...]) -> None:
    torch.set_num_threads(count)
    tensors = [x.float().double() for x in _tensors(batch)]
    for mask in (None, _masks()["bias of each query"]):
        first = _gradients("additive", tensors, "fused", mask=mask)
        for _ in range(5):
            again = _gradients("additive", tensors, "fused", mask=mask)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_keys_are_cut_into_pieces_for_the_way_back() -> None:
    """So the tests above do add up several layers of the queries' gradient."""
    query, key, value = _tensors(())
    parameter = torch.ones(5, dtype=torch.float64)
    call = Call(query, key, value, parameter, None, None, None, None, None, "laplacian", 0.0)
    for count in THREADS:
        torch.set_num_threads(count)
        assert Launch(call).threads == count
        assert Launch(call).pieces[1] > 1
    torch.set_num_threads(1)
    assert Launch(call).pieces[1] == 1


def test_one_query_and_many_keys_are_shared_out_by_keys() -> None:
    tensors = _tensors(batch=(), n=3, m=10_007)
    call = Call(*tensors, torch.ones(5, dtype=torch.float64), *(None,) * 5, "laplacian", 0.0)
    assert Launch(call).forward_pieces[1] > 1
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(_gradients("laplacian", tensors, "fused", mask=qkv.mask.Window(9_000, 40)))
        assert torch.equal(found[-1][0], found[0][0])
    plain = _gradients("laplacian", tensors, "dense", mask=qkv.mask.Window(9_000, 40))
    for own, other in zip(found[1], plain, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-10)
    # A query whose window leaves out most pieces, and one that sees no key at all.
    alone = torch.zeros(3, 10_007, dtype=torch.bool)
    alone[0, 9_999] = True
    fused = _gradients("laplacian", tensors, "fused", mask=alone)
    for own, other in zip(
        fused, _gradients("laplacian", tensors, "dense", mask=alone), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-10)


def test_the_answer_does_not_depend_on_how_many_threads_there_are() -> None:
    tensors = _tensors()
    torch.set_num_threads(1)
    [alone, *_] = _gradients("gated", tensors, "fused")
    for count in (*THREADS, 7):
        torch.set_num_threads(count)
        assert torch.equal(_gradients("gated", tensors, "fused")[0], alone)


def _team() -> Any:
    return threads._parallel(threads.Native, ctypes.c_void_p)


def test_torchs_team_and_a_pool_of_ours_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if _team() is None:
        pytest.skip("this build of torch has no GNU OpenMP team to join")
    torch.set_num_threads(3)
    tensors = _tensors()
    by_team = _gradients("additive", tensors, "fused")
    monkeypatch.setattr(threads, "_forked", True)  # as in a forked child
    by_pool = _gradients("additive", tensors, "fused")
    assert threads._pool is not None
    assert all(torch.equal(a, b) for a, b in zip(by_team, by_pool, strict=True))


def _in_child(queue: Any, tensors: list[Tensor], count: int) -> None:
    torch.set_num_threads(count)
    queue.put([x.tolist() for x in _gradients("laplacian", tensors, "fused")])


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    """A distance: MKL, which torch multiplies matrices by, hangs in a forked child."""
    torch.set_num_threads(3)
    tensors = _tensors(n=41, m=600)
    expected = [x.tolist() for x in _gradients("laplacian", tensors, "fused")]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, tensors, 3), daemon=True)
    child.start()
    assert queue.get(timeout=120) == expected
    child.join(60)
    assert child.exitcode == 0


def test_many_callers_at_once_each_with_a_team() -> None:
    torch.set_num_threads(2)
    tensors = _tensors(n=41, m=600)
    expected = _gradients("laplacian", tensors, "fused")

    def again(_: int) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in tensors]
        similarity = SIMILARITIES["laplacian"]().double()
        answer = qkv.attend(*leaves, similarity=similarity, operator="fused")
        return [answer.detach(), *torch.autograd.grad((answer * answer).sum(), leaves)]

    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(again, range(60)):
            # torch's number of threads is that of the thread that set it, so pieces may differ.
            for own, first in zip(found, expected[: len(found)], strict=True):
                torch.testing.assert_close(own, first, rtol=1e-12, atol=1e-13)
