"""Memory stays linear: measured, because torch goes dense without a word."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes

pytestmark = pytest.mark.skipif(
    not can_measure_memory(), reason="the high-water mark of memory is read from Linux's /proc"
)

MB = 2**20


def _extra(function: Callable[[], Any]) -> float:
    function()  # what is allocated once and kept is not the operator's doing
    return peak_extra_bytes(function) / MB


@pytest.mark.parametrize("d_v", [64, 40, 72])
@pytest.mark.parametrize("layout", ["plain", "transposed", "grouped"])
def test_sdpa_reaches_the_fused_kernel(d_v: int, layout: str) -> None:
    """All weights at n = 8,192 are 256 MB a head; the kernel needs next to nothing."""
    n, d = 8192, 64
    query, key = torch.randn(1, 1, n, d), torch.randn(1, 1, n, d)
    if layout == "transposed":
        key = key.mT.contiguous().mT
    if layout == "grouped":
        key = key[0]
    value = torch.randn(1, 1, n, d_v)
    assert qkv.explain(query, key, value).operator == "sdpa"
    assert _extra(lambda: qkv.attend(query, key, value)) < 40


def test_sdpa_at_16384_forwards_and_backwards_is_linear() -> None:
    n = 16384
    tensors = [torch.randn(1, n, d, requires_grad=True) for d in (64, 64, 40)]

    def run() -> None:
        torch.autograd.grad(qkv.attend(*tensors).sum(), tensors)

    assert peak_extra_bytes(run) / MB < 100  # all weights: 1,024 MB


@pytest.mark.parametrize("operator", [None, "banded", "sdpa"])
@pytest.mark.parametrize(
    "mask", [qkv.mask.Causal(), qkv.mask.Window(64, 64), qkv.mask.Lengths([4000])], ids=repr
)
def test_masks_do_not_make_it_dense(mask: Any, operator: str | None) -> None:
    n = 8192
    query = torch.randn(1, n, 16, requires_grad=True)
    if operator == "banded" and not mask.per_query:
        operator = "sdpa"

    def run() -> None:
        answer = qkv.attend(query, query, query, mask=mask, operator=operator)
        torch.autograd.grad(answer.sum(), query)

    assert _extra(run) < 60  # all weights: 256 MB; the mask alone: 64 MB


@pytest.mark.parametrize(
    ("similarity", "batch"),
    [
        (lambda query, key: query @ key.mT, ()),
        ("triangular", (2, 4)),
    ],
    ids=["callable", "triangular of a batch"],
)
def test_streamed_is_linear_forwards_and_backwards(similarity: Any, batch: tuple[int, ...]) -> None:
    n = 6144 if not batch else 2048  # large enough for a dense computation to show
    query, key, value = (torch.randn(*batch, n, 2, requires_grad=True) for _ in range(3))

    def run(operator: str) -> None:
        answer = qkv.attend(query, key, value, similarity=similarity, operator=operator)
        torch.autograd.grad(answer.sum(), (query, key, value))

    # What other tests left on the heap can only add to a peak, so the least counts.
    tiles = _extra(lambda: run("streamed"))
    if tiles >= 120:
        tiles = min(tiles, _extra(lambda: run("streamed")))
    assert tiles < 120  # up to 84 has been seen: some twenty tensors of a tile of 4 MB
    assert _extra(lambda: run("dense")) > 2 * tiles


@pytest.mark.parametrize(
    ("similarity", "n"), [(None, 3072), (qkv.Laplacian(), 1024)], ids=["sdpa", "fused"]
)
def test_second_derivatives_are_linear(similarity: Any, n: int) -> None:
    """The plain formula holds many blocks of 32 MB: weights, or differences of pairs."""
    query = torch.randn(1, n, 8, requires_grad=True)

    def run() -> None:
        answer = qkv.attend(query, query, query, similarity=similarity)
        (first,) = torch.autograd.grad(answer.square().sum(), query, create_graph=True)
        torch.autograd.grad(first.square().sum(), query)

    assert _extra(run) < 110


def test_explain_computes_nothing() -> None:
    """Projections of all these tokens would take 2 GB."""
    tokens = torch.empty(500_000, 64)  # of which no page is touched
    similarity = qkv.Additive(64, 64, 512)
    run = lambda: qkv.explain(tokens, tokens, tokens, similarity=similarity)  # noqa: E731
    assert peak_extra_bytes(run) < 64 * MB  # of which loading the compiler takes the most


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="the rule is glibc's")
def test_tiles_use_the_pages_of_those_before_them() -> None:
    """In a process of its own, which has freed no large block: 30,000 pages, were all made anew."""
    program = """
import resource, torch, qkv
tokens = [torch.randn(1024, 8, requires_grad=True) for _ in range(3)]
def run():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    answer = qkv.attend(*tokens, similarity=qkv.Additive(8, 8, 64), operator="streamed")
    answer.sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([run() for _ in range(4)][-1])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(found.stdout) < 6000, found.stderr
