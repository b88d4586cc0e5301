"""Validation of weights and token labels for figures and the view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

WeightsLike: TypeAlias = Tensor | npt.ArrayLike

#: Half-precision weights may round to a little more than 1.
_ONE = 1.004


def as_weights(weights: WeightsLike, *axes: str) -> npt.NDArray[np.float64]:
    """The weights as an array with these axes, each between 0 and 1, or NaN where they are."""
    if isinstance(weights, Tensor):
        weights = weights.detach().double().cpu().numpy()
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != len(axes) or array.size == 0:
        raise ValueError(f"weights must have shape ({', '.join(axes)}), none 0; got {array.shape}")
    outside = array[(array < 0) | (array > _ONE)]
    if outside.size:
        raise ValueError(f"weights must lie between 0 and 1; got {outside[0]:.6g}")
    return np.minimum(array, 1.0)


def as_tokens(tokens: Sequence[str], count: int, name: str) -> list[str]:
    """One string for each of `count` queries or keys; `name` is the argument's."""
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise TypeError(f"{name} must be a list of strings; got {tokens!r:.80}")
    if len(tokens) != count:
        raise ValueError(f"{name} must name {count} tokens, as weights has; got {len(tokens)}")
    return list(tokens)
