"""Weights in short: :mod:`qkv.visualization.summary`, under the name that users import."""

from __future__ import annotations

from qkv.visualization.summary import (
    distance,
    entropy,
    hide,
    information,
    mean_over_heads,
    merge,
    most_telling,
    rollout,
)

__all__ = [
    "distance",
    "entropy",
    "hide",
    "information",
    "mean_over_heads",
    "merge",
    "most_telling",
    "rollout",
]
