"""The similarities that have fused kernels, and how a kernel is put together.

A similarity is five functions: how queries and keys are packed, the scores of a tile, and their
gradient. Its kernels are copies of the drivers in `forward.py` and `backward.py` whose free names
are bound to these functions. Copies, because Numba caches on disk neither closures over compiled
functions nor functions passed as arguments; a function with its own name and globals it does.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba

from qkv.operators.fused import additive, backward, distance, forward, gated, weights
from qkv.operators.fused.arithmetic import INNER_OPTIONS, TILE_OPTIONS
from qkv.operators.fused.cache import kernel_cache

Function = Callable[..., Any]

DRAWS = {"forward": "forward_chunks", "backward": "backward_units"}  # what draws the work


@dataclass(frozen=True)
class Similarity:
    """What the drivers need to know of a similarity; `proportional`: its scores are weights."""

    packed_depth: Function
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
        distance.packed_depth,
        distance.pack_query,
        distance.pack_key,
        compiled(bind(distance.scores, f"{kind}_scores", value=value)),
        compiled(bind(distance.gradient, f"{kind}_gradient", slope=slope)),
        proportional,
    )


def _of_module(module: types.ModuleType) -> Similarity:
    names = ("packed_depth", "pack_query", "pack_key", "scores", "gradient")
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


def build(kind: str) -> tuple[Function, Function]:
    """The forward and the backward kernel of a similarity; they compile when first called."""
    similarity = SIMILARITIES[kind]()
    normal = "proportional" if similarity.proportional else "softmax"
    bindings: dict[str, Function | bool] = {
        "SHARED": not similarity.proportional,
        "packed_depth": similarity.packed_depth,
        "pack_query": similarity.pack_query,
        "pack_key": similarity.pack_key,
        "scores": similarity.scores,
        "gradient": similarity.gradient,
        "to_logits": getattr(weights, f"{normal}_logits"),
        "to_weights": getattr(weights, f"{normal}_weights"),
        "to_slopes": getattr(weights, f"{normal}_slopes"),
    }
    compiled = numba.njit(**INNER_OPTIONS)
    with kernel_cache():
        kernels = []
        for driver, name in ((forward, "forward"), (backward, "backward")):
            block = bind(getattr(driver, f"{name}_block"), f"{kind}_{name}_block", **bindings)
            bindings[f"{name}_block"] = compiled(block)
            loop = getattr(driver, DRAWS[name])
            bindings[DRAWS[name]] = compiled(bind(loop, f"{kind}_{DRAWS[name]}", **bindings))
            whole = bind(getattr(driver, name), f"{kind}_{name}", **bindings)
            kernels.append(numba.njit(cache=True, **TILE_OPTIONS)(whole))
    return kernels[0], kernels[1]
