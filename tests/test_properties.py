"""Properties over shapes, masks, magnitudes and offsets, drawn by hypothesis."""

from __future__ import annotations

from itertools import pairwise

import oracle
import torch
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.operators import streamed

sizes = st.integers(1, 9)
magnitudes = st.sampled_from([1e-4, 1.0, 30.0, 1e4])
kernels = ["gaussian", "laplacian", "boxcar", "triangular", "epanechnikov"]


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, ...]:
    n, m, d, d_v = draw(sizes), draw(sizes), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    scale, offset = draw(magnitudes), draw(st.sampled_from([0.0, 1.0, 1e4]))
    query, key = (
        torch.randn(rows, d, generator=generator, dtype=torch.float64) * scale + offset
        for rows in (n, m)
    )
    value = torch.randn(m, d_v, generator=generator, dtype=torch.float64)
    mask = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=m, max_size=m), min_size=n, max_size=n))
    )
    return query, key, value, mask


@given(problems(), st.sampled_from(["dense", "streamed", None]), st.integers(1, 2000))
def test_softmax_of_any_magnitude_equals_the_oracle(
    problem: tuple[torch.Tensor, ...], operator: str | None, tile_bytes: int
) -> None:
    query, key, value, mask = problem
    before, streamed.TILE_BYTES = streamed.TILE_BYTES, tile_bytes
    try:
        for name, score in (("dot", oracle.dot), ("euclidean", oracle.euclidean)):
            found = qkv.attend(query, key, value, similarity=name, mask=mask, operator=operator)
            answers, _, _ = oracle.attention(
                query.tolist(),
                key.tolist(),
                value.tolist(),
                score,
                lambda b, i, j, n, m: mask[i, j],
            )
            # A score of 1e8 is known to 1e-8 only, in float64 too.
            largest = max(1.0, query.abs().max().item() ** 2)
            expected = torch.tensor(answers, dtype=torch.float64)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-13 * largest + 1e-12)
    finally:
        streamed.TILE_BYTES = before


@given(problems(), st.sampled_from(kernels), st.sampled_from([1e-3, 1.0, 1e3]))
def test_kernels_of_any_bandwidth_equal_the_oracle(
    problem: tuple[torch.Tensor, ...], name: str, bandwidth: float
) -> None:
    query, key, value, mask = problem
    similarity = getattr(qkv, name.capitalize())(bandwidth=bandwidth)
    found = qkv.attend(query, key, value, similarity=similarity, mask=mask)
    answers, _, _ = oracle.attention(
        query.tolist(), key.tolist(), value.tolist(), oracle.kernel(name, bandwidth),
        lambda b, i, j, n, m: mask[i, j],
    )  # fmt: skip
    largest = max(1.0, ((query.abs().max() + key.abs().max()) / bandwidth).item() ** 2)
    expected = torch.tensor(answers, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14 * largest + 1e-11)


@given(problems(), st.lists(st.integers(0, 9), max_size=5), st.randoms())
def test_splitting_the_keys_anyhow_gives_the_whole(
    problem: tuple[torch.Tensor, ...], cuts: list[int], random: object
) -> None:
    query, key, value, mask = problem
    m = key.shape[0]
    edges = [0, *sorted(min(cut, m) for cut in cuts), m]
    parts = [
        qkv.attend_partial(query, key[a:b], value[a:b], similarity="laplacian", mask=mask[:, a:b])
        for a, b in pairwise(edges)
    ]
    whole = qkv.attend_partial(query, key, value, similarity="laplacian", mask=mask)
    parts.append(qkv.Partial.nothing(like=whole))
    random.shuffle(parts)  # type: ignore[attr-defined]
    left = parts[0]
    for part in parts[1:]:
        left = left.merge(part)
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = part.merge(right)
    for merged in (left, right):
        torch.testing.assert_close(merged.answer, whole.answer, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(merged.log_total, whole.log_total, rtol=1e-9, atol=1e-12)
