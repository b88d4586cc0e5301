"""The most likely translation: beam search, of which greedy search is the narrowest.

A hypothesis is a row of the decoder's state; the rows of a sentence ask one memory together, as
so many queries. The first row always follows the single best token, so the greedy translation is
among the candidates and a wider beam never scores below it. With a beam of 1 it is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.translate.model import Model
from qkv.translate.vocabulary import BEGIN, END, PAD


@dataclass(frozen=True)
class Search:
    """How to search.

    The score of a translation y of length t (its end counted) is

        log p(y) / ((5 + t) / 6)^length + coverage · Σ_s log min(Σ_t α_ts, 1),

    so `length` = 0 favours short translations, and `coverage` > 0 those that look at all of the
    source. `max_length` ends translations that would run on; None: twice the source and 10 more.
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

    def score(self, log_p: Tensor, length: int) -> Tensor:
        """Scores of hypotheses of this length, the coverage of the source left aside."""
        scores: Tensor = log_p / ((5.0 + length) / 6.0) ** self.length
        return scores

    def uncovered(self, covered: Tensor, real: Tensor) -> Tensor:
        """What it costs (b, n) to have looked at the source so little, (b, n, s); never above 0."""
        seen = covered.clamp(1e-9, 1.0).log().masked_fill(~real.unsqueeze(1), 0.0)
        return self.coverage * seen.sum(-1)


class Hypothesis(NamedTuple):
    tokens: list[int]  # without the end
    score: float
    log_p: float  # of all tokens and the end
    weights: Tensor  # (len(tokens) + 1, s): what each token and the end looked at


class _Ended(NamedTuple):
    """The best hypotheses of each sentence that have ended, `beam` of them; score −inf: none."""

    score: Tensor  # (batch, k)
    log_p: Tensor
    step: Tensor  # when each ended
    row: Tensor  # the row it ended from

    @classmethod
    def none(cls, number: Tensor, count: Tensor, batch: int, k: int) -> _Ended:
        never, zero = number.new_full((batch, k), -torch.inf), count.new_zeros(batch, k)
        return cls(never, never.clone(), zero, zero.clone())

    def best_with(self, new: _Ended) -> _Ended:
        joined = [torch.cat(pair, dim=1) for pair in zip(self, new, strict=True)]
        kept = joined[0].topk(self.score.shape[1], dim=1).indices
        return _Ended(*(part.gather(1, kept) for part in joined))


class _Past(NamedTuple):
    """What happened at one step, in rows of the whole batch."""

    tokens: Tensor  # (batch, k): the token each row went on with
    rows: Tensor  # (batch, k): the row it went on from
    weights: Tensor  # (batch, k, s): what the rows before it looked at


@torch.inference_mode()
def search(
    model: Model[Any, Any], source: Tensor, lengths: Tensor, how: Search
) -> list[list[Hypothesis]]:
    """The `n_best` translations of each source (batch, s), the best first."""
    batch, width = source.shape
    k = how.beam
    number, count = model.output.weight.new_zeros(()), source.new_zeros(())  # types and device
    positions, ranks = (torch.arange(n, device=source.device) for n in (width, 2 * k))
    real = positions < lengths.unsqueeze(-1)  # (batch, s)
    limits = (
        2 * lengths + 10 if how.max_length is None else torch.full_like(lengths, how.max_length)
    )
    memory = model.encode(source, lengths)
    state = model.start(memory)
    active = torch.arange(batch, device=source.device)  # the sentences still searched
    tokens, log_p = source.new_full((batch, 1), BEGIN), number.new_zeros(batch, 1)
    covered = number.new_zeros(batch, 1, width)
    greedy = source.new_ones(batch, dtype=torch.bool)  # whether the first row is on its way
    ended, past = _Ended.none(number, count, batch, k), []
    for now in range(int(limits.max())):
        step = model.step(memory, state, tokens)
        totals = _totals(model.logits(step.features), log_p, limits[active] == now + 1)
        best, parents, chosen = _candidates(totals, greedy, 2 * k)
        greedy = greedy & (chosen[:, 0] != END)
        covered = _rows(covered + step.weights, parents)

        over = (chosen == END) & (ranks[: chosen.shape[1]] < k) & (best > -torch.inf)
        scores = how.score(best, now + 1)
        if how.coverage:
            scores = scores + how.uncovered(covered, real[active])
        scores = scores.masked_fill(~over, -torch.inf)
        new = _Ended(scores, best, torch.full_like(parents, now), parents)
        kept = _Ended(*(part[active] for part in ended)).best_with(new)
        for whole, part in zip(ended, kept, strict=True):
            whole[active] = part

        alive = best.masked_fill(chosen == END, -torch.inf)
        order = _ranked(alive, greedy, k)
        log_p, parents, tokens = (x.gather(1, order) for x in (alive, parents, chosen))
        past.append(_recorded(active, batch, k, tokens, parents, step.weights))
        # Without going on, the best way under way scores this; if that is too little, it is over.
        hope = how.score(log_p.amax(1), now + 1)
        enough = ~greedy & (kept.score[:, how.n_best - 1] >= hope)
        going = (~enough & (log_p > -torch.inf).any(1)).nonzero().squeeze(1)
        if not len(going):
            break
        state = step.state.select(going, parents[going])
        covered = _rows(covered, order)[going]
        tokens, log_p, greedy = tokens[going], log_p[going], greedy[going]
        if len(going) < len(active):
            memory, active = memory.select(going), active[going]
    return _traced(past, ended, lengths, how.n_best)


def _totals(logits: Tensor, log_p: Tensor, last: Tensor) -> Tensor:
    """The logarithm of the probability of every continuation, (b, n, v).

    At its `last` step a sentence may only end.
    """
    totals = torch.log_softmax(logits, dim=-1).add_(log_p.unsqueeze(-1))
    totals[..., [PAD, BEGIN]] = -torch.inf
    if bool(last.any()):
        ends = totals[last, :, END]
        totals[last] = -torch.inf
        totals[last, :, END] = ends
    return totals


def _candidates(totals: Tensor, greedy: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations: their log p, row and token, each (b, count), the best first.

    Where `greedy`, the best continuation of the first row comes first, whatever its rank.
    """
    vocabulary = totals.shape[-1]
    own, token = totals[:, 0].max(dim=-1)  # (b,)
    totals[:, 0].scatter_(1, token.unsqueeze(1), torch.where(greedy, torch.inf, own).unsqueeze(1))
    flat = totals.flatten(1)
    best, index = flat.topk(min(count, flat.shape[1]), dim=1)
    best[:, 0] = torch.where(greedy, own, best[:, 0])
    return best, index // vocabulary, index % vocabulary


def _ranked(alive: Tensor, greedy: Tensor, k: int) -> Tensor:
    """Which k candidates go on, (b, k): the best, but candidate 0 first where `greedy`."""
    ranking = alive.clone()
    ranking[:, 0] = torch.where(greedy, torch.inf, ranking[:, 0])
    return ranking.topk(min(k, ranking.shape[1]), dim=1).indices


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """These rows (b, n) of a tensor (b, m, s)."""
    return tensor.gather(1, rows.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))


def _recorded(
    active: Tensor, batch: int, k: int, tokens: Tensor, rows: Tensor, weights: Tensor
) -> _Past:
    """A step of the sentences still active, in rows of the whole batch."""
    past = _Past(
        tokens.new_full((batch, k), PAD),
        rows.new_zeros(batch, k),
        weights.new_zeros(batch, k, weights.shape[-1]),
    )
    past.tokens[active, : tokens.shape[1]] = tokens
    past.rows[active, : rows.shape[1]] = rows
    past.weights[active, : weights.shape[1]] = weights
    return past


def _traced(
    past: list[_Past], ended: _Ended, lengths: Tensor, n_best: int
) -> list[list[Hypothesis]]:
    """Follow each hypothesis back from its end to its beginning, and its weights with it."""
    tokens, rows, weights = (torch.stack(parts).cpu().numpy() for parts in zip(*past, strict=True))
    found = []
    for sentence in range(len(lengths)):
        best = []
        for rank in range(n_best):
            score = float(ended.score[sentence, rank])
            if score == -torch.inf:
                break
            row, step = int(ended.row[sentence, rank]), int(ended.step[sentence, rank])
            said, looked = [], [weights[step, sentence, row]]
            for now in range(step - 1, -1, -1):
                said.append(int(tokens[now, sentence, row]))
                row = int(rows[now, sentence, row])
                looked.append(weights[now, sentence, row])
            alpha = torch.from_numpy(np.stack(looked[::-1]))
            log_p = float(ended.log_p[sentence, rank])
            best.append(Hypothesis(said[::-1], score, log_p, alpha[:, : int(lengths[sentence])]))
        found.append(best)
    return found
