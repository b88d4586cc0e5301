from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.nn import (
    Embedding,
    Encoder,
    EncoderLayer,
    KVCache,
    MultiheadAttention,
    PagedCache,
    Rotary,
    Sinusoidal,
)

BATCH, N, M, HEADS, HEAD, WORDS = 3, 11, 7, 4, 2, 29
D = HEADS * HEAD

SIMILARITIES: dict[str, Any] = {
    "scaled_dot": None,
    "cosine": "cosine",
    "gaussian": "gaussian",
    "epanechnikov": qkv.Epanechnikov(bandwidth=2.0),
    "bilinear": qkv.Bilinear,
    "additive": qkv.Additive,
    "gated": qkv.Gated,
    "callable": lambda query, key: -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1),
}
every_similarity = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)


def layer_of(dtype: torch.dtype = torch.float32, **options: Any) -> MultiheadAttention:
    options = {"mask": qkv.mask.Causal(), "batch_first": True, "dtype": dtype, **options}
    return MultiheadAttention(D, HEADS, **options).requires_grad_(False)


def steps(layer: MultiheadAttention, x: Tensor, cache: KVCache, sizes: list[int]) -> Tensor:
    parts = x.split(sizes, dim=1)
    answers = [layer(part, part, part, cache=cache, need_weights=False)[0] for part in parts]
    return torch.cat(answers, dim=1)


@every_similarity
@pytest.mark.parametrize("options", [{}, {"kv_heads": 2}, {"rotary": Rotary()}], ids=str)
@pytest.mark.parametrize("sizes", [[1] * N, [4, 1, 1, 3, 2]], ids=["one by one", "some at once"])
def test_step_by_step_is_the_whole(similarity: Any, options: Any, sizes: list[int]) -> None:
    layer, x = layer_of(similarity=similarity, **options), torch.randn(BATCH, N, D)
    whole, _ = layer(x, x, x, need_weights=False)
    cache = KVCache(capacity=N)
    torch.testing.assert_close(steps(layer, x, cache, sizes), whole, rtol=0, atol=1e-6)
    assert cache.length == N


def test_an_encoder_decodes_step_by_step() -> None:
    layers = [EncoderLayer(D, HEADS, 13, mask=qkv.mask.Causal()) for _ in range(2)]
    encoder = Encoder(Embedding(WORDS, D, Sinusoidal()), layers).eval().requires_grad_(False)
    tokens = torch.randint(WORDS, (BATCH, N))
    caches = [KVCache(N) for _ in layers]
    parts = [encoder(token, caches=caches) for token in tokens.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), encoder(tokens), rtol=0, atol=1e-6)


@every_similarity
def test_a_decoder_remembers_what_it_attends_to(similarity: Any) -> None:
    layer = layer_of(similarity=similarity, mask=None, batch_first=False)
    query, memory = torch.randn(2, BATCH, D), torch.randn(M, BATCH, D)
    cache = KVCache(M)
    expected, _ = layer(query, memory, memory)
    first, _ = layer(query[:1], memory, memory, cache=cache)
    second, _ = layer(query[1:], None, None, cache=cache)
    torch.testing.assert_close(torch.cat([first, second]), expected, rtol=0, atol=1e-6)


def test_the_past_is_not_copied() -> None:
    layer, x, cache = layer_of(), torch.randn(BATCH, N, D), KVCache(N)
    steps(layer, x[:, :4], cache, [4])
    place = cache.key.data_ptr(), cache.value.data_ptr()
    steps(layer, x[:, 4:], cache, [1] * (N - 4))
    assert (cache.key.data_ptr(), cache.value.data_ptr()) == place
    assert cache.key.shape == (BATCH, HEADS, N, HEAD)


def test_a_step_projects_new_keys_only() -> None:
    layer, cache = layer_of(similarity=qkv.Additive), KVCache(N)
    seen: list[int] = []
    for similarity in layer.similarity:  # type: ignore[union-attr]
        similarity.key_projection.register_forward_hook(  # type: ignore[union-attr]
            lambda _, inputs, __: seen.append(inputs[0].shape[-2])
        )
    steps(layer, torch.randn(BATCH, N, D), cache, [4, 1, 1, 5])
    assert seen == [4] * HEADS + [1] * 2 * HEADS + [5] * HEADS


def test_beams_go_on_from_the_entries_named() -> None:
    layer, x, cache = layer_of(similarity=qkv.Additive), torch.randn(BATCH, N, D), KVCache(N)
    order = torch.tensor([2, 0, 0, 1, 1])
    steps(layer, x[:, :-1], cache, [N - 1])
    cache.reorder(order)
    last = steps(layer, x[order, -1:], cache, [1])
    whole, _ = layer(x[order], x[order], x[order])
    torch.testing.assert_close(last[:, 0], whole[:, -1], rtol=0, atol=1e-6)


def test_what_is_forgotten_may_be_written_anew() -> None:
    layer, x, cache = layer_of(), torch.randn(BATCH, N, D), KVCache(N)
    steps(layer, torch.cat([x[:, :4], torch.randn(BATCH, 3, D)], dim=1), cache, [7])
    cache.truncate(4)
    rest = steps(layer, x[:, 4:], cache, [1] * (N - 4))
    whole, _ = layer(x, x, x)
    torch.testing.assert_close(rest, whole[:, 4:], rtol=0, atol=1e-6)


def test_half_precision_and_weights() -> None:
    layer, cache = layer_of(torch.bfloat16, similarity=qkv.Additive), KVCache(N)
    x = torch.randn(BATCH, N, D, dtype=torch.bfloat16)
    layer(x[:, :-1], x[:, :-1], x[:, :-1], cache=cache)
    _, weights = layer(x[:, -1:], x[:, -1:], x[:, -1:], cache=cache)
    assert weights.shape == (BATCH, 1, N)
    assert weights.dtype == torch.bfloat16


def test_mistakes_are_named() -> None:
    layer, x, cache = layer_of(), torch.randn(BATCH, N, D), KVCache(N - 1)
    with pytest.raises(ValueError, match=r"^capacity must be at least 1; got 0$"):
        KVCache(0)
    with pytest.raises(ValueError, match=r"may both be None only where cache holds some"):
        layer(x, None, None, cache=cache)
    with pytest.raises(
        ValueError, match=r"capacity exceeded: .* holds 0 of 10 positions, got 11 more"
    ):
        layer(x, x, x, cache=cache)
    steps(layer, x[:, :3], cache, [3])
    with pytest.raises(ValueError, match=r"key must have shape \(3, 4, 1, 2\) to match the cache"):
        steps(layer, x[:2, :1], cache, [1])
    with pytest.raises(ValueError, match=r"^length must be between 0 and 3; got 4$"):
        cache.truncate(4)
    with pytest.raises(ValueError, match=r"^cache is empty; the first call must bring key"):
        _ = KVCache(3).key
    with pytest.raises(RuntimeError, match=r"keeps no gradients; decode under torch.no_grad"):
        layer.requires_grad_()(x[:, :1], x[:, :1], x[:, :1], cache=cache)
    with pytest.raises(ValueError, match=r"cache cannot be used with add_bias_kv"):
        layer_of(add_zero_attn=True)(x, x, x, cache=cache)


@pytest.mark.parametrize("padded", [False, True])
def test_a_step_of_grouped_heads_repeats_no_keys(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = MultiheadAttention(24, 6, kv_heads=2, batch_first=True, mask=qkv.mask.Causal())
    cache, x = KVCache(7), torch.randn(3, 7, 24)
    lengths = qkv.mask.Lengths([7, 7, 7]) if padded else None
    with torch.no_grad():
        whole, _ = layer(x, x, x, need_weights=False)
        layer(x[:, :6], x[:, :6], x[:, :6], need_weights=False, cache=cache)
        asked: list[tuple[int, ...]] = []
        attend = qkv.attend

        def watched(query: torch.Tensor, key: torch.Tensor, *args: Any, **options: Any) -> Any:
            asked.append(tuple(key.shape))
            return attend(query, key, *args, **options)

        monkeypatch.setattr("qkv.pooling.attend", watched)
        last = x[:, 6:]
        step, _ = layer(last, last, last, need_weights=False, cache=cache, mask=lengths)
    torch.testing.assert_close(step, whole[:, 6:], rtol=0, atol=1e-5)
    assert asked == [(3, 2, 7, 4)]


@pytest.mark.skipif(not can_measure_memory(), reason="the system tells no high-water mark")
@pytest.mark.parametrize("paged", [False, True], ids=["in one", "in pages"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    ("similarity", "mask"),
    [
        (None, None),
        (None, qkv.mask.Window(50, 0)),
        (None, qkv.bias.Alibi(8)),
        (qkv.Additive(16, 16, 2), None),
    ],
    ids=["dot", "window", "alibi", "additive"],
)
def test_a_step_of_grouped_heads_copies_no_cache(
    similarity: Any, mask: Any, need_weights: bool, paged: bool
) -> None:
    if paged and need_weights:
        pytest.skip("pages give no weights")
    layer = MultiheadAttention(128, 8, kv_heads=1, similarity=similarity, mask=mask)
    cache = PagedCache(20_000) if paged else KVCache(60_001)
    x = torch.randn(60_001, 1, 128)
    with torch.no_grad():
        past, last = x[:-1], x[-1:]
        layer(past[:1], past, past, need_weights=False, cache=cache)

        def step() -> None:
            cache.truncate(60_000)
            layer(last, last, last, need_weights=need_weights, cache=cache)

        step()
        repeated = 8 * 60_001 * 16 * 4  # bytes, of values alone
        # Weights, where they are asked for, and scores take half as much as the values.
        assert peak_extra_bytes(step) < 0.7 * repeated
