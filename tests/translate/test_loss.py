"""Output layer and loss as one, held to torch's own two."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from qkv.translate.models import loss as module
from qkv.translate.models.loss import smoothed_loss
from qkv.translate.models.softmax_gradient import turn


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("slice_size", [40, 2**21])
@pytest.mark.parametrize("compiled", [True, False])
def test_equals_torch(
    smoothing: float, slice_size: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:  # as on a device that the kernel does not know
        monkeypatch.setattr(module, "has_kernels", lambda scores: False)
    monkeypatch.setattr(module, "_SLICE", slice_size)  # 40: two tokens at a time
    torch.manual_seed(0)
    found = []
    for ours in (True, False):
        generator = torch.Generator().manual_seed(2)
        x, weight, bias = (
            torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
            for shape in ((7, 3), (19, 3), (19,))
        )
        wanted = torch.randint(19, (7,), generator=generator)
        if ours:
            loss = smoothed_loss(x, weight, bias, wanted, smoothing)
        else:
            scores = F.linear(x, weight, bias)
            loss = F.cross_entropy(scores, wanted, reduction="sum", label_smoothing=smoothing)
        (loss * 1.7).backward()
        found.append([loss.detach(), x.grad, weight.grad, bias.grad])
    torch.testing.assert_close(found[0], found[1])


def test_half_types_go_by_torch() -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((7, 3), (19, 3), (19,)))
    wanted = torch.randint(19, (7,))
    exact = F.cross_entropy(
        F.linear(x.double(), weight.double(), bias.double()), wanted, reduction="sum"
    )
    assert smoothed_loss(x, weight, bias, wanted).item() == pytest.approx(exact.item(), rel=0.02)


def test_gradcheck() -> None:
    torch.manual_seed(0)
    inputs = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 3), (11, 3), (11,))
    ]
    wanted = torch.tensor([0, 10, 3, 3, 7])
    assert torch.autograd.gradcheck(lambda *x: smoothed_loss(*x, wanted, 0.2), inputs)


def test_a_certain_answer_that_is_wrong_costs_what_it_should() -> None:
    x, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [300.0]])
    loss = smoothed_loss(x, weight, torch.zeros(2), torch.tensor([0]))
    assert loss.item() == 300.0  # not inf: the probability underflows, its logarithm does not


@pytest.mark.parametrize("vocabulary", [7, 1024, 50_021])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shifted", ["scores", "bias"])
def test_what_all_scores_have_in_common_costs_no_digits(
    vocabulary: int, smoothing: float, shifted: str
) -> None:
    """In float32, whose numbers near 10⁴ are 2⁻¹⁰ apart: multiples of that are added exactly."""
    scores = torch.round(torch.randn(5, vocabulary) * 3 * 2**10) / 2**10
    far, wanted = torch.full((vocabulary,), 1e4), torch.randint(vocabulary, (5,))
    exact = scores.double().requires_grad_()
    loss = F.cross_entropy(exact, wanted, reduction="sum", label_smoothing=smoothing)
    loss.backward()
    moved, bias = (scores + far, 0.0 * far) if shifted == "scores" else (scores.clone(), far)
    assert turn(moved, bias, wanted, smoothing) == pytest.approx(loss.item(), rel=2e-6)
    torch.testing.assert_close(moved.double(), exact.grad, rtol=1e-5, atol=1e-7)


def test_smoothing_is_a_share() -> None:
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"^smoothing must be at least 0 and below 1; got 1.0$"):
        smoothed_loss(x, x, x[0], torch.tensor([0]), 1.0)
