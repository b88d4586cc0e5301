"""What to answer where no example is within reach."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree

from qkv.regression.training_data import Array, Keys, TrainingData, Width

POLICIES = ("nan", "nearest", "prior", "raise")


class NoNeighboursWarning(UserWarning):
    """Some queries have no example within reach of the kernel."""


def check(policy: object) -> None:
    if policy not in POLICIES:
        raise ValueError(f"empty must be one of {', '.join(POLICIES)}; got {policy!r}")


def fill(
    policy: str,
    answer: Array,
    empty: npt.NDArray[np.bool_],
    examples: TrainingData,
    width: Width,
    query: Keys,
    values: Array,
    prior: Array,
) -> Array:
    """The answers (n, …), those of empty rows replaced.

    `values` (m, …) is the answer of each example alone, `prior` (…) that of all together.
    """
    count = int(empty.sum())
    if count == 0:
        return answer
    message = f"{count} of {len(answer)} queries have no example within reach"
    if policy == "raise":
        raise ValueError(f"{message}; a wider bandwidth or empty='nearest' would answer them")
    answer = answer.copy()
    if policy == "nan":
        warnings.warn(
            f"{message}; their answers are NaN (see empty=)", NoNeighboursWarning, stacklevel=4
        )
        answer[empty] = np.nan
    elif policy == "prior":
        answer[empty] = prior
    else:
        for place, near in zip(
            np.flatnonzero(empty), nearest(examples, width, query.take(empty)), strict=True
        ):
            answer[place] = np.average(values[near], axis=0, weights=examples.copies[near])
    return answer


def nearest(examples: TrainingData, width: Width, query: Keys) -> list[list[int]]:
    """The examples nearest to each query: first by equal categories, then by distance."""
    if query.some_missing or examples.keys.some_missing:
        return [_nearest_by_shared(examples, width, query.take([row])) for row in range(len(query))]
    unit = width.bandwidth / width.bandwidth.max(initial=0)
    number, query_number = examples.keys.number / unit, query.number / unit
    extent = max(np.abs(number).max(initial=0), np.abs(query_number).max(initial=0)) or 1.0
    # Numbers up to 1, of which no square overflows; a category that differs costs more.
    far, code = 5.0 * max(1, number.shape[1]), examples.keys.code
    columns, query_columns = [number / extent], [query_number / extent]
    for column, category in enumerate(examples.categories):
        names = np.arange(category.size)
        columns.append(far * (code[:, column, None] == names))
        query_columns.append(far * (query.code[:, column, None] == names))
    tree, place = KDTree(np.hstack(columns)), np.hstack(query_columns)
    distance, _ = tree.query(place)
    return list(tree.query_ball_point(place, distance * (1 + 1e-12)))  # several, where they tie


def _nearest_by_shared(examples: TrainingData, width: Width, query: Keys) -> list[int]:
    """The same for one query, by the numbers that both have; all examples, if it has none."""
    differ = (examples.keys.code != query.code).sum(axis=1)
    difference = (examples.keys.number - query.number) / width.bandwidth
    shared = (~np.isnan(difference)).sum(axis=1)
    distance = np.nansum(difference**2, axis=1) / np.maximum(shared, 1)
    distance[shared == 0] = np.inf
    best = differ == differ[np.argmin(np.where(distance < np.inf, differ, differ.max() + 1))]
    least = distance[best].min()
    near = best & ((distance <= least * (1 + 1e-12)) | (distance == least))
    return list(np.flatnonzero(near))
