"""What the kernels over sorted keys share: what they take, how they search, what they write."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device_in_order
from qkv.jit.signature import Double1, Double2


class KeyArrays(NamedTuple):
    """Keys in ascending order, and the values that they stand for."""

    key: Double1  # (m,)
    weight: Double1  # (m,), above 0
    value: Double2  # (m, columns): what differs from the mean
    mean: Double1  # (columns,)
    low: Double1  # (columns,): the least of the values themselves
    high: Double1  # (columns,)


class Answers(NamedTuple):
    """Where answers go, in the order of the queries."""

    answer: Double2  # (n, columns)
    log_total: Double1  # (n,)


@device_in_order
def count_below(numbers: Any, x: Any) -> Any:
    """How many numbers, which ascend, are less than x."""
    low, end = 0, numbers.size
    while low < end:
        middle = (low + end) // 2
        if numbers[middle] < x:
            low = middle + 1
        else:
            end = middle
    return low


@device_in_order
def count_up_to(numbers: Any, x: Any) -> Any:
    """How many numbers, which ascend, are at most x."""
    low, end = 0, numbers.size
    while low < end:
        middle = (low + end) // 2
        if numbers[middle] <= x:
            low = middle + 1
        else:
            end = middle
    return low


@device_in_order
def write_answer(i: int, sums: Any, log_scale: float, keys: Any, answers: Any) -> None:
    """Answer query i, given its total weight and its weighted sums (1 + columns,)."""
    log_total = math.log(sums[0]) + log_scale if sums[0] > 0.0 else -np.inf
    answers.log_total[i] = log_total
    if log_total == -np.inf:  # nothing to attend to, or too far away for floats
        for c in range(keys.mean.size):
            answers.answer[i, c] = 0.0
        return
    for c in range(keys.mean.size):
        answer = sums[1 + c] / sums[0] + keys.mean[c]
        # A mean of values lies among them, and rounding must not say otherwise.
        if answer < keys.low[c]:
            answer = keys.low[c]
        if answer > keys.high[c]:
            answer = keys.high[c]
        answers.answer[i, c] = answer
