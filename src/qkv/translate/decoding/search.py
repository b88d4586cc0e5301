"""The most likely translation: beam search, with greedy search as a beam of 1.

A hypothesis is a row of the decoder's state; the rows of a sentence are queries of one memory. The
greedy translation is always among the candidates, so a wider beam never scores below it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.translate.data.vocabulary import BEGIN, PAD
from qkv.translate.decoding.beam import (
    SENTENCES,
    Counts,
    Ended,
    Rows,
    Sentences,
    Step,
    Ways,
    advance,
)
from qkv.translate.decoding.top_tokens import TopTokenFinder, TopTokens
from qkv.translate.models.base import Model


@dataclass(frozen=True)
class Search:
    """How to search.

    The score of a translation y of length t (its end counted) is

        log p(y) / ((5 + t) / 6)^length + coverage · Σ_s log min(Σ_t α_ts, 1),

    so `length` = 0 favours short translations, and `coverage` > 0 those that attend to all of the
    source. `max_length` limits translations; None: twice the length of the source plus 10.
    """

    beam: int = 5
    n_best: int = 1
    length: float = 1.0
    coverage: float = 0.0
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam must be at least 1; got {self.beam}")
        if not 1 <= self.n_best <= self.beam:
            raise ValueError(f"n_best must be between 1 and beam={self.beam}; got {self.n_best}")
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"max_length must be at least 1; got {self.max_length}")

    def norm(self, length: int) -> float:
        """The divisor of the log p of translations of this length."""
        return float(((5.0 + length) / 6.0) ** self.length)

    def uncovered(self, covered: Tensor, real: Tensor) -> Tensor:
        """The coverage penalty (b, n) of summed weights (b, n, s); never above 0."""
        log_covered = covered.clamp(1e-9, 1.0).log().masked_fill(~real.unsqueeze(1), 0.0)
        return self.coverage * log_covered.sum(-1)


class Hypothesis(NamedTuple):
    tokens: list[int]  # without the end
    score: float
    log_p: float  # of all tokens and the end
    weights: Tensor  # (len(tokens) + 1, s): what each token and the end looked at


class _Past(NamedTuple):
    """What happened at one step, in rows of the sentences that were still searched."""

    places: Counts  # (batch,): where each sentence of the whole batch stood
    tokens: Counts  # (b, k): the token each row went on with
    parents: Counts  # (b, k): the row it went on from
    weights: Any  # (b, n, s): what the rows before it looked at


class Considered(NamedTuple):
    """The candidates of one step: rows are hypotheses, of the sentences still searched.

    The continuations of row i are its likeliest tokens, with the log p of row and token; the
    best of them are the rows `after`, and the others were pruned, unless they end.
    """

    before: Rows
    likely: TopTokens
    last: npt.NDArray[np.bool_]  # (b,): whether a sentence may only end
    after: Rows


@torch.inference_mode()
def search(
    model: Model[Any, Any],
    source: Tensor,
    lengths: Tensor,
    how: Search,
    watch: Callable[[Considered], None] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` translations of each source (batch, s), the best first.

    `watch` is called with each step.
    """
    batch = len(source)
    device = source.device
    limits = (
        2 * lengths + 10 if how.max_length is None else torch.full_like(lengths, how.max_length)
    ).numpy(force=True)
    memory = model.encode(source, lengths)
    state = model.start(memory)
    active = np.arange(batch)  # the sentences still searched
    rows, ended = Rows.room(batch, 1), Ended.none(batch, how.beam)
    rows.tokens[:] = BEGIN
    likeliest = TopTokenFinder(model.output, batch * how.beam, 2 * how.beam)
    coverage = _Coverage(how, source, lengths)
    past: list[_Past] = []
    for now in range(int(limits.max())):
        step = model.step(memory, state, torch.from_numpy(rows.tokens).to(device))
        likely = likeliest(step.features)
        unseen = coverage.cost(step.weights)
        last, after = limits[active] == now + 1, Rows.room(len(active), how.beam)
        advance(
            Step(now, how.norm(now + 1), how.n_best),
            Sentences(active, last, unseen),
            rows,
            likely,
            ended,
            after,
            count=len(active),
            grain=SENTENCES,
            scratch=Ways.shapes(rows.log_p.shape[1], likeliest.count),
        )
        if watch is not None:
            watch(Considered(rows, likely, last, after))
        places = np.full(batch, -1)
        places[active] = np.arange(len(active))
        past.append(_Past(places, after.tokens, after.parents, step.weights.numpy(force=True)))
        going = np.flatnonzero(after.going)
        if not len(going):
            break
        rows, sentences = after.select(going), torch.from_numpy(going).to(device)
        parents = torch.from_numpy(rows.parents).to(device)
        state = step.state.select(sentences, parents)
        coverage.select(sentences, parents)
        if len(going) < len(active):
            memory, active = memory.select(sentences), active[going]
    return _traced(past, ended, lengths.tolist(), how.n_best)


class _Coverage:
    """How much attention each row has paid to its source, where that counts."""

    def __init__(self, how: Search, source: Tensor, lengths: Tensor) -> None:
        self.search = how
        positions = torch.arange(source.shape[1], device=source.device)
        self.real = positions < lengths.unsqueeze(-1)  # (b, s)
        self.covered: Tensor | None = None  # (b, n, s)

    def cost(self, weights: Tensor) -> npt.NDArray[np.float64]:
        """Add the weights of a step (b, n, s); returns the penalties of rows that end, (b, n)."""
        if not self.search.coverage:
            return np.zeros(weights.shape[:2])
        self.covered = weights if self.covered is None else self.covered + weights
        cost: npt.NDArray[np.float64] = (
            self.search.uncovered(self.covered, self.real).double().numpy(force=True)
        )
        return cost

    def select(self, sentences: Tensor, rows: Tensor) -> None:
        """Continue with these rows (b, n) of these sentences (b,)."""
        if self.covered is not None:
            self.covered = self.covered[sentences.unsqueeze(-1), rows]
            self.real = self.real[sentences]


def _traced(
    past: list[_Past], ended: Ended, lengths: list[int], n_best: int
) -> list[list[Hypothesis]]:
    """Follow each hypothesis back from its end to its beginning, and its weights with it."""
    sentence, rank = np.nonzero(ended.score[:, :n_best] > -np.inf)
    if not np.all(ended.score[:, 0] > -np.inf):
        raise ValueError("the model gives scores that are NaN: no token can be chosen")
    step, row = ended.step[sentence, rank], ended.row[sentence, rank].copy()
    tokens = np.full((len(row), len(past)), PAD)
    weights = np.zeros((len(row), len(past), past[0].weights.shape[-1]), past[0].weights.dtype)
    for now in reversed(range(len(past))):
        alive = np.flatnonzero(step >= now)  # those that end at this step have weights only
        on = np.flatnonzero(step > now)
        then = past[now]
        place = then.places[sentence]
        tokens[on, now] = then.tokens[place[on], row[on]]
        row[on] = then.parents[place[on], row[on]]
        weights[alive, now] = then.weights[place[alive], row[alive]]
    hypotheses: list[list[Hypothesis]] = [[] for _ in lengths]
    for i, (s, r) in enumerate(zip(sentence.tolist(), rank.tolist(), strict=True)):
        emitted = tokens[i, : step[i]].tolist()
        attended = torch.from_numpy(weights[i, : step[i] + 1, : lengths[s]])
        score, log_p = float(ended.score[s, r]), float(ended.log_p[s, r])
        hypotheses[s].append(Hypothesis(emitted, score, log_p, attended))
    return hypotheses
