"""qkv's MultiheadAttention against torch's, over every option of both."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.nn import MultiheadAttention

BATCH, N, M, HEADS, HEAD, KDIM, VDIM = 2, 5, 7, 3, 4, 11, 13
D = HEADS * HEAD

CONSTRUCTOR: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "bias_kv and zero": {"add_bias_kv": True, "add_zero_attn": True},
    "kdim": {"kdim": KDIM},
    "kdim, vdim, bias_kv": {"kdim": KDIM, "vdim": VDIM, "add_bias_kv": True},
}
MASKS = ["none", "boolean", "floating", "per head", "floating per head", "causal hint"]
PADDINGS = ["none", "boolean", "floating"]

every_layer = pytest.mark.parametrize("options", CONSTRUCTOR.values(), ids=CONSTRUCTOR.keys())


def pair(
    dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    theirs = nn.MultiheadAttention(D, HEADS, dtype=dtype, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)  # also the biases, which torch starts at 0
    ours = MultiheadAttention(D, HEADS, dtype=dtype, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def attn_mask(kind: str, n: int, m: int, dtype: torch.dtype) -> Tensor | None:
    heads = (BATCH * HEADS,) if "per head" in kind else ()
    if kind == "none":
        return None
    if kind == "causal hint":
        return torch.ones(n, m, dtype=torch.bool).triu(1)
    mask = torch.rand(*heads, n, m) < 0.3
    mask[..., 0] = False  # torch gives NaN where nothing may be attended to
    if "floating" in kind:
        return torch.randn(*heads, n, m, dtype=dtype).masked_fill(mask, -torch.inf)
    return mask


def padding(kind: str, m: int, dtype: torch.dtype) -> Tensor | None:
    if kind == "none":
        return None
    mask = torch.zeros(BATCH, m, dtype=torch.bool)
    mask[1, m - 2 :] = True
    return (
        torch.zeros(BATCH, m, dtype=dtype).masked_fill(mask, -torch.inf)
        if kind == "floating"
        else mask
    )


def inputs(options: dict[str, Any], n: int, m: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    query = torch.randn(BATCH, n, D, dtype=dtype)
    key = torch.randn(BATCH, m, options.get("kdim", D), dtype=dtype)
    value = torch.randn(BATCH, m, options.get("vdim", D), dtype=dtype)
    return query, key, value


def _named(case: str, message: str) -> str:
    return f"{case}: {message}"


@every_layer
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")
def test_answers_weights_and_gradients_agree(options: dict[str, Any], mask: str) -> None:
    for pad, need_weights, batch_first, training in itertools.product(
        PADDINGS, (True, False), (True, False), (True, False)
    ):
        theirs, ours = pair(batch_first=batch_first, **options)
        theirs.train(training), ours.train(training)
        n, m = (M, M) if mask == "causal hint" else (N, M)
        tensors = inputs(options, n, m, torch.float64)
        if not batch_first:
            tensors = tuple(tensor.transpose(0, 1) for tensor in tensors)
        arguments: dict[str, Any] = {
            "attn_mask": attn_mask(mask, n, m, torch.float64),
            "key_padding_mask": padding(pad, m, torch.float64),
            "need_weights": need_weights,
            "average_attn_weights": batch_first,
        }
        results = []
        for layer in (theirs, ours):
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            # torch is not given the hint: under it, it would hide the keys that it adds.
            hint = mask == "causal hint" and layer is ours
            answer, weights = layer(*leaves, is_causal=hint, **arguments)
            grads = torch.autograd.grad(answer.sin().sum(), [*leaves, *layer.parameters()])
            results.append((answer, weights, *grads))
        case = f"{pad=}, {need_weights=}, {batch_first=}, {training=}"
        for expected, got in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12, msg=partial(_named, case))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_self_attention_agrees_in_float32_where_torch_takes_its_fast_path(
    need_weights: bool, batch_first: bool
) -> None:
    theirs, ours = (layer.eval() for layer in pair(torch.float32, batch_first=batch_first))
    x = torch.randn(BATCH, N, D)
    with torch.no_grad():
        expected, got = (layer(x, x, x, need_weights=need_weights) for layer in (theirs, ours))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("mask", ["none", "boolean", "per head"])
def test_a_single_sequence_agrees(batch_first: bool, average: bool, mask: str) -> None:
    theirs, ours = pair(batch_first=batch_first)
    query, key, value = (tensor[0] for tensor in inputs({}, N, M, torch.float64))
    chosen = attn_mask(mask, N, M, torch.float64)
    if chosen is not None and chosen.ndim == 3:
        chosen = chosen[:HEADS]
    padded = torch.arange(M) > 4
    expected, got = (
        layer(
            query,
            key,
            value,
            attn_mask=chosen,
            key_padding_mask=padded,
            average_attn_weights=average,
        )
        for layer in (theirs, ours)
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@every_layer
def test_one_seed_gives_one_layer_and_states_load_both_ways(options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(D, HEADS, **options)
    torch.manual_seed(3)
    ours = MultiheadAttention(D, HEADS, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=0, atol=0)
    nn.init.normal_(ours.out_proj.weight)
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


def test_dropout_keeps_the_mean_and_returns_the_weights_that_made_the_answer() -> None:
    layer = MultiheadAttention(D, 1, dropout=0.5, batch_first=True).double()
    x = torch.randn(1, 211, D, dtype=torch.float64)
    answer, weights = layer(x, x, x)
    share = (weights == 0).double().mean().item()
    assert 0.45 < share < 0.55
    value = x @ layer.in_proj_weight[2 * D :].T + layer.in_proj_bias[2 * D :]  # type: ignore[index]
    torch.testing.assert_close(answer, layer.out_proj(weights @ value))
    _, kept = layer.eval()(x, x, x)
    torch.testing.assert_close(weights[weights != 0], 2 * kept[weights != 0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_where_nothing_may_be_attended_to_the_answer_is_zero_not_nan(need_weights: bool) -> None:
    _, layer = pair(bias=False, batch_first=True)
    x = torch.randn(BATCH, N, D, dtype=torch.float64, requires_grad=True)
    nothing = torch.ones(N, N, dtype=torch.bool)
    nothing[1:] = False  # query 0 may attend to nothing
    answer, weights = layer(x, x, x, attn_mask=nothing, need_weights=need_weights)
    assert (answer[:, 0] == 0).all()
    assert weights is None or (weights[:, 0] == 0).all()
    answer.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
