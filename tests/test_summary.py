from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import qkv
from qkv.visualization import summary

LAYERS, HEADS, N, M = 2, 3, 5, 7


def weights(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).softmax(-1)


def test_entropy_equals_a_loop() -> None:
    w = weights(HEADS, N, M)
    w[1] = torch.eye(M, dtype=torch.float64)[:N]
    expected = [
        sum(-x * math.log2(x) for row in head.tolist() for x in row if x > 0) / N for head in w
    ]
    torch.testing.assert_close(summary.entropy(w), torch.tensor(expected, dtype=torch.float64))
    assert summary.entropy(w)[1] == 0
    assert summary.entropy(np.full((2, 8), 1 / 8)) == pytest.approx(3)


@pytest.mark.parametrize(("n", "m"), [(N, N), (N, M), (1, M)])
def test_distance_equals_a_loop_aligned_to_the_end(n: int, m: int) -> None:
    w = weights(HEADS, n, m)
    expected = [
        sum(head[i, j].item() * abs(i + m - n - j) for i in range(n) for j in range(m)) / n
        for head in w
    ]
    torch.testing.assert_close(summary.distance(w), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("n", "m"), [(N, N), (N, M), (1, M)])
def test_information_equals_a_loop(n: int, m: int) -> None:
    w = weights(HEADS, n, m)
    expected = []
    for head in w.tolist():
        key = [sum(row[j] for row in head) / n for j in range(m)]
        apart = dict.fromkeys(range(-n, m + 1), 0.0)
        for i in range(n):
            for j in range(m):
                apart[j - i] += head[i][j] / n
        bits = 0.0
        for i in range(n):
            for j in range(m):
                if abs(i + m - n - j) > 1:
                    e = max(key[j], apart[j - i])
                    bits += head[i][j] * math.log2(head[i][j] / e) / n
        expected.append(bits)
    torch.testing.assert_close(summary.information(w), torch.tensor(expected, dtype=torch.float64))


def test_the_head_that_tells_most_is_neither_even_nor_fixed() -> None:
    n = 11
    pairs = torch.eye(n).double()[torch.tensor([7, 9, 4, 10, 2, 8, 6, 0, 5, 1, 3])]
    back = torch.eye(n).double().roll(-3, dims=1)
    even, sink = torch.full((n, n), 1 / n).double(), torch.eye(n).double()[[0] * n]
    w = torch.stack(
        [torch.stack([even, sink]), torch.stack([back, pairs]), torch.stack([even] * 2)]
    )
    assert summary.most_telling(w) == (1, 1)
    assert summary.most_telling(w.numpy()) == (1, 1)
    w[0, 0] = math.nan
    assert summary.most_telling(w) == (1, 1)


def test_rows_that_look_at_nothing_do_not_shorten_the_distance() -> None:
    w = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert summary.distance(w).item() == pytest.approx(0.5)


def test_mean_over_heads() -> None:
    w = weights(LAYERS, HEADS, N, M)
    torch.testing.assert_close(summary.mean_over_heads(w), sum(w[:, h] for h in range(3)) / 3)


def test_rollout_equals_the_paper_in_a_loop() -> None:
    w = weights(LAYERS, 1, HEADS, N, N)
    expected = np.eye(N)
    for layer in w[:, 0].numpy():
        mixed = 0.5 * layer.mean(0) + 0.5 * np.eye(N)
        expected = (mixed / mixed.sum(-1, keepdims=True)) @ expected
    got = summary.rollout(w.numpy())
    np.testing.assert_allclose(got[0], expected)
    np.testing.assert_allclose(got.sum(-1), 1)
    torch.testing.assert_close(summary.rollout(w, residual=1.0)[0], torch.eye(N).double())


def test_hiding_renormalises_and_keeps_the_proportions() -> None:
    w = weights(HEADS, N, M)
    got = summary.hide(w, [0, -1])
    torch.testing.assert_close(got, w[..., 1:-1] / w[..., 1:-1].sum(-1, keepdim=True))
    alone = torch.eye(3)
    assert summary.hide(alone)[0].eq(0).all()  # it looked at the first alone


def test_merging_equals_a_loop() -> None:
    w = weights(HEADS, N, M)
    queries, keys = [0, 1, 1, None, 2], [None, 0, 0, 2, 1, 1, None]
    got = summary.merge(w, queries, keys)
    assert got.shape == (HEADS, 3, 3)
    for h in range(HEADS):
        for a in range(3):
            rows = []
            for i in [i for i in range(N) if queries[i] == a]:
                row = [sum(w[h, i, j].item() for j in range(M) if keys[j] == b) for b in range(3)]
                rows.append([x / sum(row) for x in row])
            for b in range(3):
                expected = sum(row[b] for row in rows) / len(rows)
                assert got[h, a, b].item() == pytest.approx(expected)
    torch.testing.assert_close(got.sum(-1), torch.ones(HEADS, 3, dtype=torch.float64))


def test_merging_one_token_a_word_changes_nothing() -> None:
    w = weights(N, M)
    torch.testing.assert_close(summary.merge(w, range(N), range(M)), w)
    torch.testing.assert_close(summary.merge(w), w)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda w: summary.merge(w, keys=[0, 1]),
            r"keys must name a word for each of 7 tokens; got 2",
        ),
        (lambda w: summary.merge(w, [0, 2, 2, 2, 2]), r"queries must number the words 0, 1, 2"),
        (lambda w: summary.merge(w, [None] * 5), r"queries must number the words"),
        (lambda w: summary.hide(w, [7]), r"keys must be between 0 and 6; got 7"),
        (summary.rollout, r"shape \(layers, ..., heads, n, n\); got \(5, 7\)"),
        (summary.mean_over_heads, r"shape \(..., heads, n, m\); got \(5, 7\)"),
        (lambda w: summary.rollout(w.new_ones(1, 1, 2, 2), 2.0), r"between 0 and 1; got 2.0"),
    ],
)
def test_mistakes(ask: Callable[[torch.Tensor], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ask(weights(N, M))


def test_what_is_recorded_can_be_summed_up() -> None:
    layers = [qkv.nn.EncoderLayer(6, 3, 11) for _ in range(2)]
    encoder = qkv.nn.Encoder(None, layers).eval()
    with torch.no_grad(), qkv.record(encoder) as calls:
        encoder(torch.randn(1, N, 6))
    rolled = summary.rollout(calls.stacked())
    torch.testing.assert_close(rolled.sum(-1), torch.ones(N))
