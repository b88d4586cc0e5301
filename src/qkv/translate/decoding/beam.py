"""One step of beam search: which hypotheses end, and which continue.

Rows of a sentence are its active hypotheses, the best first. Each has several continuations,
and the best 2k of all continuations are considered: those of the first k that end are kept as
translations, and the best k of the others are the next rows. The first row always follows the
single best token, whatever its rank, until that is the end: so the greedy translation is among
the candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.jit import device_in_order, kernel_in_order
from qkv.jit.signature import Bool1, Double2, Int1, Int2, PerThread
from qkv.translate.data.vocabulary import END, PAD
from qkv.translate.decoding.top_tokens import TopTokens

Counts = npt.NDArray[np.int64]

#: Sentences that a thread takes at a time.
SENTENCES = 64


class Ended(NamedTuple):
    """The best translations of each sentence so far, k of them; score −inf: none."""

    score: Double2  # (batch, k)
    log_p: Double2
    step: Int2  # when each ended
    row: Int2  # the row it ended from

    @classmethod
    def none(cls, batch: int, k: int) -> Ended:
        never, zero = np.full((batch, k), -np.inf), np.zeros((batch, k), np.int64)
        return cls(never, never.copy(), zero, zero.copy())


class Rows(NamedTuple):
    """Active hypotheses, (b, n); log p is −inf where there are fewer."""

    log_p: Double2
    tokens: Int2  # the last token of each
    parents: Int2  # the row that it was a step before
    greedy: Bool1  # (b,): whether the first row is on the greedy way
    going: Bool1  # (b,): whether anything better can be found

    @classmethod
    def room(cls, batch: int, n: int) -> Rows:
        return cls(
            np.zeros((batch, n)),
            np.full((batch, n), PAD, np.int64),
            np.zeros((batch, n), np.int64),
            np.ones(batch, np.bool_),
            np.ones(batch, np.bool_),
        )

    def select(self, sentences: Counts) -> Rows:
        """The rows of these sentences alone."""
        return Rows(
            self.log_p[sentences],
            self.tokens[sentences],
            self.parents[sentences],
            self.greedy[sentences],
            self.going[sentences],
        )


class Step(NamedTuple):
    """What holds for step `now` of all sentences."""

    now: int
    norm: float  # divides log p
    n_best: int  # how many translations are requested


class Sentences(NamedTuple):
    """What each sentence brings along."""

    place: Int1  # (b,): where in `Ended` it stands
    last: Bool1  # (b,): whether it may only end
    unseen: Double2  # (b, n): is added to the score of what ends from a row


class Ways(NamedTuple):
    """The continuations of each row of a sentence, the best first.

    A missing continuation has a log p of −inf, and the last of each row is missing.
    """

    totals: Double2  # (n, count + 1): log p
    tokens: Int2  # (n, count + 1)
    place: Int1  # (n,): the best that was not looked at yet

    @classmethod
    def shapes(cls, n: int, count: int) -> Ways:
        """Those of the buffers for n rows with `count` ways each."""
        return cls((n, count + 1), (n, count + 1), (n,))


@device_in_order
def _keep(score: float, log_p: float, now: int, row: int, ended: Any, at: int) -> None:
    """Insert a translation among the best, if it is one of them, and drop the last."""
    scores, log_ps, steps, rows = ended.score[at], ended.log_p[at], ended.step[at], ended.row[at]
    if not score > scores[-1]:
        return
    place = scores.size - 1
    while place > 0 and score > scores[place - 1]:
        scores[place], log_ps[place] = scores[place - 1], log_ps[place - 1]
        steps[place], rows[place] = steps[place - 1], rows[place - 1]
        place -= 1
    scores[place], log_ps[place], steps[place], rows[place] = score, log_p, now, row


@device_in_order
def _lay_out(log_p: Any, likely: Any, i: int, last: bool, ways: Any) -> None:
    """Find the continuations of a sentence; in the `last` step it can only end."""
    ways.totals[:], ways.tokens[:], ways.place[:] = -np.inf, END, 0
    for row in range(log_p.size):
        if last:
            ways.totals[row, 0] = log_p[row] + likely.end[i, row]
            continue
        for way in range(likely.log_p.shape[2]):
            ways.totals[row, way] = log_p[row] + likely.log_p[i, row, way]
            ways.tokens[row, way] = likely.tokens[i, row, way]


@device_in_order
def _best_row(ways: Any) -> int:
    """The row whose next way is the best of all."""
    totals, place = ways.totals, ways.place
    best = 0
    for row in range(1, place.size):
        if totals[row, place[row]] > totals[best, place[best]]:
            best = row
    return best


@device_in_order
def _choose(
    step: Any, sentences: Any, i: int, greedy: bool, ways: Any, ended: Any, rows: Any
) -> Any:
    """Choose among the best continuations; returns the log p of the best that continues."""
    k, kept_count, best = rows.log_p.shape[1], 0, -np.inf
    for rank in range(2 * k):
        first = rank == 0 and greedy
        row = 0 if first else _best_row(ways)
        total, token = ways.totals[row, ways.place[row]], ways.tokens[row, ways.place[row]]
        if not total > -np.inf:
            break
        ways.place[row] += 1
        if token == END:
            if rank < k:
                score = total / step.norm + sentences.unseen[i, row]
                _keep(score, total, step.now, row, ended, sentences.place[i])
        elif kept_count < k:
            rows.log_p[i, kept_count], rows.tokens[i, kept_count] = total, token
            rows.parents[i, kept_count] = row
            rows.greedy[i] |= first
            best = max(best, total)
            kept_count += 1
    return best


@kernel_in_order
def advance(
    start: int,
    stop: int,
    step: Step,
    sentences: Sentences,
    before: Rows,
    likely: TopTokens,
    ended: Ended,
    after: Rows,
    ways: PerThread[Ways],
) -> None:
    """Step `now` of the sentences from `start` to `stop`, from the rows `before` to `after`."""
    for i in range(start, stop):
        _lay_out(before.log_p[i], likely, i, sentences.last[i], ways)
        after.log_p[i], after.tokens[i], after.parents[i] = -np.inf, PAD, 0
        after.greedy[i] = False
        best = _choose(step, sentences, i, before.greedy[i], ways, ended, after)
        # The best score that an active hypothesis can reach; if too low, the search is over.
        last_wanted = ended.score[sentences.place[i], step.n_best - 1]
        after.going[i] = best > -np.inf and (after.greedy[i] or last_wanted < best / step.norm)
