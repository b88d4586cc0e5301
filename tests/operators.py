"""Which operator serves what: the conformance suite runs on all of it, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import pytest
from cases import ALGEBRA, LINES, MASKS, SIMILARITIES, Case, MaskCase

DOT_PRODUCTS = {
    "dot",
    "scaled_dot",
    "cosine",
    "bilinear",
    "sum-of-dots",
    "temperature-learned",
}
DISTANCES = {"euclidean", "gaussian", "gaussian-per-dimension", "gaussian-learned"}


def _sdpa(case: Case, mask: MaskCase) -> bool:
    if mask.top is not None:
        return False
    return case.name in DOT_PRODUCTS or (case.name in DISTANCES and mask.name == "none")


def _banded(case: Case, mask: MaskCase) -> bool:
    runs = {"causal", "window", "blocks", "dilated", "causal-lengths", "dilated-causal-lengths"}
    return case.name in DOT_PRODUCTS and mask.name in runs


#: Those of each kind, for cases that need not meet all.
FEW_MASKS = {"none", "causal", "lengths", "top-causal", "boolean", "floating-causal"}

KERNELS = {
    "gaussian",
    "laplacian",
    "boxcar",
    "triangular",
    "epanechnikov",
    "biweight",
    "tricube",
}


def fused_serves(case: Case, mask: MaskCase) -> bool:
    """No fused kernel for look-ups; no mask that ranks or is two runs at once."""
    kind = case.name.split("-")[0]
    if mask.top is not None or mask.name in {"window-or-blocks", "except-self"}:
        return False
    if case.name in DOT_PRODUCTS or case in ALGEBRA:
        return True
    return kind in {"additive", "gated", "euclidean", "callable", "formula", *KERNELS}


def _lookup(case: Case, mask: MaskCase) -> bool:
    """One table of keys serves all queries."""
    return case.name == "equal" and mask.name in {"none", "lengths", "boolean-per-key"}


SERVES: dict[str, Callable[[Case, MaskCase], bool]] = {
    "dense": lambda case, mask: True,
    "streamed": lambda case, mask: True,
    "sdpa": _sdpa,
    "banded": _banded,
    "fused": fused_serves,
    "topk": lambda case, mask: mask.top is not None,
    "lookup": _lookup,
    "sorted": lambda case, mask: case in LINES and mask.name == "none",
}


def cases(operator: str) -> list[Case]:
    return LINES if operator == "sorted" else SIMILARITIES


def combinations(
    masks: list[MaskCase] = MASKS, operators: Container[str] = SERVES
) -> Iterator[object]:
    """Every operator × similarity × mask that it serves, as pytest parameters."""
    for operator, serves in SERVES.items():
        if operator not in operators:
            continue
        for case in cases(operator):
            for mask in masks:
                if case.few_masks and mask.name not in FEW_MASKS:
                    continue
                if serves(case, mask):
                    name = f"{operator}-{case.name}-{mask.name}"
                    yield pytest.param(operator, case, mask, id=name)


every_combination = pytest.mark.parametrize(("operator", "case", "mask_case"), list(combinations()))


def similarities(wanted: Callable[[str, Case], bool] = lambda operator, case: True) -> list[object]:
    """Every operator × similarity that it serves without a mask, as pytest parameters."""
    return [
        pytest.param(operator, case, id=f"{operator}-{case.name}")
        for operator, serves in SERVES.items()
        for case in cases(operator)
        if serves(case, MASKS[0]) and wanted(operator, case)
    ]


every_similarity = pytest.mark.parametrize(("operator", "case"), similarities())


def masks_served(case: Case) -> list[object]:
    """Every operator × mask under which it serves `case`, as pytest parameters."""
    return [
        pytest.param(operator, mask, id=f"{operator}-{mask.name}")
        for operator, serves in SERVES.items()
        for mask in MASKS
        if serves(case, mask)
    ]
