"""Weighted means of the examples for queries: attention, by whichever operator serves it best."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from qkv.jit.kernels import UnavailableError, warn_once
from qkv.operators.sorted.sorted_keys import SortedKeys, WeightedMean
from qkv.partial import Partial
from qkv.pooling import attend_partial
from qkv.regression import kd_tree, weight_batches
from qkv.regression.adaptive_bandwidth import with_widths
from qkv.regression.categories import log_factor, log_self_factor
from qkv.regression.kernels import at, height
from qkv.regression.training_data import Array, Codes, Keys, Places, TrainingData, Width
from qkv.similarity import Kernel
from qkv.similarity.adaptive import Adaptive
from qkv.similarity.base import SortedForm

#: If all others have less than this share of the weight, their mean as a difference loses digits.
_ALMOST_ALONE = 1e-6
#: Of how many parts answers are merged, at most, where numbers are missing.
MOST_PARTS = 256

Mask: TypeAlias = npt.NDArray[np.bool_]


def pool(
    examples: TrainingData,
    kernel: Kernel,
    width: Width,
    query: Keys,
    columns: Array,
    self_index: Places | None = None,
) -> WeightedMean:
    """The weighted mean of `columns` (m, c) for each query, and the log of its total weight.

    `self_index` is the example that each query itself is, if it is one. Rows of one combination of
    categories are pooled together, and the parts merged: within a part the categories change only
    the total. So are rows that lack the same numbers: a number that query or key lacks takes no
    part in their distance, which is scaled up for it. Rows that share no number have weight 0.
    """
    weight = examples.weight
    value = columns if weight is None else np.column_stack([weight, weight[:, None] * columns])
    tokens = query.number
    if width.neighbors is not None:
        tokens = with_widths(examples, width, query.number, self_index)
    key_kinds, query_patterns = list(_kinds(examples.keys)), list(_patterns(query.number))
    if len(key_kinds) * len(query_patterns) > MOST_PARTS and examples.keys.some_missing:
        return _by_rows(examples, kernel, width, query, columns)
    n = len(query)
    answer, log_total = np.zeros((n, value.shape[1])), np.full(n, -np.inf)
    for there, members in query_patterns:
        part = _merged(
            examples, kernel, width, key_kinds, there, query.take(members), tokens[members], value
        )
        if part is None:
            continue
        if len(query_patterns) == 1:  # all at once: nothing to be copied
            answer, log_total = part.answer.numpy(), part.log_total.numpy()
        else:
            answer[members], log_total[members] = part.answer.numpy(), part.log_total.numpy()
    if weight is None:
        return WeightedMean(answer, log_total)
    some = answer[:, 0] > 0
    mean = np.divide(
        answer[:, 1:], answer[:, :1], where=some[:, None], out=np.zeros_like(answer[:, 1:])
    )
    with np.errstate(divide="ignore"):
        return WeightedMean(mean, log_total + np.log(np.maximum(answer[:, 0], 0)))


class _Kind(NamedTuple):
    """Rows of one combination of categories that have the same numbers."""

    code: Codes  # (c,)
    there: Mask  # (d,)
    members: Any


def _merged(
    examples: TrainingData,
    kernel: Kernel,
    width: Width,
    kinds: list[_Kind],
    there: Mask,
    query: Keys,
    tokens: Array,
    value: Array,
) -> Partial | None:
    """The answer of all kinds of rows to queries that have the numbers `there`."""
    merged: Partial | None = None
    d = len(there)
    for kind in kinds:
        common = there & kind.there
        if d and not common.any():
            continue  # nothing to compare
        # Distances grow with the columns that take part, and so must the width.
        bandwidth = width.bandwidth[common] * math.sqrt(common.sum() / max(1, d))
        similarity, key = at(kernel, bandwidth), examples.keys.number[kind.members]
        queries = tokens
        if width.neighbors is not None:  # with which nothing is missing
            similarity = Adaptive(similarity)
        elif not common.all():
            queries, key = (np.ascontiguousarray(each[:, common]) for each in (tokens, key))
        part = _partial(similarity, torch.from_numpy(queries), key, value[kind.members])
        if kind.code.size:
            factor = log_factor(kind.code[None], query.code, examples.categories, width.smoothing)
            part = part._replace(log_total=part.log_total + torch.from_numpy(factor[:, 0]))
            empty = (part.log_total == -torch.inf).unsqueeze(-1)
            part = part._replace(answer=part.answer.masked_fill(empty, 0.0))
        merged = part if merged is None else merged.merge(part)
    return merged


def _by_rows(
    examples: TrainingData, kernel: Kernel, width: Width, query: Keys, columns: Array
) -> WeightedMean:
    """Where almost every row lacks different columns: by the weights themselves."""
    answer, log_total = np.empty((len(query), columns.shape[1])), np.empty(len(query))
    for batch, weights, totals in weight_batches.weights(examples, kernel, width, query):
        answer[batch], log_total[batch] = weights @ columns, totals
    return WeightedMean(answer, log_total)


def _patterns(number: Array) -> Iterator[tuple[Mask, Any]]:
    """Each pattern of numbers that are not missing, and the rows that have it."""
    missing = np.isnan(number)
    if not missing.any():
        yield np.ones(number.shape[1], dtype=bool), slice(None)
        return
    patterns, pattern_of = np.unique(missing, axis=0, return_inverse=True)
    for place, pattern in enumerate(patterns):
        yield ~pattern, np.flatnonzero(pattern_of.ravel() == place)


def _kinds(keys: Keys) -> Iterator[_Kind]:
    """Each combination of categories and of numbers that are not missing, and its rows."""
    for there, members in _patterns(keys.number):
        if keys.code.shape[1] == 0:
            yield _Kind(np.empty(0, np.int64), there, members)
            continue
        places = np.arange(len(keys))[members]
        codes, code_of = np.unique(keys.code[places], axis=0, return_inverse=True)
        for number, code in enumerate(codes):
            yield _Kind(code, there, places[code_of.ravel() == number])


def _partial(similarity: Kernel, tokens: torch.Tensor, key: Array, value: Array) -> Partial:
    if key.shape[1] == 0:  # categories alone: all of one kind count alike
        n = len(tokens)
        mean = torch.from_numpy(value.mean(axis=0)).expand(n, -1)
        return Partial(mean, torch.full((n,), math.log(len(key)), dtype=torch.float64))
    if kd_tree.near_pairs_are_few(similarity, tokens.numpy(), key):
        pooled = kd_tree.pool(similarity, tokens.numpy(), key, value)
        return Partial(torch.from_numpy(pooled.answer), torch.from_numpy(pooled.log_total))
    with torch.no_grad():
        return attend_partial(
            tokens, torch.from_numpy(key), torch.from_numpy(value), similarity=similarity
        )


class LeaveOneOutPool:
    """Leave-one-out means at any number of widths.

    In one pass: with N = Σ K y and D = Σ K over all keys, the mean of all but one is
    (N − K(0)y) / (D − K(0)). A weight counts copies of a row; of several, one is left out.
    """

    def __init__(self, examples: TrainingData, kernel: Kernel, columns: Array) -> None:
        self.examples, self.kernel, self.columns = examples, kernel, columns
        self.self_weight = height(kernel) * np.minimum(examples.copies, 1.0)
        #: Whether the keys have an order, along which the others' sums need no difference.
        self.is_sorted = self._sorted_form(np.ones(1)) is not None
        self._sorted_keys: SortedKeys | None = None

    def without_itself(self, width: Width) -> tuple[WeightedMean, Array]:
        """The mean of the others for each example, and the share that it would have itself."""
        form = self._sorted_form(width.bandwidth)
        if form is None or width.neighbors is not None:
            return self._by_difference(width)
        try:
            pooled = self._along_the_order(form)
        except UnavailableError as reason:
            warn_once(str(reason))
            return self._by_difference(width)
        return pooled, self.share(pooled.log_total, width)

    def _sorted_form(self, bandwidth: Array) -> SortedForm | None:
        keys = self.examples.keys
        if keys.number.shape[1] != 1 or keys.code.shape[1]:
            return None
        form = at(self.kernel, bandwidth).as_sorted(torch.from_numpy(keys.number))
        return form if isinstance(form, SortedForm) else None

    def _along_the_order(self, form: SortedForm) -> WeightedMean:
        """`attend` under ExceptSelf, with keys sorted once for all widths; where rows count several
        times, a mask would leave out all copies, and here one is left out."""
        if self._sorted_keys is None:
            key = np.ascontiguousarray(self.examples.keys.number[:, 0])
            self._sorted_keys = SortedKeys(key, self.columns, self.examples.weight)
        return self._sorted_keys.pool_others(form.kernel, form.bandwidth)

    def share(self, log_total: Array, width: Width) -> Array:
        """The share of each example in the weight, where the others have this total."""
        self_weight = self._self_weight_at(width)
        with np.errstate(over="ignore"):
            return np.asarray(self_weight / (self_weight + np.exp(log_total)))

    def _self_weight_at(self, width: Width) -> Array:
        code, categories = self.examples.keys.code, self.examples.categories
        return np.asarray(
            self.self_weight * np.exp(log_self_factor(code, categories, width.smoothing))
        )

    def _by_difference(self, width: Width) -> tuple[WeightedMean, Array]:
        examples, kernel, columns = self.examples, self.kernel, self.columns
        keys = examples.keys
        all_rows = pool(examples, kernel, width, keys, columns, self_index=np.arange(len(keys)))
        self_weight = self._self_weight_at(width)
        with np.errstate(over="ignore"):
            share = np.minimum(self_weight * np.exp(-all_rows.log_total), 1.0)
        rest = 1 - share
        dominated = rest < _ALMOST_ALONE
        safe = np.where(dominated, 1.0, rest)[:, None]
        answer = (all_rows.answer - share[:, None] * columns) / safe
        log_total = all_rows.log_total + np.log(safe[:, 0])
        places = np.flatnonzero(dominated)
        for batch, weights, totals in weight_batches.weights(
            examples, kernel, width, keys.take(places), self_index=places, leave_out=True
        ):
            answer[places[batch]], log_total[places[batch]] = weights @ columns, totals
        return WeightedMean(answer, log_total), share
