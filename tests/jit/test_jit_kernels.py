"""Kernels from Python to machine code: what they take, how they are called and shared out."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from toy_kernel import Inputs, Scratch, exponentials, run

from qkv.jit import device, kernel
from qkv.jit.arguments import HEADER, pack
from qkv.jit.compiler import object_code
from qkv.jit.scratch import LINE, lay_out
from qkv.jit.signature import Double1, Int1, Leaf, PerThread, Real1, Real2, signature
from qkv.jit.target import target


def answer(tokens: Any, count: int | None = None, **options: Any) -> tuple[Any, np.ndarray]:
    n, d = tokens.shape
    out, visits = tokens * 0, np.zeros(n, np.int64)
    address = exponentials.address(str(tokens.dtype).removeprefix("torch."))
    own = Inputs(tokens, 2.0)
    run(own, address, out, visits, count=n, scratch=Scratch((d,)), **options)
    return out, visits


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_kernel_and_its_callback_compute(dtype: Any) -> None:
    tokens = np.random.default_rng(0).normal(size=(37, 11)).astype(dtype)
    found, visits = answer(tokens)
    np.testing.assert_allclose(found, 2 * np.exp(tokens) + 3, rtol=1e-6)
    assert (visits == 1).all()
    in_torch, _ = answer(torch.from_numpy(tokens))
    assert torch.equal(in_torch, torch.from_numpy(found))


@pytest.mark.parametrize("most_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("grain", [1, 2, 5, 40])
def test_every_piece_of_work_is_done_once(grain: int, most_threads: int) -> None:
    tokens = torch.randn(37, 3)
    expected, _ = answer(tokens, most_threads=1)
    for _ in range(20):
        found, visits = answer(tokens, grain=grain, most_threads=most_threads)
        assert (visits == 1).all()
        assert torch.equal(found, expected)


def test_scratch_is_given_where_it_is_needed_and_nowhere_else() -> None:
    @kernel
    def plain(start: int, stop: int, out: Double1) -> None:
        out[0] = 1.0

    with pytest.raises(TypeError, match=r"plain takes no scratch"):
        plain(np.zeros(1), count=1, scratch=Scratch((3,)))
    tokens, visits = np.zeros((2, 3)), np.zeros(2, np.int64)
    with pytest.raises(TypeError, match=r"run needs scratch"):
        run(Inputs(tokens, 2.0), 0, tokens, visits, count=2)


def test_no_work_is_no_call() -> None:
    _, visits = answer(torch.randn(0, 3))
    assert visits.size == 0


def test_many_python_threads_at_once() -> None:
    tokens = torch.randn(64, 5)
    expected, _ = answer(tokens)
    with ThreadPoolExecutor(8) as pool:
        for found, visits in pool.map(lambda _: answer(tokens, most_threads=3), range(64)):
            assert torch.equal(found, expected)
            assert (visits == 1).all()


def _in_child(queue: Any, tokens: np.ndarray) -> None:
    queue.put(answer(tokens, most_threads=3)[0].tolist())


def test_a_forked_child_runs_on_threads_of_its_own() -> None:
    tokens = np.random.default_rng(1).normal(size=(50, 3))
    expected, _ = answer(tokens, most_threads=2)  # the parent's team exists
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, tokens))
    child.start()
    assert queue.get(timeout=60) == expected.tolist()
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize(
    ("at", "wrong", "message"),
    [
        (
            0,
            np.zeros((3, 5), np.float16),
            "tokens must be contiguous float32 of 2 axes, got float16",
        ),
        (0, np.zeros((5, 3), np.float32).T, r"tokens must be contiguous .* shape \(3, 5\)"),
        (0, np.zeros((), np.float32), "tokens must be contiguous float32 of 2 axes"),
        (3, torch.zeros(3, dtype=torch.float64), "out must be contiguous float32 of 2 axes"),
        (4, torch.zeros(3, dtype=torch.int32), "visits must be contiguous int64 of 1 axes"),
    ],
)
def test_memory_of_another_kind_is_refused(at: int, wrong: Any, message: str) -> None:
    leaves = run.signature.leaves
    good = np.zeros((3, 5), np.float32)
    operands: list[Any] = [good, 1.0, 0, good, np.zeros(3, np.int64)]
    pack(leaves, operands, "float32")
    operands[at] = wrong
    with pytest.raises(TypeError, match=message):
        pack(leaves, operands, "float32")


def test_leading_axes_are_taken_as_one_and_none_is_empty() -> None:
    leaves = (Leaf("tokens", signature(_sum, skip=2).leaves[0].kind),)
    tokens = torch.zeros(2, 3, 5, 7)
    for tensor, rows in ((tokens, 30), (tokens[0], 15), (tokens[0, 0], 5), (tokens[0, 0, 0], 1)):
        assert pack(leaves, [tensor], "float32") == ([0, rows, 7], [0])
    assert pack(leaves, [None], "float32") == ([0, 0, 0], [])


class _Sums(NamedTuple):
    totals: Double1
    lines: Real2


def _sum(start: int, stop: int, tokens: Real2, sums: _Sums, scratch: PerThread[_Sums]) -> None:
    pass


def test_the_signature_is_read_from_annotations() -> None:
    found = signature(_sum, skip=2)
    assert [(leaf.name, *leaf.kind) for leaf in found.leaves] == [
        ("tokens", "real", 2),
        ("totals", "float64", 1),
        ("lines", "real", 2),
    ]
    assert found.scratch is not None
    assert found.is_generic

    def unknown(start: int, stop: int, tokens: list) -> None:
        pass

    with pytest.raises(TypeError, match="takes numbers and arrays; got the annotation"):
        signature(unknown, skip=2)


def test_the_buffers_of_a_thread_share_no_cache_line() -> None:
    group = signature(_sum, skip=2).scratch
    assert group is not None
    for real, size in (("float32", 4), ("float64", 8)):
        scratch = lay_out(group, real, _Sums((5,), (3, 7)))
        first, five, second, three, seven = scratch.words
        assert (five, three, seven) == (5, 3, 7)
        assert first % LINE == second % LINE == scratch.size % LINE == 0
        assert first + 5 * 8 <= second
        assert second + 21 * size <= scratch.size
    with pytest.raises(TypeError, match=r"lines must have 2 axes, got the shape \(3,\)"):
        lay_out(group, "float32", _Sums((5,), (3,)))


def test_compiled_code_cannot_be_called_from_python_but_by_a_kernel() -> None:
    from toy_kernel import _shifted

    with pytest.raises(TypeError, match="_shifted is for compiled code only"):
        _shifted(1.0)
    from qkv.jit.builtins import exp

    with pytest.raises(TypeError, match="exp is for compiled code only"):
        exp(1.0)


def test_code_that_calls_what_may_not_be_there_is_not_made() -> None:
    @kernel
    def special(start: int, stop: int, out: Double1) -> None:
        out[0] = math.erf(out[0])

    with pytest.raises(RuntimeError, match="a kernel must not call erf"):
        object_code(special, "float64")


def test_a_kernel_that_fails_says_so() -> None:
    @kernel
    def failing(start: int, stop: int, out: Double1) -> None:
        if out[0] == 0.0:
            raise ValueError

    for most_threads in (1, 2):
        with pytest.raises(RuntimeError, match="failing stopped with status 1"):
            failing(np.zeros(1), count=4, most_threads=most_threads)


def test_names_of_the_function_around_it_are_known() -> None:
    @device
    def twice(x: Any) -> Any:
        return x + x

    factor = 5.0

    def around() -> Any:
        @kernel
        def closed_over(start: int, stop: int, out: Double1, seen: Int1) -> None:
            for i in range(start, stop):
                out[i] = twice(out[i]) * factor
                seen[i] = 1

        return closed_over

    out = np.array([1.0, 2.0, 4.0])
    around()(out, np.zeros(3, np.int64), count=3)
    assert out.tolist() == [10.0, 20.0, 40.0]


def test_one_exp_over_its_whole_range() -> None:
    from qkv.jit.builtins import exp as own_exp

    @kernel
    def powers(start: int, stop: int, x: Real1, out: Real1) -> None:
        for i in range(start, stop):
            out[i] = own_exp(x[i])

    # Two units in the last place, whatever the width of the vectors.
    for dtype, low, high in ((np.float32, -87.0, 88.0), (np.float64, -708.0, 709.0)):
        x = np.linspace(low, high, 100_003).astype(dtype)
        out = np.empty_like(x)
        powers(x, out, count=x.size, grain=4096)
        exact = np.exp(x.astype(np.longdouble))
        assert float(np.abs(out / exact - 1).max()) < 2.5 * np.finfo(dtype).eps
        edges = np.array([-np.inf, 2 * low, 0.0, np.nan], dtype)
        found = np.empty_like(edges)
        powers(edges, found, count=4)
        assert found[:3].tolist() == [0.0, 0.0, 1.0]
        assert np.isnan(found[3])


def test_the_header_has_a_word_for_each_name() -> None:
    from qkv.jit import arguments

    names = ("STATUS", "THREAD", "NEXT", "COUNT", "GRAIN", "ROOM", "STRIDE")
    assert sorted(getattr(arguments, name) for name in names) == list(range(HEADER))


def test_all_compiled_code_is_found_for_warming_up() -> None:
    """Every decorated function of the sources is among those that `qkv warmup` compiles."""
    import ast
    from pathlib import Path

    import qkv
    from qkv.jit.ahead import jobs
    from qkv.warmup import packages

    source = Path(qkv.__file__).parent
    known = {path for path, _ in jobs(packages())}
    for path in source.rglob("*.py"):
        if path.is_relative_to(source / "benchmarks"):
            continue
        home = ".".join(path.relative_to(source).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [getattr(each, "id", "") for each in getattr(node, "decorator_list", [])]
            if {"kernel", "kernel_in_order", "callback"} & set(names):
                assert f"{home}.{node.name}" in known  # type: ignore[attr-defined]
    assert {"formula.gaussian.scores", "formula.learned_gaussian.gradient"} <= known


def test_the_level_is_that_of_the_leg() -> None:
    """Under a leg of `make test` for another processor, code is compiled for that one."""
    import os

    wanted = os.environ.get("NUMBA_CPU_NAME")
    if not wanted:
        pytest.skip("no other processor is asked for")
    assert target().cpu == wanted
