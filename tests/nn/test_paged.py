"""A cache of pages: stepwise equal to the full pass, however it grew, forked and forgot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.nn import (
    Embedding,
    Encoder,
    EncoderLayer,
    MultiheadAttention,
    PagedCache,
    Rotary,
    Sinusoidal,
)

BATCH, N, HEADS, HEAD, PAGE = 3, 11, 4, 2, 3
D = HEADS * HEAD

SIMILARITIES: dict[str, Any] = {
    "scaled_dot": None,
    "cosine": "cosine",
    "epanechnikov": qkv.Epanechnikov(bandwidth=2.0),
    "bilinear": qkv.Bilinear,
    "additive": qkv.Additive,
    "gated": qkv.Gated,
    "callable": lambda query, key: -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1),
}


def layer_of(**options: Any) -> MultiheadAttention:
    options = {"mask": qkv.mask.Causal(), "batch_first": True, "dtype": torch.float64, **options}
    return MultiheadAttention(D, HEADS, **options).requires_grad_(False)


def words(n: int = N) -> Tensor:
    return torch.randn(BATCH, n, D, dtype=torch.float64)


def steps(layer: MultiheadAttention, x: Tensor, cache: PagedCache, sizes: list[int]) -> Tensor:
    parts = x.split(sizes, dim=1)
    answers = [layer(part, part, part, cache=cache, need_weights=False)[0] for part in parts]
    return torch.cat(answers, dim=1)


def assert_same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"kv_heads": 2}, {"rotary": Rotary()}, {"position_bias": qkv.bias.Alibi(HEADS)}],
    ids=["plain", "grouped", "rotary", "alibi"],
)
def test_step_by_step_is_the_whole(similarity: Any, options: Any) -> None:
    layer, x = layer_of(similarity=similarity, **options), words()
    whole, _ = layer(x, x, x, need_weights=False)
    for sizes in ([1] * N, [4, 1, 1, 3, 2], [N]):
        assert_same(steps(layer, x, PagedCache(PAGE), sizes), whole)


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("window", [0, 3, 7])
def test_a_window_lets_pages_go_and_changes_nothing(window: int, kv_heads: int) -> None:
    x = words(17)
    seen = qkv.mask.Causal() & qkv.mask.Window(window, 0)
    whole_layer = layer_of(mask=seen, kv_heads=kv_heads)
    expected, _ = whole_layer(x, x, x, need_weights=False)
    layer = layer_of(kv_heads=kv_heads)
    layer.load_state_dict(whole_layer.state_dict())
    for sizes in ([1] * 17, [4, 6, 1, 6]):
        cache = PagedCache(PAGE, window=window)
        assert_same(steps(layer, x, cache, sizes), expected)
        if sizes[-1] == 1:
            kept = sum(1 for _ in cache.filled())
            assert kept <= -(-(window + 1) // PAGE) + 1
    assert_same(steps(whole_layer, x, PagedCache(PAGE, window), [1] * 17), expected)


def test_pages_are_not_moved_when_the_cache_grows() -> None:
    layer, x, cache = layer_of(), words(), PagedCache(PAGE)
    steps(layer, x[:, :4], cache, [4])
    before = [page.key.data_ptr() for page in cache.filled()]
    steps(layer, x[:, 4:], cache, [1] * (N - 4))
    after = [page.key.data_ptr() for page in cache.filled()]
    assert after[: len(before)] == before
    assert [page.start for page in cache.filled()] == [0, 3, 6, 9]


def test_sequences_share_their_prefix() -> None:
    layer, prefix, cache = layer_of(similarity=qkv.Additive), words(7), PagedCache(PAGE)
    steps(layer, prefix, cache, [7])
    ends = [words(n) for n in (1, 4, 5)]
    forks = [cache.fork() for _ in ends]
    for fork, end in zip(forks, ends, strict=True):
        x = torch.cat([prefix, end], dim=1)
        whole, _ = layer(x, x, x, need_weights=False)
        assert_same(steps(layer, end, fork, [1] * end.shape[1]), whole[:, 7:])
        shared = [page.key.data_ptr() for page in cache.filled()][:2]  # full ones
        assert [page.key.data_ptr() for page in fork.filled()][:2] == shared
    own = {next(p.key.data_ptr() for p in fork.filled() if p.start == 6) for fork in forks}
    assert len(own) == 3  # who writes has a page of its own
    assert cache.length == 7
    rest = words(2)
    x = torch.cat([prefix, rest], dim=1)
    whole, _ = layer(x, x, x, need_weights=False)
    assert_same(steps(layer, rest, cache, [1, 1]), whole[:, 7:])


def test_a_fork_that_forgets_leaves_the_others_alone() -> None:
    layer, x, cache = layer_of(), words(), PagedCache(PAGE)
    steps(layer, x[:, :8], cache, [8])
    fork = cache.fork()
    fork.truncate(4)
    steps(layer, words(3), fork, [3])
    whole, _ = layer(x, x, x)
    assert_same(steps(layer, x[:, 8:], cache, [1] * 3), whole[:, 8:])


def test_an_encoder_decodes_with_pages() -> None:
    layers = [EncoderLayer(D, HEADS, 13, mask=qkv.mask.Causal()) for _ in range(2)]
    encoder = Encoder(Embedding(29, D, Sinusoidal()), layers).eval().requires_grad_(False)
    tokens = torch.randint(29, (BATCH, N))
    caches = [PagedCache(PAGE) for _ in layers]
    parts = [encoder(token, caches=caches) for token in tokens.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), encoder(tokens), rtol=0, atol=1e-5)


def test_mistakes_are_named() -> None:
    layer, x, cache = layer_of(), words(), PagedCache(PAGE)
    with pytest.raises(ValueError, match=r"^page_size must be at least 1; got 0$"):
        PagedCache(0)
    with pytest.raises(ValueError, match=r"^window must be at least 0; got -1$"):
        PagedCache(window=-1)
    with pytest.raises(ValueError, match="a paged cache supports neither weights nor dropout"):
        layer(x, x, x, cache=cache)
    cache = PagedCache(PAGE)
    steps(layer, x, cache, [N])
    with pytest.raises(ValueError, match=r"key must have shape \(3, 4, 1, 2\) to match the cache"):
        steps(layer, x[:2, :1], cache, [1])
    with pytest.raises(ValueError, match=r"^length must be between 0 and 11; got 12$"):
        cache.truncate(12)
    with pytest.raises(ValueError, match=r"TopK\(2\)\) ranks all keys|TopK\(2\) ranks all keys"):
        layer(x, x, x, cache=cache, need_weights=False, mask=qkv.mask.TopK(2))
    with pytest.raises(RuntimeError, match=r"keeps no gradients; decode under torch.no_grad"):
        layer.requires_grad_()(x, x, x, cache=PagedCache(), need_weights=False)
