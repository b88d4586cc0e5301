"""Attention that a model writes out as plain torch code: softmax(q kᵀ · scale + mask).

Scores are followed from the product of queries and keys, through what is done to them, to the
softmax. What is kept of them is where they came from, never the scores themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from qkv.mask import Allowed, Bias, Mask
from qkv.nn.torch_masks import both
from qkv.similarity import FromCallable, ScaledDot, Similarity

#: In place of a cap: scores went through tanh, and the cap that multiplies them is yet to come.
_BENT = 0.0

#: A score replaced by no more than this may not attend; models write −10,000 to −inf.
_NEVER = -1e4

_PRODUCTS = {"matmul", "bmm", "__matmul__"}
_FACTORS = {"mul", "mul_", "multiply", "__mul__", "__rmul__"}
_DIVISORS = {"div", "div_", "divide", "true_divide", "__truediv__"}
_SUMS = {"add", "add_", "__add__", "__radd__"}
_COPIES = {"to", "float", "double", "type_as", "contiguous", "clone", "view_as"}


class Scores(NamedTuple):
    """Where a tensor of scores came from."""

    query: Tensor  # (..., n, d)
    key: Tensor  # (..., m, d)
    scale: float = 1.0
    cap: float | None = None  # scores are cap · tanh(scale · qᵀk / cap)
    mask: Mask | None = None

    @property
    def similarity(self) -> Similarity:
        cap, scale = self.cap, self.scale
        if cap is None:
            return ScaledDot(scale)
        return FromCallable(lambda query, key: cap * torch.tanh(query @ key.mT * (scale / cap)))


class WrittenOut:
    """Follows scores from function to function."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()  # of scores: where they came from, as of when

    def follow(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Take note of what a function made of scores, or of queries and keys."""
        if not isinstance(result, Tensor) or result.ndim < 2:
            return
        made = self._made(getattr(function, "__name__", ""), args, kwargs)
        if made is not None:
            self._known[result] = made, _version(result)
        elif result in self._known:  # written over by a function that is not understood
            del self._known[result]

    def ended(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Scores | None:
        """The scores whose softmax over the keys this call takes, if it does that."""
        if getattr(function, "__name__", "") != "softmax" or not args:
            return None
        scores, axis = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(scores, Tensor) or axis not in (-1, scores.ndim - 1):
            return None
        found = self._origin(scores)
        return None if found is None or found.cap == _BENT else found

    def _origin(self, scores: Any) -> Scores | None:
        if not isinstance(scores, Tensor):
            return None
        origin, version = self._known.get(scores, (None, None))
        return origin if version == _version(scores) else None

    def _made(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scores | None:
        if name in _PRODUCTS and len(args) == 2:
            return _product(*args)
        if name == "baddbmm" and len(args) == 3:
            return _product_and_sum(*args, **kwargs)
        if name in ("masked_fill", "masked_fill_"):
            args += tuple(kwargs[key] for key in ("mask", "value") if key in kwargs)
        elif kwargs and name not in _COPIES:
            return None  # an option that changes what is computed
        # In place, the scores are already overwritten: known is what they were before.
        known = [
            self._known.get(arg, (None, None))[0] if isinstance(arg, Tensor) else None
            for arg in args[:3]
        ]
        if name == "where" and len(args) == 3:
            return _chosen(args[0], args[2], known[1])
        if (name in _SUMS or name in _FACTORS) and len(args) == 2 and known[0] is None:
            args, known = (args[1], args[0]), [known[1], None]  # mask + scores
        if not known or known[0] is None:
            return None
        return _changed(known[0], name, args[1:])


def _changed(scores: Scores, name: str, others: tuple[Any, ...]) -> Scores | None:
    """The scores after the function `name` with these other arguments; None: not understood."""
    if name in _COPIES:
        return scores
    if name == "tanh" and scores.mask is None and scores.cap is None:
        return scores._replace(cap=_BENT)
    if name in _SUMS and isinstance(others[0], Tensor) and others[0].is_floating_point():
        return _masked(scores, Bias(others[0].detach()))
    if name in ("masked_fill", "masked_fill_") and _never(others[1]):
        return _masked(scores, Allowed(~others[0]))
    if name in _FACTORS or name in _DIVISORS:
        return _scaled(scores, others[0], name in _DIVISORS)
    return None


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _product(left: Any, right: Any) -> Scores | None:
    """Queries times keys, transposed; a product with a layer's parameters is none."""
    for tensor in (left, right):
        if not isinstance(tensor, Tensor) or tensor.ndim < 2 or not tensor.is_floating_point():
            return None
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return None
    return Scores(left, right.mT)


def _product_and_sum(
    added: Any, left: Any, right: Any, *, beta: float = 1.0, alpha: float = 1.0
) -> Scores | None:
    made = _product(left, right)
    if made is None:
        return None
    made = made._replace(scale=float(alpha))
    return _masked(made, Bias(added.detach() * beta)) if beta else made


def _scaled(scores: Scores, by: Any, divided: bool) -> Scores | None:
    if isinstance(by, Tensor):
        if by.ndim > 0 or by.requires_grad:
            return None
        by = by.item()
    if not isinstance(by, (int, float)) or scores.mask is not None or not by:
        return None
    factor = 1 / by if divided else float(by)
    if scores.cap is None:
        return scores._replace(scale=scores.scale * factor)
    if scores.cap == _BENT:  # tanh(s) · cap is cap · tanh(s · cap / cap)
        return scores._replace(scale=scores.scale * factor, cap=factor)
    return None


def _masked(scores: Scores, mask: Mask) -> Scores | None:
    return None if scores.cap == _BENT else scores._replace(mask=both(scores.mask, mask))


def _chosen(condition: Any, other: Any, scores: Scores | None) -> Scores | None:
    if scores is None or not isinstance(condition, Tensor) or not _never(other):
        return None
    return _masked(scores, Allowed(condition))


def _never(score: Any) -> bool:
    if isinstance(score, Tensor):
        return score.ndim == 0 and score.item() <= _NEVER
    return isinstance(score, (int, float)) and score <= _NEVER
