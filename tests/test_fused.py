"""The fused kernels where they are most likely to go wrong: edges of tiles, of ranges, of types."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import qkv
from qkv.operators.fused import ops
from qkv.operators.fused.launch import Call
from qkv.operators.fused.registry import SIMILARITIES

KERNELS = ["Gaussian", "Laplacian", "Boxcar", "Triangular", "Epanechnikov"]


def _make(name: str, d: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(5)
    if name == "Additive":
        return qkv.Additive(d, d, 7).to(dtype)
    if name == "Gated":
        return qkv.Gated(d, d, base=qkv.ScaledDot()).to(dtype)
    if name == "Euclidean":
        return qkv.Euclidean()
    return getattr(qkv, name)(bandwidth=1.3, learnable=True).to(dtype)


def _gradients(tensors: list[Tensor], operator: str, **options: Any) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    query, key, value = leaves
    answer = qkv.attend(query, key, value, operator=operator, **options)
    leaves += options["similarity"].parameters()
    torch.manual_seed(2)
    upstream = torch.randn(answer.shape, dtype=torch.float64).to(answer.dtype)
    found = torch.autograd.grad((answer * upstream).sum(), leaves, allow_unused=True)
    return (answer.detach(), *(x for x in found if x is not None))


MASKS = [
    None,
    qkv.mask.Causal(),
    qkv.mask.Window(3, 300),
    qkv.mask.Blocks(100),
    qkv.mask.Dilated(4, 3),
    "boolean",
    "floating",
]


@given(
    st.sampled_from(["Additive", "Gated", "Euclidean", *KERNELS]),
    # One less and one more than a block of queries (8) and a tile of keys (256), and primes.
    st.sampled_from([1, 2, 7, 8, 9, 17, 255, 257]),
    st.sampled_from([1, 7, 255, 256, 257, 509, 513]),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 3, 15, 16, 17]),
    st.sampled_from(MASKS),
    st.sampled_from([0.0, 0.3]),
)
def test_sizes_around_the_edges_of_tiles(
    name: str, n: int, m: int, d: int, d_v: int, mask: Any, dropout: float
) -> None:
    torch.manual_seed(n * m)
    tensors = [torch.randn(2, *shape, dtype=torch.float64) for shape in ((n, d), (m, d), (m, d_v))]
    if mask == "boolean":
        mask = torch.rand(n, m) > 0.4
    elif mask == "floating":
        hidden = torch.rand(n, m) > 0.7
        mask = torch.randn(n, m, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    elif isinstance(mask, qkv.mask.Dilated):
        dropout = 0.0
    similarity = _make(name, d, torch.float64)
    options = {"similarity": similarity, "mask": mask, "dropout": dropout}

    def run(operator: str) -> tuple[Tensor, ...]:
        torch.manual_seed(11)
        return _gradients(tensors, operator, **options)

    for found, reference in zip(run("fused"), run("dense"), strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["Additive", "Gated", "Euclidean", *KERNELS])
def test_a_first_tile_that_is_all_masked(name: str) -> None:
    """Nothing is seen of the first 300 keys; one query sees nothing at all."""
    tensors = [torch.randn(2, rows, 3, dtype=torch.float64) for rows in (19, 700, 700)]
    mask = torch.rand(19, 700) > 0.5
    mask[:, :300], mask[4] = False, False
    options = {"similarity": _make(name, 3, torch.float64), "mask": mask}
    fused, dense = (_gradients(tensors, operator, **options) for operator in ("fused", "dense"))
    for found, reference in zip(fused, dense, strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-9, atol=1e-10)
    assert (fused[0][:, 4] == 0).all()


@pytest.mark.parametrize("largest", [0.0, 1.0, 10.0, 21.0, 42.0, 43.0, 90.0, 400.0, 1e4])
@pytest.mark.parametrize("opposite", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_additive_over_its_whole_range(largest: float, opposite: bool, dtype: torch.dtype) -> None:
    """Both sides of where e^2a e^2b overflows; with key = −query every sum on the diagonal is 0."""
    h = 19
    similarity = qkv.Additive(h, h, h, bias=False)
    with torch.no_grad():
        for projection in (similarity.query_projection, similarity.key_projection):
            projection.weight.copy_(torch.eye(h))
    query = (torch.rand(33, h, dtype=torch.float64) * 2 - 1) * largest
    key = -query if opposite else (torch.rand(33, h, dtype=torch.float64) * 2 - 1) * largest
    tensors = [x.to(dtype) for x in (query, key, torch.randn(33, 3))]
    fused = _gradients(tensors, "fused", similarity=similarity.to(dtype))
    naive = _gradients(tensors, "dense", similarity=similarity)
    exact = _gradients([x.double() for x in tensors], "dense", similarity=similarity.double())

    def error(answer: Tensor, truth: Tensor) -> float:
        return (answer - truth).square().mean().sqrt().item()

    for own, plain, truth in zip(fused, naive, exact, strict=True):
        assert own.isfinite().all()
        # Sums of 33 numbers of about 1 are known to a few units of rounding, however they end.
        rounding = 8 * torch.finfo(dtype).eps * max(1.0, truth.abs().max().item())
        assert error(own, truth) <= 2 * error(plain, truth) + rounding


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("bandwidth", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_bandwidths_and_offsets(name: str, bandwidth: float, offset: float) -> None:
    """Keys spread over one unit, some equal to the query, far from the origin or near it."""
    query = torch.rand(9, 2, dtype=torch.float64)
    key = torch.cat([query[:5], torch.rand(41, 2, dtype=torch.float64)])
    value = torch.randn(46, 3, dtype=torch.float64)
    similarity = getattr(qkv, name)(bandwidth=bandwidth)
    tensors = [query + offset, key + offset, value]
    found = qkv.attend(*tensors, similarity=similarity, operator="fused")
    reference = qkv.attend(*tensors, similarity=similarity, operator="dense")
    torch.testing.assert_close(found, reference, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_scores_of_ten_thousand(scale: float) -> None:
    similarity = qkv.Additive(3, 3, 5)
    with torch.no_grad():
        similarity.weight.fill_(scale / 5)
    query, key, value = (torch.randn(300, 3) for _ in range(3))
    found = qkv.attend(query, key, value, similarity=similarity, operator="fused")
    exact_inputs = [x.double() for x in (query, key, value)]
    exact = qkv.attend(*exact_inputs, similarity=similarity.double(), operator="dense")
    assert found.isfinite().all()
    assert (found - exact).abs().median() < 1e-2  # a score of 1e4 is known to 1e-3 in float32


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_the_kernels_themselves_keep_masked_nan_out(kind: str) -> None:
    """The quarantine stands before them; this is the second line."""
    query, key, value = torch.randn(3, 2, 11, 4, dtype=torch.float64).unbind()
    parameter = torch.ones(1 if kind == "gated" else 4, dtype=torch.float64)
    mask = torch.ones(11, 11, dtype=torch.bool)
    mask[:, 3] = False
    mask[5] = False
    call = Call(query, key, value, parameter, None, None, None, mask, None, kind, 0.0)
    clean = ops.attend(call)
    for junk in (torch.nan, torch.inf):
        key[:, 3], value[:, 3] = junk, junk
        found = ops.attend(call)
        for own, reference in zip(found, clean, strict=True):
            torch.testing.assert_close(own, reference)
    assert (clean[0][:, 5] == 0).all()
    assert (clean[1][:, 5] == -torch.inf).all()


def test_the_same_bits_every_time() -> None:
    similarity = _make("Additive", 5, torch.float32)
    tensors = [torch.randn(3, 300, 5) for _ in range(3)]
    first = _gradients(tensors, "fused", similarity=similarity)
    for _ in range(5):
        again = _gradients(tensors, "fused", similarity=similarity)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_many_threads_while_the_number_of_torchs_threads_changes() -> None:
    before = torch.get_num_threads()
    tensors = [torch.randn(2, 150, 5) for _ in range(3)]
    expected = qkv.attend(*tensors, similarity="laplacian", operator="fused")

    def work(index: int) -> bool:
        found = qkv.attend(*tensors, similarity="laplacian", operator="fused")
        return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)

    try:
        with ThreadPoolExecutor(8) as pool:
            for threads in (1, 2, 4, 1):
                torch.set_num_threads(threads)
                assert all(pool.map(work, range(400)))
    finally:
        torch.set_num_threads(before)


def test_idle_threads_are_idle() -> None:
    tensors = [torch.randn(500, 5) for _ in range(3)]
    qkv.attend(*tensors, similarity="laplacian", operator="fused")
    start = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - start < 0.1
