"""The Bahdanau translator: one formula, whichever way it is unrolled."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.translate import RNNConfig, Translator
from qkv.translate.data.batches import Batch, Example, collate
from qkv.translate.data.vocabulary import END
from qkv.translate.models.dropout import Dropout

SOURCE, TARGET, EMBEDDING, HIDDEN = 23, 19, 5, 7


def small(**options: object) -> Translator:
    torch.manual_seed(3)
    sizes = {"embedding": EMBEDDING, "hidden": HIDDEN, "features": 3, "dropout": 0.0, **options}
    return Translator(RNNConfig(**sizes), SOURCE, TARGET).double()  # type: ignore[arg-type]


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
    forced = model.forced(model.encode(data.source, data.lengths), data.inputs)
    torch.testing.assert_close(forced, stepwise(model, data.inputs, data.source, data.lengths))


def test_the_fused_way_has_the_gradients_of_the_plain_one() -> None:
    model, data = small(), batch((6, 4), (3, 5), (11, 2))
    memory = model.encode(data.source, data.lengths)
    weights = torch.randn(3, 6, 3, dtype=torch.float64)
    (model.forced(memory, data.inputs) * weights).sum().backward()
    fused = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    (stepwise(model, data.inputs, data.source, data.lengths) * weights).sum().backward()
    plain = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert fused.keys() == plain.keys()
    for name, grad in plain.items():
        torch.testing.assert_close(fused[name], grad, msg=lambda m, name=name: f"{name}: {m}")


def test_reading_both_ways_equals_torch() -> None:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    from qkv.translate.models.manual_autograd import read_both_ways

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


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("similarity", ["additive", "scaled_dot", "epanechnikov"])
def test_a_batch_equals_its_sentences_one_by_one_in_loss_and_gradient(
    cell: str, similarity: str
) -> None:
    model, shapes = small(cell=cell, similarity=similarity), ((6, 4), (3, 5), (11, 2), (1, 1))
    examples = [batch(*shapes[: i + 1]) for i in range(len(shapes))][-1]
    model.loss(examples, 0.1).backward()
    together = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    total = 0.0
    for i, (s, t) in enumerate(shapes):
        alone = Batch(
            examples.source[i : i + 1, : s + 1],
            examples.lengths[i : i + 1],
            examples.inputs[i : i + 1, : t + 1],
            examples.labels[i : i + 1, : t + 1],
        )
        loss = model.loss(alone, 0.1)
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(model.loss(examples, 0.1).item())
    apart = [p.grad for p in model.parameters() if p.grad is not None]
    torch.testing.assert_close(together, apart)


def test_what_stands_in_the_padding_does_not_matter() -> None:
    model, data = small(), batch((6, 4), (3, 5))
    memory = model.encode(data.source, data.lengths)
    other = data.source.clone()
    other[1, 4:] = 7
    changed = model.encode(other, data.lengths)
    torch.testing.assert_close(
        model.forced(memory, data.inputs),
        model.forced(changed, data.inputs),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("similarity", ["additive", "bilinear", "cosine", "gaussian"])
def test_attention_sums_to_one_over_real_tokens(similarity: str) -> None:
    model, data = small(similarity=similarity), batch((6, 4), (3, 5))
    memory = model.encode(data.source, data.lengths)
    state = model.start(memory).select(torch.arange(2), torch.zeros(2, 3, dtype=torch.long))
    weights = model.step(memory, state, data.inputs[:, :3]).weights  # three rows each
    assert weights.shape == (2, 3, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    assert (weights[1, :, 4:] == 0).all()


def test_equation_13_is_the_attention_of_the_decoders_last_state() -> None:
    model, data = small(), batch((6, 4))
    memory = model.encode(data.source, data.lengths)
    values, _ = model.values(data.source, data.lengths)
    state = model.start(memory).parts[0]
    context = qkv.attend(state, values, values, similarity=model.similarity, operator="dense")
    weights = model.look(memory, state)
    torch.testing.assert_close(weights @ values, context)
    # It is mapped, then pooled; the equation pools, then maps.
    torch.testing.assert_close(weights @ memory.mapped, model.context(context))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_step_is_that_of_torchs_cell_and_a_layer_of_state_token_and_context(cell: str) -> None:
    model, data = small(cell=cell, readout="tanh"), batch((6, 4), (3, 5))
    memory = model.encode(data.source, data.lengths)
    values, _ = model.values(data.source, data.lengths)
    before, tokens = model.start(memory), torch.tensor([[7], [9]])
    embedded = model.target_embedding(tokens).squeeze(1)
    context = (model.look(memory, before.parts[0]) @ values).squeeze(1)
    kind = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[cell]
    theirs = kind(EMBEDDING + 2 * HIDDEN, HIDDEN).double()
    gates = model.cell.gates
    inputs = torch.cat([model.token.weight, model.context.weight], dim=1)
    theirs.weight_ih.data, theirs.bias_ih.data = inputs[:gates], model.token.bias[:gates]
    theirs.weight_hh.data = model.cell.hidden.weight.data
    theirs.bias_hh.data = model.cell.hidden.bias.data
    parts = tuple(part.squeeze(1) for part in before.parts)
    wanted = theirs(torch.cat([embedded, context], dim=1), parts[0] if cell == "gru" else parts)
    wanted = (wanted,) if cell == "gru" else wanted
    step = model.step(memory, before, tokens)
    torch.testing.assert_close(tuple(part.squeeze(1) for part in step.state.parts), wanted)
    layer = torch.cat([model.readout.hidden.weight, inputs[gates:]], dim=1)
    together = torch.cat([wanted[0], embedded, context], dim=1)
    features = torch.tanh(together @ layer.T + model.token.bias[gates:])
    torch.testing.assert_close(step.features.squeeze(1), features)


def test_any_callable_is_a_similarity() -> None:
    sizes = RNNConfig(embedding=EMBEDDING, hidden=HIDDEN, dropout=0.0)

    def city_block(query: Tensor, key: Tensor) -> Tensor:
        return -(query[..., :, None, :7] - key[..., None, :, :7]).abs().sum(-1)

    model, data = Translator(sizes, SOURCE, TARGET, city_block), batch((6, 4), (3, 5))
    forced = model.forced(model.encode(data.source, data.lengths), data.inputs)
    torch.testing.assert_close(forced, stepwise(model, data.inputs, data.source, data.lengths))
    with pytest.raises(ValueError, match=r"^a translator can be saved only if its similarity goes"):
        model.to_json()


def test_without_attention_every_step_sees_the_last_state() -> None:
    model, data = small(memory="last"), batch((6, 4), (3, 5))
    values, summary = model.values(data.source, data.lengths)
    torch.testing.assert_close(values, summary.unsqueeze(1).expand_as(values))


def test_tied_the_output_layer_is_the_embedding() -> None:
    model = small(tied=True, features=None)
    assert model.output.weight is model.target_embedding.weight
    with pytest.raises(
        ValueError, match=r"^features must be the embedding's 5 where they are tied"
    ):
        small(tied=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cell": "elman"}, "cell must be 'gru' or 'lstm'; got 'elman'"),
        ({"readout": "relu"}, "readout must be one of maxout, tanh; got 'relu'"),
        ({"memory": "first"}, "memory must be 'all' or 'last'; got 'first'"),
        ({"similarity": "addative"}, "similarity must be one of"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1; got 1.0"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        small(**options)


def test_dropout_keeps_the_mean_and_drops_the_share() -> None:
    torch.manual_seed(0)
    layer = Dropout(0.25)
    found = layer(torch.ones(1003, 97))
    assert (found == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert found.mean().item() == pytest.approx(1.0, abs=0.01)
    assert found.unique().tolist() == pytest.approx([0.0, 4 / 3])
    x = torch.randn(5, 7)
    assert layer.eval()(x) is x
