"""Search: greedy, beam, and what it says of where it looked."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from qkv.translate import RNNConfig, Search, Translator
from qkv.translate.data.batches import padded
from qkv.translate.data.vocabulary import BEGIN, END, PAD
from qkv.translate.decoding.search import search

SOURCE, TARGET = 17, 11
LENGTHS = [6, 3, 9, 2]


@pytest.fixture(scope="module", params=["gru", "lstm"])
def model(request: pytest.FixtureRequest) -> Translator:
    torch.manual_seed(4)
    sizes = RNNConfig(embedding=5, hidden=7, features=6, dropout=0.0, cell=request.param)
    made = Translator(sizes, SOURCE, TARGET).double().eval()
    with torch.no_grad():  # opinions, so that searches differ
        made.output.weight *= 8.0
        made.output.bias[END] = 1.0
    return made


def sources() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(6)
    rows = [torch.randint(4, SOURCE, (n,), generator=generator).tolist() for n in LENGTHS]
    return padded(rows), torch.tensor(LENGTHS)


def log_p(model: Translator, source: Tensor, tokens: list[int]) -> tuple[float, Tensor]:
    """By the plain formula: log p of tokens and their end, and the weights of each step."""
    with torch.no_grad():
        memory = model.encode(source[None], torch.tensor([len(source)]))
        state, total, weights = model.start(memory), 0.0, []
        for last, wanted in itertools.pairwise([BEGIN, *tokens, END]):
            step = model.step(memory, state, torch.tensor([[last]]))
            state = step.state
            total += float(torch.log_softmax(model.logits(step.features), -1)[0, 0, wanted])
            weights.append(step.weights[0, 0])
    return total, torch.stack(weights)


def greedy(model: Translator, source: Tensor, limit: int) -> list[int]:
    """The slow, obvious way."""
    with torch.no_grad():
        memory = model.encode(source[None], torch.tensor([len(source)]))
        state, tokens = model.start(memory), [BEGIN]
        while len(tokens) < limit:
            step = model.step(memory, state, torch.tensor([[tokens[-1]]]))
            state, scores = step.state, model.logits(step.features)[0, 0]
            scores[[PAD, BEGIN]] = -math.inf
            if int(scores.argmax()) == END:
                break
            tokens.append(int(scores.argmax()))
    return tokens[1:]


def each(source: Tensor, lengths: Tensor) -> list[Tensor]:
    return [row[:n] for row, n in zip(source, lengths.tolist(), strict=True)]


def test_a_beam_of_one_is_greedy(model: Translator) -> None:
    source, lengths = sources()
    found = search(model, source, lengths, Search(beam=1, max_length=13))
    wanted = [greedy(model, row, 13) for row in each(source, lengths)]
    assert [hypotheses[0].tokens for hypotheses in found] == wanted


@pytest.mark.parametrize("beam", [2, 3, 5, 8])
@pytest.mark.parametrize("how", [{"length": 0.0}, {"length": 1.0, "coverage": 0.3}])
def test_a_beam_never_scores_below_greedy(
    model: Translator, beam: int, how: dict[str, float]
) -> None:
    source, lengths = sources()
    narrow = search(model, source, lengths, Search(beam=1, max_length=13, **how))
    wide = search(model, source, lengths, Search(beam=beam, max_length=13, **how))
    for (a,), (b, *_) in zip(narrow, wide, strict=True):
        assert b.score >= a.score - 1e-9


def test_scores_and_weights_are_those_of_the_tokens_found(model: Translator) -> None:
    """Following the back-pointers gives the attention that the plain formula gives."""
    source, lengths = sources()
    how = Search(beam=4, n_best=4, length=0.7, coverage=0.2, max_length=13)
    found = search(model, source, lengths, how)
    for row, hypotheses in zip(each(source, lengths), found, strict=True):
        assert len({tuple(h.tokens) for h in hypotheses}) == 4
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for hypothesis in hypotheses:
            total, weights = log_p(model, row, hypothesis.tokens)
            assert hypothesis.log_p == pytest.approx(total)
            torch.testing.assert_close(hypothesis.weights, weights)
            torch.testing.assert_close(
                weights.sum(-1), torch.ones(len(weights), dtype=torch.float64)
            )
            covered = weights.sum(0).clamp(max=1.0).log().sum().item()
            length = len(hypothesis.tokens) + 1
            wanted = total / ((5 + length) / 6) ** 0.7 + 0.2 * covered
            assert hypothesis.score == pytest.approx(wanted)


def test_a_beam_as_wide_as_all_there_is_finds_the_best(model: Translator) -> None:
    source, lengths = sources()
    row, limit = source[3, :2], 3  # two tokens and an end at most
    vocabulary = [token for token in range(TARGET) if token not in (PAD, BEGIN, END)]
    every = [[], *([a] for a in vocabulary), *map(list, itertools.product(vocabulary, repeat=2))]
    best = max(every, key=lambda tokens: log_p(model, row, tokens)[0])
    how = Search(beam=len(every), length=0.0, max_length=limit)
    found = search(model, source[3:, :2], lengths[3:], how)
    assert found[0][0].tokens == best


def test_a_batch_equals_its_sentences_one_by_one(model: Translator) -> None:
    source, lengths = sources()
    how = Search(beam=3, max_length=13)
    together = search(model, source, lengths, how)
    for row, (found,) in zip(each(source, lengths), together, strict=True):
        ((alone,),) = search(model, row[None], torch.tensor([len(row)]), how)
        assert alone.tokens == found.tokens
        assert alone.score == pytest.approx(found.score)
        torch.testing.assert_close(alone.weights, found.weights)


def test_translations_end_where_they_must(model: Translator) -> None:
    source, lengths = sources()
    for limit in (1, 2, 5):
        found = search(model, source, lengths, Search(beam=3, n_best=1, max_length=limit))
        assert all(len(hypotheses[0].tokens) < limit for hypotheses in found)


def test_a_model_without_numbers_is_told_so() -> None:
    model = Translator(RNNConfig(embedding=5, hidden=7), SOURCE, TARGET).eval()
    with torch.no_grad():
        model.output.weight.fill_(math.nan)
    with pytest.raises(ValueError, match=r"^the model gives scores that are NaN: no token"):
        search(model, *sources(), Search(beam=3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"beam": 0}, "beam must be at least 1; got 0"),
        ({"beam": 2, "n_best": 3}, "n_best must be between 1 and beam=2; got 3"),
        ({"max_length": 0}, "max_length must be at least 1; got 0"),
    ],
)
def test_mistakes_are_named(options: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Search(**options)  # type: ignore[arg-type]
