"""What the examples say to queries: attention, by whichever operator serves it best."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from qkv.operators.sorted.line import Line, Said
from qkv.partial import Partial
from qkv.pooling import attend_partial
from qkv.regression import rows, tree
from qkv.regression.categories import log_factor
from qkv.regression.examples import Array, Codes, Examples, Keys, Places, Width
from qkv.regression.kernels import at, height
from qkv.regression.nearest import Adaptive, with_widths
from qkv.similarity import Kernel
from qkv.similarity.base import SortedForm

#: Where others weigh less than this beside the key itself, a difference would have lost digits.
_ALMOST_ALONE = 1e-6


def pool(
    examples: Examples,
    kernel: Kernel,
    width: Width,
    query: Keys,
    columns: Array,
    own: Places | None = None,
) -> Said:
    """The weighted mean of `columns` (m, c) for each query, and the log of its total weight.

    `own` says which example each query is itself, if it is one. Rows of one combination of
    categories are pooled together, and the parts merged: within a part the categories change the
    total alone.
    """
    weight = examples.weight
    value = columns if weight is None else np.column_stack([weight, weight[:, None] * columns])
    similarity, tokens = at(kernel, width.bandwidth), torch.from_numpy(query.number)
    if width.neighbors is not None:
        tokens = with_widths(examples, width, query.number, own)
        similarity = Adaptive(similarity)
    merged: Partial | None = None
    for kind, members in _kinds(examples.keys):
        part = _partial(similarity, tokens, examples.keys.number[members], value[members])
        if kind.size:
            factor = log_factor(kind[None], query.code, examples.categories, width.smoothing)
            part = part._replace(log_total=part.log_total + torch.from_numpy(factor[:, 0]))
            empty = (part.log_total == -torch.inf).unsqueeze(-1)
            part = part._replace(answer=part.answer.masked_fill(empty, 0.0))
        merged = part if merged is None else merged.merge(part)
    assert merged is not None, "there is at least one example"
    answer, log_total = merged.answer.numpy(), merged.log_total.numpy()
    if weight is None:
        return Said(answer, log_total)
    some = answer[:, 0] > 0
    mean = np.divide(
        answer[:, 1:], answer[:, :1], where=some[:, None], out=np.zeros_like(answer[:, 1:])
    )
    with np.errstate(divide="ignore"):
        return Said(mean, log_total + np.log(np.maximum(answer[:, 0], 0)))


def _kinds(keys: Keys) -> Iterator[tuple[Codes, Any]]:
    """Each combination of categories, and which rows have it."""
    if keys.code.shape[1] == 0:
        yield np.empty(0, np.int64), slice(None)
        return
    kinds, kind_of = np.unique(keys.code, axis=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        yield kind, kind_of.ravel() == number


def _partial(similarity: Kernel, tokens: torch.Tensor, key: Array, value: Array) -> Partial:
    if key.shape[1] == 0:  # categories alone: all of one kind count alike
        n = len(tokens)
        mean = torch.from_numpy(value.mean(axis=0)).expand(n, -1)
        return Partial(mean, torch.full((n,), math.log(len(key)), dtype=torch.float64))
    if tree.near_pairs_are_few(similarity, tokens.numpy(), key):
        said = tree.pool(similarity, tokens.numpy(), key, value)
        return Partial(torch.from_numpy(said.answer), torch.from_numpy(said.log_total))
    with torch.no_grad():
        return attend_partial(
            tokens, torch.from_numpy(key), torch.from_numpy(value), similarity=similarity
        )


class Everyone:
    """The examples, each to be told what the others say, at any number of widths.

    Leave-one-out in one pass: with N = Σ K y and D = Σ K over all keys, those but one say
    (N − K(0)y) / (D − K(0)). A weight counts copies of a row; of several, one is left out.
    """

    def __init__(self, examples: Examples, kernel: Kernel, columns: Array) -> None:
        self.examples, self.kernel, self.columns = examples, kernel, columns
        self.own = height(kernel) * np.minimum(examples.copies, 1.0)
        keys = examples.keys
        self.line: Line | None = None
        if keys.number.shape[1] == 1 and not keys.code.shape[1]:
            unit = at(kernel, np.ones(1)).as_sorted(torch.from_numpy(keys.number))
            if isinstance(unit, SortedForm):
                self.unit = unit
                self.line = Line(np.ascontiguousarray(keys.number[:, 0]), columns, examples.weight)

    def without_itself(self, width: Width) -> tuple[Said, Array]:
        """What the others say to each example, and its share of the weight if it could speak."""
        if self.line is None or width.neighbors is not None:
            return self._by_difference(width)
        bandwidth = self.unit.bandwidth * float(width.bandwidth[0])
        said = self.line.pool_others(self.unit.kernel, bandwidth)
        with np.errstate(over="ignore"):
            return said, self.own / (self.own + np.exp(said.log_total))

    def _by_difference(self, width: Width) -> tuple[Said, Array]:
        examples, kernel, columns = self.examples, self.kernel, self.columns
        keys = examples.keys
        everyone = pool(examples, kernel, width, keys, columns, own=np.arange(len(keys)))
        own = self.own * np.prod(1 - width.smoothing)
        with np.errstate(over="ignore"):
            share = np.minimum(own * np.exp(-everyone.log_total), 1.0)
        rest = 1 - share
        alone = rest < _ALMOST_ALONE
        safe = np.where(alone, 1.0, rest)[:, None]
        answer = (everyone.answer - share[:, None] * columns) / safe
        log_total = everyone.log_total + np.log(safe[:, 0])
        places = np.flatnonzero(alone)
        for batch, weights, totals in rows.weights(
            examples, kernel, width, keys.take(places), own=places, leave_out=True
        ):
            answer[places[batch]], log_total[places[batch]] = weights @ columns, totals
        return Said(answer, log_total), share
