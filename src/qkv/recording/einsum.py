"""Queries and keys in an Einstein sum."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor


def of_einsum(equation: Any, left: Any, right: Any) -> tuple[Tensor, Tensor] | None:
    """Query (…, n, d) and key (…, m, d) whose products the sum is; None where it is no such sum.

    Each letter stands for an axis: the one that is summed over is d, one that only the one has and
    the result ends in is n, one that only the other has is m, and all others are in both.
    """
    if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(equation, str)):
        return None
    parts = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)", equation.replace(" ", ""))
    if parts is None or any(len(set(part)) < len(part) for part in parts.groups()):
        return None
    first, second, result = parts.groups()
    summed = set(first + second) - set(result)
    if len(summed) != 1 or len(result) < 2 or not summed <= set(first) & set(second):
        return None
    (d,) = summed
    lead, n, m = result[:-2], result[-2], result[-1]
    if m in first:  # the keys came first
        first, second, left, right = second, first, right, left
    if set(first) != {*lead, n, d} or set(second) != {*lead, m, d}:
        return None
    return _ordered(left, first, [*lead, n, d]), _ordered(right, second, [*lead, m, d])


def _ordered(tensor: Tensor, letters: str, wanted: list[str]) -> Tensor:
    return tensor.permute([letters.index(letter) for letter in wanted])
