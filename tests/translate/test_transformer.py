"""The transformer behind the translator's interface."""

from __future__ import annotations

import pytest
import torch

from qkv.translate import Search, Transformer, TransformerConfig
from qkv.translate.data.batches import Batch, Example, collate
from qkv.translate.data.vocabulary import END
from qkv.translate.decoding.search import search

SOURCE, TARGET = 23, 19


def small(**options: object) -> Transformer:
    torch.manual_seed(3)
    sizes = TransformerConfig(d_model=8, heads=2, d_ff=13, layers=2, dropout=0.0, **options)  # type: ignore[arg-type]
    return Transformer(sizes, SOURCE, TARGET).double()


def data() -> Batch:
    return collate(
        [Example([5, 9, 4, 11, 7, END], [4, 7, 9]), Example([8, 6, END], [5, 5, 12, 16])]
    )


@pytest.mark.parametrize("similarity", ["scaled_dot", "additive", "gaussian"])
def test_stepwise_decoding_equals_the_teacher_forced_pass(similarity: str) -> None:
    model, batch = small(similarity=similarity).eval(), data()
    with torch.no_grad():
        memory = model.encode(batch.source, batch.lengths)
        state, found = model.start(memory), []
        for tokens in batch.inputs.split(1, dim=1):
            step = model.step(memory, state, tokens)
            state = step.state
            found.append(step.features)
            torch.testing.assert_close(step.weights.sum(-1), torch.ones(2, 1, dtype=torch.float64))
            assert (step.weights[1, :, 3:] == 0).all()
        forced = model.forced(memory, batch.inputs)
    torch.testing.assert_close(torch.cat(found, dim=1), forced)


def test_a_state_can_be_gone_on_from_twice() -> None:
    model, batch = small().eval(), data()
    with torch.no_grad():
        memory = model.encode(batch.source, batch.lengths)
        first = model.step(memory, model.start(memory), batch.inputs[:, :1]).state
        once = model.step(memory, first, torch.tensor([[4], [5]])).features
        model.step(memory, first, torch.tensor([[9], [9]]))
        again = model.step(memory, first, torch.tensor([[4], [5]])).features
    torch.testing.assert_close(once, again, rtol=0, atol=0)


def test_rows_of_a_sentence_are_ways_to_go_on() -> None:
    model, batch = small().eval(), data()
    with torch.no_grad():
        memory = model.encode(batch.source, batch.lengths)
        state = model.step(memory, model.start(memory), batch.inputs[:, :1]).state
        wide = state.select(torch.tensor([0, 1]), torch.zeros(2, 3, dtype=torch.long))
        rows = torch.tensor([[4, 7, 9], [5, 6, 8]])
        together = model.step(memory, wide, rows).features
        apart = [model.step(memory, state, rows[:, i : i + 1]).features for i in range(3)]
    torch.testing.assert_close(together, torch.cat(apart, dim=1))


@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
def test_a_batch_equals_its_sentences_one_by_one_in_loss_and_gradient(similarity: str) -> None:
    model, batch = small(similarity=similarity), data()
    together = model.loss(batch, 0.1)
    together.backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    apart = [
        model.loss(collate([Example([5, 9, 4, 11, 7, END], [4, 7, 9])]), 0.1),
        model.loss(collate([Example([8, 6, END], [5, 5, 12, 16])]), 0.1),
    ]
    torch.testing.assert_close(together, sum(apart))
    for loss in apart:
        loss.backward()
    assert whole.keys() == {n for n, p in model.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(whole[name], parameter.grad, msg=lambda m, n=name: f"{n}: {m}")


def test_it_searches_and_says_that_steps_keep_no_gradients() -> None:
    model, batch = small(tied=True).float().eval(), data()
    found = search(model, batch.source, batch.lengths, Search(beam=3, n_best=2, max_length=9))
    assert [len(hypotheses) for hypotheses in found] == [2, 2]
    memory = model.encode(batch.source, batch.lengths)
    with pytest.raises(RuntimeError, match=r"single steps under torch.no_grad\(\) only$"):
        model.step(memory, model.start(memory), batch.inputs[:, :1])
