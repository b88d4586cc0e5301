"""Plans: which operator, why, at what cost, and how it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import qkv
from qkv.plan import OPERATORS, readable_seconds
from qkv.similarity.base import FusedForm


def _sized(n: int, m: int, d: int = 8, d_v: int = 8) -> list[torch.Tensor]:
    return [torch.randn(n, d), torch.randn(m, d), torch.randn(m, d_v)]


@pytest.mark.parametrize(
    ("similarity", "mask", "dropout", "size", "operator"),
    [
        (None, None, 0.0, 16, "dense"),
        (None, None, 0.0, 4096, "sdpa"),
        ("cosine", qkv.mask.Causal(), 0.0, 512, "sdpa"),
        (qkv.Bilinear(8, 8), None, 0.0, 256, "dense"),
        (qkv.Bilinear(8, 8), None, 0.0, 4096, "sdpa"),
        (None, None, 0.1, 4096, "fused"),
        (None, qkv.mask.TopK(4), 0.0, 4096, "topk"),
        (None, qkv.mask.TopK(4) & qkv.mask.Causal(), 0.0, 16, "dense"),
        (None, qkv.mask.TopK(4) & qkv.mask.Causal(), 0.0, 64, "topk"),
        (None, qkv.mask.Causal(), 0.0, 4096, "sdpa"),
        (None, qkv.mask.Window(8, 8), 0.0, 4096, "fused"),
        (None, qkv.mask.Window(8, 8), 0.0, 64, "dense"),
        ("gaussian", None, 0.0, 16, "fused"),
        ("triangular", None, 0.0, 16, "fused"),
        ("gaussian", None, 0.0, 512, "fused"),
        ("laplacian", None, 0.0, 512, "fused"),
        (qkv.Gaussian(0.01), None, 0.0, 4096, "fused"),
        ("gaussian", qkv.mask.Causal(), 0.1, 4096, "fused"),
        (qkv.Additive(8, 8, 128), None, 0.0, 1024, "fused"),
        (qkv.Gated(8, 8), qkv.mask.Dilated(3, 4), 0.0, 1024, "fused"),
        (qkv.Gated(8, 8), qkv.mask.Causal() | qkv.mask.Blocks(9), 0.0, 4096, "streamed"),
        ("equal", None, 0.0, 16, "dense"),
        ("equal", None, 0.0, 4096, "lookup"),
        ("equal", qkv.mask.Lengths(4000), 0.0, 4096, "lookup"),
        ("equal", qkv.mask.Causal(), 0.0, 4096, "streamed"),
    ],
)
def test_choice(similarity: object, mask: object, dropout: float, size: int, operator: str) -> None:
    plan = qkv.explain(*_sized(size, size), similarity=similarity, mask=mask, dropout=dropout)
    assert plan.operator == operator
    assert set(plan.rejected) == set(OPERATORS) - {operator}


def test_the_quickest_by_estimate_is_chosen_and_the_others_say_by_how_much() -> None:
    plan = qkv.explain(*_sized(2048, 2048, 2), similarity="gaussian")
    other = {"fused": "sdpa", "sdpa": "fused"}[plan.operator]  # which of them, sizes decide
    own = f"{plan.operator} {readable_seconds(plan.seconds)}"
    assert plan.rejected[other].startswith("takes about ")
    assert plan.rejected[other].endswith(own)
    assert plan.rejected["streamed"].endswith(own)


def test_reasons() -> None:
    wide = qkv.explain(*_sized(64, 64), similarity=qkv.Gaussian(0.001)).rejected["sdpa"]
    assert "would lose digits (limit 16)" in wide
    bias = torch.zeros(64, 64, requires_grad=True)
    assert "no gradient" in qkv.explain(*_sized(64, 64), mask=bias).rejected["sdpa"]
    masked = qkv.explain(*_sized(64, 64), similarity="euclidean", mask=qkv.mask.Causal())
    assert "would move the centre" in masked.rejected["sdpa"]


def test_prints_like_a_database() -> None:
    def ranks(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        distances = (query.unsqueeze(-2) - key.unsqueeze(-3)).abs()
        return -distances.median(-1).values

    line = ranks.__code__.co_firstlineno + 2
    plan = qkv.explain(*_sized(4096, 4096, 64, 32), similarity=ranks)
    assert str(plan) == (
        "attend  4,096 queries × 4,096 keys, d_q 64, d_k 64, d_v 32, float32, FromCallable\n"
        "└─ streamed: tiling keeps memory at 12.6 MB, whatever the number of queries\n"
        f"   work    3.31 GFLOP, about {readable_seconds(plan.seconds)}\n"
        "   memory  12.6 MB beyond inputs and output (all scores at once: 4.4 GB)\n"
        "   passed over\n"
        "     topk    the mask is not the best k keys of each query\n"
        "     lookup  FromCallable is not Equal\n"
        "     sorted  FromCallable has no sorted implementation\n"
        "     banded  all queries may see the same keys\n"
        "     sdpa    FromCallable is not a dot product\n"
        "     fused   the formula has no kernel: median of a pair is not supported "
        f"({Path(__file__).name}:{line}: return -distances.median(-1).values)\n"
        "     dense   would hold more than 67.1 MB at once, and memory is to stay linear"
    )
    assert plan.flops == 4096 * 4096 * (2 * 64 + 5 + 2 * 32)


def test_works_without_numbers() -> None:
    query = torch.empty(10**6, 64, device="meta")
    assert qkv.explain(query, query, query).operator == "sdpa"
    assert qkv.explain(query, query, query, similarity="gaussian").operator == "fused"


def test_a_similarity_of_ones_own_that_has_a_fused_form_runs_fused() -> None:
    class Projected(qkv.Similarity):
        """Additive scores of tokens that are projected already."""

        def score(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)).sum(-1)

        def as_fused(self, query: torch.Tensor, key: torch.Tensor) -> FusedForm:
            return FusedForm("additive", query, key, torch.ones(query.shape[-1]))

    assert qkv.explain(*_sized(512, 512, 128), similarity=Projected()).operator == "fused"
