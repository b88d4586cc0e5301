"""Which operator serves what: the conformance suite runs on all of it, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cases import MASKS, SIMILARITIES, Case, MaskCase

DOT_PRODUCTS = {"dot", "scaled_dot", "cosine", "bilinear"}
DISTANCES = {"euclidean", "gaussian", "gaussian-per-dimension", "gaussian-learned"}


def _sdpa(case: Case, mask: MaskCase) -> bool:
    if mask.top is not None:
        return False
    return case.name in DOT_PRODUCTS or (case.name in DISTANCES and mask.name == "none")


SERVES: dict[str, Callable[[Case, MaskCase], bool]] = {
    "dense": lambda case, mask: True,
    "streamed": lambda case, mask: True,
    "sdpa": _sdpa,
}


def combinations(masks: list[MaskCase] = MASKS) -> Iterator[object]:
    """Every operator × similarity × mask that it serves, as pytest parameters."""
    for operator, serves in SERVES.items():
        for case in SIMILARITIES:
            for mask in masks:
                if serves(case, mask):
                    name = f"{operator}-{case.name}-{mask.name}"
                    yield pytest.param(operator, case, mask, id=name)


every_combination = pytest.mark.parametrize(("operator", "case", "mask_case"), list(combinations()))
every_similarity = pytest.mark.parametrize(
    ("operator", "case"),
    [
        pytest.param(operator, case, id=f"{operator}-{case.name}")
        for operator, serves in SERVES.items()
        for case in SIMILARITIES
        if serves(case, MASKS[0])
    ],
)
every_operator = pytest.mark.parametrize("operator", SERVES)
