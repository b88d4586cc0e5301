"""Graphs that serve any length and batch: torch.export, few graphs under torch.compile, ONNX."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.export import Dim

import qkv
import qkv.nn

SLOPES = torch.tensor([0.5, 0.25])

CASES: dict[str, dict[str, Any]] = {
    "dot": {},
    "causal": {"mask": qkv.mask.Causal()},
    "window": {"mask": qkv.mask.Window(3, 2)},
    "rule": {"mask": lambda query, key: (query - key).abs() < 3},
    "bias": {"bias": qkv.bias.Alibi(SLOPES), "mask": qkv.mask.Causal()},
    "topk": {"mask": qkv.mask.TopK(2)},
    "cosine": {"similarity": "cosine"},
    "gaussian": {"similarity": qkv.Gaussian(0.7)},
    "additive": {"similarity": qkv.Additive(5, 5, 7), "mask": qkv.mask.Causal()},
    "equal": {"similarity": "equal"},
    "callable": {"similarity": lambda query, key: query @ key.mT},
}


class Attend(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        if isinstance(options.get("similarity"), nn.Module):
            self.similarity = options["similarity"]  # whose parameters the graph is to hold

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, **self.options)


class Layer(nn.Module):
    def __init__(self, mask: Any = None, **options: Any) -> None:
        super().__init__()
        self.layer = qkv.nn.MultiheadAttention(10, 2, batch_first=True, **options)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x, x, x, mask=self.mask, need_weights=False)[0]
        return answer


def _tokens(batch: int, n: int, **options: Any) -> list[Tensor]:
    query, key, value = torch.randint(-2, 3, (3, batch, 2, n, 5)).float().unbind()  # some are equal
    return [x.clone().requires_grad_(**options) for x in (query, key, value)]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CASES)
def test_an_exported_graph_serves_any_length_and_batch(name: str) -> None:
    module = Attend(**CASES[name]).eval()
    sizes = {0: Dim("batch"), 2: Dim("length", min=2)}  # as many as the k best
    program = torch.export.export(
        module, tuple(_tokens(3, 13, requires_grad=False)), dynamic_shapes=[sizes] * 3
    )
    exported = program.module()
    for batch, n in ((3, 13), (2, 7), (5, 301), (1, 2)):
        tokens = _tokens(batch, n, requires_grad=False)
        torch.testing.assert_close(exported(*tokens), module(*tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("similarity", [None, qkv.Additive], ids=["dot", "additive"])
def test_an_exported_layer_serves_any_length_and_batch(similarity: Any) -> None:
    layer = Layer(mask=qkv.mask.Causal(), similarity=similarity).eval()
    sizes = {0: Dim("batch"), 1: Dim("length")}
    program = torch.export.export(layer, (torch.randn(3, 13, 10),), dynamic_shapes=[sizes])
    for batch, n in ((3, 13), (2, 7), (5, 301), (1, 2), (1, 1)):
        x = torch.randn(batch, n, 10)
        torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["dot", "window", "bias", "topk", "additive"])
def test_twelve_lengths_take_few_graphs(name: str) -> None:
    module = Attend(**CASES[name])
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    for n in (5, 8, 13, 16, 31, 64, 100, 128, 200, 257, 400, 512):
        tokens = _tokens(2, n)
        found, expected = compiled(*tokens), module(*tokens)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2  # of the first length, and of all others; torch's own as many


@pytest.mark.filterwarnings("default")
def test_one_graph_of_symbols_computes_gradients() -> None:
    torch._dynamo.reset()
    module = Attend(similarity=qkv.Additive(5, 5, 7), mask=qkv.mask.Window(3, 2))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (9, 40):
        tokens = _tokens(2, n)
        for own, other in zip(
            torch.autograd.grad(compiled(*tokens).square().sum(), tokens),
            torch.autograd.grad(module(*tokens).square().sum(), tokens),
            strict=True,
        ):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("mask", "similarity"),
    [(qkv.mask.Causal(), None), (qkv.mask.Window(2, 1), qkv.Additive)],
    ids=["causal", "window additive"],
)
def test_onnx_models_of_layers_serve_any_length_and_batch(mask: Any, similarity: Any) -> None:
    layer = Layer(mask=mask, similarity=similarity).eval()
    sizes = {0: Dim("batch"), 1: Dim("length")}
    program = torch.onnx.export(
        layer, (torch.randn(3, 13, 10),), dynamo=True, dynamic_shapes=[sizes], verbose=False
    )
    assert program is not None
    evaluator = ReferenceEvaluator(program.model_proto)
    for batch, n in ((3, 13), (2, 7), (1, 40)):
        x = torch.randn(batch, n, 10)
        (found,) = evaluator.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), layer(x), rtol=1e-4, atol=1e-5)
