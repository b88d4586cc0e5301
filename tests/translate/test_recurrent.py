"""The Bahdanau translator: one formula, whichever way it is unrolled."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.translate import Recurrent, Translator
from qkv.translate.batches import Batch, Example, collate
from qkv.translate.recurrent import Standing
from qkv.translate.vocabulary import BEGIN, END, PAD

SOURCE, TARGET, EMBEDDING, HIDDEN = 23, 19, 5, 7


def small(**options: object) -> Translator:
    torch.manual_seed(3)
    sizes = {"embedding": EMBEDDING, "hidden": HIDDEN, "features": 3, "dropout": 0.0, **options}
    return Translator(Recurrent(**sizes), SOURCE, TARGET).double()  # type: ignore[arg-type]


def batch(*lengths: tuple[int, int]) -> Batch:
    generator = torch.Generator().manual_seed(5)

    def draw(high: int, count: int) -> list[int]:
        return torch.randint(4, high, (count,), generator=generator).tolist()

    return collate([Example([*draw(SOURCE, s), END], draw(TARGET, t)) for s, t in lengths])


def stepwise(model: Translator, read: Tensor, source: Tensor, lengths: Tensor) -> Tensor:
    memory = model.encode(source, lengths)
    state, found = model.start(memory), []
    for tokens in read.split(1, dim=1):
        step = model.step(memory, state, tokens)
        state = step.state
        found.append(step.features)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("similarity", ["additive", "bilinear", "gated", "scaled_dot", "gaussian"])
@pytest.mark.parametrize("readout", ["maxout", "tanh"])
def test_stepwise_decoding_equals_the_teacher_forced_pass(
    cell: str, similarity: str, readout: str
) -> None:
    model, data = small(cell=cell, similarity=similarity, readout=readout), batch((6, 4), (3, 5))
    forced = model.forced(model.encode(data.source, data.lengths), data.read)
    torch.testing.assert_close(forced, stepwise(model, data.read, data.source, data.lengths))


def test_the_fused_way_has_the_gradients_of_the_plain_one() -> None:
    model, data = small(), batch((6, 4), (3, 5), (11, 2))
    memory = model.encode(data.source, data.lengths)
    weights = torch.randn(3, 6, 3, dtype=torch.float64)
    (model.forced(memory, data.read) * weights).sum().backward()
    fused = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    (stepwise(model, data.read, data.source, data.lengths) * weights).sum().backward()
    plain = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert fused.keys() == plain.keys()
    for name, grad in plain.items():
        torch.testing.assert_close(fused[name], grad, msg=lambda m, name=name: f"{name}: {m}")


def test_reading_both_ways_equals_torch() -> None:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    from qkv.translate.unrolled import read_both_ways

    torch.manual_seed(0)
    encoder = nn.GRU(EMBEDDING, HIDDEN, bidirectional=True, batch_first=True).double()
    lengths = torch.tensor([3, 11, 1, 6])
    x = torch.randn(4, 11, EMBEDDING, dtype=torch.float64, requires_grad=True)
    real = (torch.arange(11) < lengths.unsqueeze(1)).unsqueeze(-1)
    weights = torch.randn(4, 11, 2 * HIDDEN, dtype=torch.float64) * real
    found = []
    for way in ("ours", "torch"):
        if way == "ours":
            states, last = read_both_ways(encoder, x, lengths)
        else:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            packed_states, h = encoder(packed)
            states, _ = pad_packed_sequence(packed_states, batch_first=True)
            last = torch.cat([h[0], h[1]], dim=-1)
        encoder.zero_grad()
        x.grad = None
        ((states * weights).sum() + last.cos().sum()).backward()
        grads = [x.grad, *(p.grad for p in encoder.parameters())]
        found.append([states * real, last, *grads])
    torch.testing.assert_close(found[0], found[1])
