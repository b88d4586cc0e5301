"""From a formula and its tokens to a program and its columns.

The first time a formula is met it runs on probes (`probes.py`). Each time it is used it runs once
more on the tokens (`gather.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch import Tensor

from qkv.formula.gather import Form, Formula, Trace, follow
from qkv.formula.probes import trace_on_probes
from qkv.formula.traced import RefusedError


class _Refused(NamedTuple):
    reason: str
    owner: Any  # a weak reference to the formula that was refused, or None: any of its kind


_TRACES: dict[Hashable, list[Trace] | _Refused] = {}
MOST_TRACES = 512  # of kinds of calls; beyond it all are forgotten
MOST_VARIANTS = 8  # of what a formula does, depending on what it finds


def form(
    formula: Formula, owner: Any, query: Tensor, key: Tensor, proportional: bool
) -> Form | str:
    """The formula as a fused kernel takes it, or one clause saying why it has none.

    `owner` is the callable or similarity that the formula is of.
    """
    kind: Hashable = (
        _kind(owner), _shape_class(query), _shape_class(key), query.dtype, proportional
    )  # fmt: skip
    known = _TRACES.get(kind)
    if isinstance(known, _Refused):
        if known.owner is None or known.owner() is owner:
            return known.reason
        known = None
    for trace in known or []:
        followed = follow(trace, formula, query, key)
        if followed is not None:
            return followed
    try:
        trace = trace_on_probes(formula, query, key, proportional)
    except RefusedError as refused:
        if not known:
            _remember(kind, _Refused(str(refused), _reference(owner)))
        return str(refused)
    _remember(kind, [trace, *(known or [])][:MOST_VARIANTS])
    _TRACED.add(_kind(owner))
    followed = follow(trace, formula, query, key)
    if followed is None:
        reason = "it behaves differently on these inputs than when it was traced"
        _remember(kind, _Refused(reason, _reference(owner)))
        return reason
    return followed


def was_traced(owner: Any) -> bool:
    """Whether a formula of this owner was compiled, or is about to be."""
    return _kind(owner) in _TRACED


_TRACED: set[Hashable] = set()


def _remember(kind: Hashable, what: list[Trace] | _Refused) -> None:
    if len(_TRACES) >= MOST_TRACES:
        _TRACES.clear()
    _TRACES[kind] = what


def _kind(owner: Any) -> Any:
    """Formulas of one kind are likely to do the same."""
    return owner.__code__ if isinstance(owner, (FunctionType, MethodType)) else type(owner)


def _reference(owner: Any) -> Any:
    try:
        return None if isinstance(owner, FunctionType) else weakref.ref(owner)
    except TypeError:  # some cannot be referred to
        return None


def _shape_class(tensor: Tensor) -> tuple[Any, ...]:
    return (*(size > 1 for size in tensor.shape[:-1]), tensor.shape[-1])
