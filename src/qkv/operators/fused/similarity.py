"""The similarities that have fused kernels, and how a kernel is put together.

A similarity is four functions: how queries and keys are packed, the scores of a tile, and their
gradient. Its kernels are copies of the drivers in `forward.py` and `backward.py` whose free names
are bound to these functions.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba

from qkv.operators.fused import additive, backward, distance, forward, gated, weights
from qkv.operators.fused.arithmetic import INNER_OPTIONS

Function = Callable[..., Any]


@dataclass(frozen=True)
class Similarity:
    """What the drivers need to know of a similarity; `proportional`: its scores are weights."""

    pack_query: Function
    pack_key: Function
    scores: Function
    gradient: Function
    proportional: bool = False


def bind(function: Function, name: str, **bindings: Function | bool) -> types.FunctionType:
    """A copy of a plain function under its own name, its free names bound as given."""
    names = {**function.__globals__, **bindings}
    bound = types.FunctionType(function.__code__, names, name, function.__defaults__)
    bound.__qualname__ = name
    bound.__module__ = function.__module__
    return bound


def _distance(kind: str, proportional: bool = False) -> Similarity:
    value = getattr(distance, f"{kind}_value")
    slope = getattr(distance, f"{kind}_slope")
    compiled = numba.njit(**INNER_OPTIONS)
    return Similarity(
        distance.pack_query,
        distance.pack_key,
        compiled(bind(distance.scores, f"{kind}_scores", value=value)),
        compiled(bind(distance.gradient, f"{kind}_gradient", slope=slope)),
        proportional,
    )


def _of_module(module: types.ModuleType) -> Similarity:
    names = ("pack_query", "pack_key", "scores", "gradient")
    return Similarity(*(getattr(module, name) for name in names))


SIMILARITIES: dict[str, Callable[[], Similarity]] = {
    "additive": lambda: _of_module(additive),
    "gated": lambda: _of_module(gated),
    "gaussian": lambda: _distance("gaussian"),
    "euclidean": lambda: _distance("euclidean"),
    "laplacian": lambda: _distance("laplacian"),
    "boxcar": lambda: _distance("boxcar", proportional=True),
    "triangular": lambda: _distance("triangular", proportional=True),
    "epanechnikov": lambda: _distance("epanechnikov", proportional=True),
}


def build(kind: str, way: str) -> Function:
    """The driver of one way, "forward" or "backward", for a similarity; compiled when called."""
    similarity = SIMILARITIES[kind]()
    normal = "proportional" if similarity.proportional else "softmax"
    bindings: dict[str, Function | bool] = {
        "SHARED": not similarity.proportional,
        "pack_query": similarity.pack_query,
        "pack_key": similarity.pack_key,
        "scores": similarity.scores,
        "gradient": similarity.gradient,
        "to_logits": getattr(weights, f"{normal}_logits"),
        "to_weights": getattr(weights, f"{normal}_weights"),
        "to_slopes": getattr(weights, f"{normal}_slopes"),
    }
    compiled = numba.njit(**INNER_OPTIONS)
    if way == "forward":
        block = bind(forward.forward_block, f"{kind}_forward_block", **bindings)
        bindings["forward_block"] = compiled(block)
        driver: Function = forward.forward_chunks
    else:
        block = bind(backward.backward_block, f"{kind}_backward_block", **bindings)
        bindings["backward_block"] = compiled(block)
        driver = backward.backward_units
    whole: Function = compiled(bind(driver, f"{kind}_{driver.__name__}", **bindings))
    return whole
