"""Layers against torch's own: the same weights, the same work, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import seconds
from qkv.nn import EncoderLayer, KVCache, MultiheadAttention

D, HEADS, D_FF, DECODED = 512, 8, 2048, 512
SAMPLED = 32
SHAPES = ((8, 512), (1, 4096))  # batch × tokens


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    for batch, n in SHAPES:
        yield from _multihead(torch.randn(batch, n, D))
    yield from _weights(torch.randn(*SHAPES[0], D))
    for batch, n in SHAPES:
        yield from _encoder_layer(torch.randn(batch, n, D))
    yield from _additive(torch.randn(1, 512, D))
    yield from _decoding()


def _multihead(x: Tensor) -> Iterator[Figure]:
    theirs, ours = _pair()
    theirs.eval(), ours.eval()
    with torch.no_grad():
        ratio = _ratio(theirs, ours, x, x, x, need_weights=False)
    yield Figure(f"MultiheadAttention, {_size(x)}, forward", ratio, "×", "≤ 1.05")
    theirs.train(), ours.train()
    ratio = _ratio(_both_ways(theirs), _both_ways(ours), x, x, x, need_weights=False)
    yield Figure(f"… forward and backward, {_size(x)}", ratio, "×", "≤ 1.05")


def _weights(x: Tensor) -> Iterator[Figure]:
    theirs, ours = _pair()
    yield Figure("… with weights, train", _ratio(theirs, ours, x, x, x), "×", "≤ 1.05")
    theirs.eval(), ours.eval()
    with torch.no_grad():
        yield Figure("… with weights, eval", _ratio(theirs, ours, x, x, x), "×", "≤ 1.05")


def _encoder_layer(x: Tensor) -> Iterator[Figure]:
    theirs = nn.TransformerEncoderLayer(D, HEADS, D_FF, dropout=0.0, batch_first=True)
    ours = EncoderLayer(D, HEADS, D_FF, dropout=0.0)
    ours.load_state_dict(theirs.state_dict())
    ratio = _ratio(_both_ways(theirs), _both_ways(ours), x)
    yield Figure(f"EncoderLayer, {_size(x)}, forward and backward", ratio, "×", "≤ 1.05")


def _additive(x: Tensor) -> Iterator[Figure]:
    layer = MultiheadAttention(D, HEADS, batch_first=True, similarity=qkv.Additive)

    def eager(x: Tensor) -> Tensor:
        """The same layer as it is written by hand, every score at once."""
        assert layer.in_proj_weight is not None
        packed = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
        q, k, v = packed.unflatten(-1, (3, HEADS, D // HEADS)).permute(2, 3, 0, 1, 4).unbind()
        answers = []
        for head in range(HEADS):
            similarity: Any = layer.similarity[head]  # type: ignore[index]
            projected = similarity.query_projection(q[head]), similarity.key_projection(k[head])
            hidden = torch.tanh(projected[0].unsqueeze(-2) + projected[1].unsqueeze(-3))
            answers.append(torch.softmax(hidden @ similarity.weight, dim=-1) @ v[head])
        return layer.out_proj(torch.cat(answers, dim=-1))  # type: ignore[no-any-return]

    plain, our_time = seconds(
        lambda: eager(x).sum().backward(),
        lambda: layer(x, x, x, need_weights=False)[0].sum().backward(),
        least=3.0,
    )
    work = "MultiheadAttention(similarity=Additive), 512 tokens, forward and backward"
    yield Figure(work, plain / our_time, "× faster", "≥ 12", "than the same in eager torch")


def _decoding() -> Iterator[Figure]:
    layer = MultiheadAttention(D, HEADS, batch_first=True, mask=qkv.mask.Causal()).eval()
    x = torch.randn(SHAPES[0][0], DECODED, D)
    with torch.no_grad():
        ratio = _prefix_seconds(layer, x) / _cached_seconds(layer, x)
        work = f"decoding {DECODED} tokens with KVCache, against the whole prefix at each step"
        yield Figure(work, ratio, "× faster", "≥ 20", f"one prefix in {SAMPLED} timed")
        early, late = (_step_seconds(layer, length) for length in (16384, 65536))
    yield Figure("… a step after 65,536 tokens, against one after 16,384", late / early, "×", "≤ 5")


def _prefix_seconds(layer: MultiheadAttention, x: Tensor) -> float:
    start = time.perf_counter()
    for n in range(SAMPLED // 2, x.shape[1], SAMPLED):
        prefix = x[:, :n]
        layer(prefix, prefix, prefix, need_weights=False)
    return SAMPLED * (time.perf_counter() - start)


def _cached_seconds(layer: MultiheadAttention, x: Tensor) -> float:
    start, cache = time.perf_counter(), KVCache(x.shape[1])
    for token in x.split(1, dim=1):
        layer(token, token, token, need_weights=False, cache=cache)
    return time.perf_counter() - start


def _step_seconds(layer: MultiheadAttention, length: int) -> float:
    cache, token = KVCache(length + 1), torch.randn(1, 1, D)
    past = torch.randn(1, HEADS, length, D // HEADS)
    cache.append(past, past)

    def step() -> None:
        layer(token, token, token, need_weights=False, cache=cache)
        cache.truncate(length)

    return seconds(step)[0]


def _pair() -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    theirs = nn.MultiheadAttention(D, HEADS, batch_first=True)
    ours = MultiheadAttention(D, HEADS, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def _both_ways(layer: nn.Module) -> Callable[..., None]:
    def run(*args: Tensor, **options: Any) -> None:
        answer = layer(*args, **options)
        (answer if isinstance(answer, Tensor) else answer[0]).sum().backward()

    return run


def _ratio(
    theirs: Callable[..., Any], ours: Callable[..., Any], *args: Tensor, **options: Any
) -> float:
    plain, our_time = seconds(
        lambda: theirs(*args, **options), lambda: ours(*args, **options), least=4.0, rounds=9
    )
    return our_time / plain


def _size(x: Tensor) -> str:
    return f"{x.shape[0]} × {x.shape[1]:,} tokens"
