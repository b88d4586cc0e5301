"""One step of beam search: which hypotheses end, and which go on.

Rows of a sentence are its hypotheses under way, the best first. Each can go on in several ways,
and the best 2k of all those ways are looked at: those of the first k that end are kept as
translations, and the best k of the others are the next rows. The first row always follows the
single best token, whatever its rank, until that is the end: so the greedy translation is among
the candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from qkv.operators.fused.cache import kernel_cache
from qkv.translate.vocabulary import END, PAD

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Ended(NamedTuple):
    """The best translations of each sentence so far, k of them; score −inf: none."""

    score: Numbers  # (batch, k)
    log_p: Numbers
    step: Counts  # when each ended
    row: Counts  # the row it ended from

    @classmethod
    def none(cls, batch: int, k: int) -> Ended:
        never, zero = np.full((batch, k), -np.inf), np.zeros((batch, k), np.int64)
        return cls(never, never.copy(), zero, zero.copy())


class Rows(NamedTuple):
    """Hypotheses under way, (b, n); log p is −inf where there are fewer."""

    log_p: Numbers
    tokens: Counts  # the last token of each
    parents: Counts  # the row that it was a step before
    greedy: Flags  # (b,): whether the first row is on the greedy way
    going: Flags  # (b,): whether anything better can be found

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


@numba.njit
def _keep(score: float, log_p: float, step: int, row: int, kept: Any) -> None:
    """Put a translation in its place among the best, if it is one, and drop the last of them."""
    scores, log_ps, steps, rows = kept
    if not score > scores[-1]:
        return
    place = scores.size - 1
    while place > 0 and score > scores[place - 1]:
        scores[place], log_ps[place] = scores[place - 1], log_ps[place - 1]
        steps[place], rows[place] = steps[place - 1], rows[place - 1]
        place -= 1
    scores[place], log_ps[place], steps[place], rows[place] = score, log_p, step, row


@numba.njit
def _lay_out(log_p: Any, branches: Any, tokens: Any, ends: Any, last: bool, ways: Any) -> None:
    """The ways to go on from each row, the best first; the only one of the `last` step is to end.

    A way that is not there has a log p of −inf, and the last of each row is such a one.
    """
    totals, chosen = ways
    totals[:], chosen[:] = -np.inf, END
    for row in range(log_p.size):
        if last:
            totals[row, 0] = log_p[row] + ends[row]
            continue
        for i in range(branches.shape[1]):
            totals[row, i], chosen[row, i] = log_p[row] + branches[row, i], tokens[row, i]


@numba.njit
def _best_row(totals: Any, place: Any) -> int:
    """The row whose next way is the best of all."""
    best = 0
    for row in range(1, place.size):
        if totals[row, place[row]] > totals[best, place[best]]:
            best = row
    return best


def _advance(
    now: int,
    last: Any,
    before: Any,
    likely: Any,
    unseen: Any,
    norm: float,
    wanted: int,
    sentences: Any,
    ended: Any,
    after: Any,
) -> None:
    """Step `now` of every sentence, from the rows `before` to the rows `after`.

    `last` says which may only end, `unseen` (b, n) is added to the score of what ends from a row,
    `norm` divides log p, and `wanted` translations are asked for. `sentences` says where in
    `ended` each one stands.
    """
    log_p, _, _, greedy, _ = before
    next_log_p, next_tokens, parents, still_greedy, going = after
    branches, tokens, ends = likely
    (batch, n), k = log_p.shape, next_log_p.shape[1]
    place = np.empty(n, np.int64)  # of each row, its best way that was not looked at yet
    totals = np.empty((n, branches.shape[2] + 1))
    chosen = np.empty(totals.shape, np.int64)
    for i in range(batch):
        _lay_out(log_p[i], branches[i], tokens[i], ends[i], last[i], (totals, chosen))
        place[:] = 0
        at = sentences[i]
        kept = (ended[0][at], ended[1][at], ended[2][at], ended[3][at])
        next_log_p[i], next_tokens[i], parents[i], still_greedy[i] = -np.inf, PAD, 0, False
        found = 0
        for rank in range(2 * k):
            first = rank == 0 and greedy[i]
            row = 0 if first else _best_row(totals, place)
            total, token = totals[row, place[row]], chosen[row, place[row]]
            if not total > -np.inf:
                break
            place[row] += 1
            if token == END:
                if rank < k:
                    _keep(total / norm + unseen[i, row], total, now, row, kept)
            elif found < k:
                next_log_p[i, found], next_tokens[i, found] = total, token
                parents[i, found] = row
                still_greedy[i] |= first
                found += 1
        # Without going on, the best way under way scores this; if that is too little, it is over.
        hope = next_log_p[i].max() / norm
        going[i] = found > 0 and (still_greedy[i] or kept[0][wanted - 1] < hope)


with kernel_cache():
    advance = numba.njit(cache=True, nogil=True)(_advance)
