"""Full models, packed sentences, recordings and second derivatives, against common alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import can_measure_memory, least_seconds, peak_extra_bytes, seconds

NEW_TOKENS = 256


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    yield from _hessian_vector_product()
    yield from _packed()
    yield from _recording()
    qkv_for_models: Any = import_module("qkv.integrations.transformers")
    qkv_for_models.register()
    transformers: Any = import_module("transformers")
    yield _encoder(transformers)
    yield _decode(transformers)


def _encoder(transformers: Any) -> Figure:
    configuration = transformers.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    words = torch.randint(0, 30_000, (8, 128))
    models = {}
    for name in ("sdpa", "qkv"):
        configuration._attn_implementation = name
        models[name] = transformers.BertModel(configuration)
    theirs, ours = seconds(
        *(lambda model=model: model(words).last_hidden_state.sum().backward()
          for model in models.values()), least=8.0,
    )  # fmt: skip
    work = "BERT-base-sized encoder, 8 × 128 tokens, forward and backward, against sdpa"
    return Figure(work, ours / theirs, "×", "≤ 1.02")


def _decode(transformers: Any) -> Figure:
    configuration = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=1, num_attention_heads=32,
        num_key_value_heads=4, vocab_size=1000, max_position_embeddings=512,
    )  # fmt: skip
    models = {}
    for name in ("sdpa", "qkv"):
        configuration._attn_implementation = name
        models[name] = transformers.LlamaForCausalLM(configuration).eval()
    prompt = torch.randint(0, 1000, (1, 16))

    def generate(model: Any, **options: Any) -> None:
        model.generate(
            prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
            pad_token_id=0, disable_compile=True, cache_implementation="static", **options,
        )  # fmt: skip

    theirs, ours = seconds(
        lambda: generate(models["sdpa"]), lambda: generate(models["qkv"]), rounds=3
    )
    work = f"Llama-sized block, 32 heads on 4, decode {NEW_TOKENS} tokens, static cache, and sdpa"
    return Figure(work, ours / theirs, "×", "≤ 1.05")


def _packed() -> Iterator[Figure]:
    """The same sentences one after another, and side by side, each filled up to the longest.

    What is padded is computed as if it were words, as is usual; qkv's own padded form leaves out
    the keys that `Lengths` names, so its time is printed beside.
    """
    lengths = torch.randint(5, 121, (64,))
    mask = qkv.mask.Documents(lengths)
    packed = [torch.randn(8, int(lengths.sum()), 64, requires_grad=True) for _ in range(3)]
    padded = [torch.randn(64, 8, 120, 64, requires_grad=True) for _ in range(3)]
    words = (torch.arange(120) < lengths.unsqueeze(-1))[:, None, None]  # (64, 1, 1, 120)

    def torchs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=words)

    additive = qkv.Additive(64, 64, 64)
    plain: dict[str, tuple[Any, Callable[..., Tensor]]] = {
        "additive": (additive, partial(qkv.attend, similarity=additive)),
        "dot": (qkv.ScaledDot(), torchs),
    }
    for name, (similarity, usual) in plain.items():

        def both_ways(attend: Callable[..., Tensor], tokens: list[Tensor]) -> None:
            attend(*tokens).sum().backward()

        attend = partial(qkv.attend, similarity=similarity)
        theirs, shorter, ours = seconds(
            partial(both_ways, usual, padded),
            partial(both_ways, partial(attend, mask=qkv.mask.Lengths(lengths)), padded),
            partial(both_ways, partial(attend, mask=mask), packed),
            least=3.0,
        )
        work = f"64 sentences of 5 to 120 tokens, packed, {name}, both ways, against padding to 120"
        note = f"{shorter / ours:.2f}× against qkv's own under Lengths"
        yield Figure(work, theirs / ours, "× faster", "≥ 1.8", note)


def _recording() -> Iterator[Figure]:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    words = torch.randn(1, 512, 256)

    def plain() -> None:
        with torch.no_grad():
            model(words)

    def recorded() -> None:
        with torch.no_grad(), qkv.record(model):
            model(words)

    theirs, ours = least_seconds(plain, recorded, budget=6.0)
    work = "recording a 12-layer model, 512 tokens"
    yield Figure(f"{work}, against the model alone", ours / theirs, "×", "≤ 1.15")
    if can_measure_memory():
        extra = (peak_extra_bytes(recorded) - peak_extra_bytes(plain)) / 2**20
        yield Figure(f"{work}, beside the model's own", extra, "MB", "≤ 64")


def _hessian_vector_product() -> Iterator[Figure]:
    additive = qkv.Additive(64, 64, 128)
    tokens = [torch.randn(512, 64, requires_grad=True) for _ in range(3)]
    direction = [torch.randn(512, 64) for _ in range(3)]

    def formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer: Tensor = additive(query, key).softmax(-1) @ value
        return answer

    def attend(*tokens: Tensor) -> Tensor:
        return qkv.attend(*tokens, similarity=additive)

    def product(of: Callable[..., Tensor]) -> None:
        firsts = torch.autograd.grad(of(*tokens).square().sum(), tokens, create_graph=True)
        inner = sum((x * y).sum() for x, y in zip(firsts, direction, strict=True))
        torch.autograd.grad(inner, tokens)  # type: ignore[arg-type]

    theirs, ours = least_seconds(partial(product, formula), partial(product, attend), budget=8.0)
    work = "Hessian-vector product of additive attention, 512², hidden 128"
    yield Figure(f"{work}, against the formula", theirs / ours, "× faster", "≥ 2")
    if can_measure_memory():
        peaks = [peak_extra_bytes(partial(product, of)) / 2**20 for of in (attend, formula)]
        yield Figure(f"{work}, memory", peaks[0], "MB", "", f"the formula takes {peaks[1]:.0f} MB")
