"""Attention that a model writes out as plain torch code: softmax(q kᵀ · scale + mask).

Scores are followed from the product of queries and keys, through what is done to them, to the
softmax. What is kept of them is where they came from, never the scores themselves. Where something
is done to them that is not understood, they are still known to come from a product, and the
weights that they end in are kept as they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from qkv.mask import Allowed, Bias, Mask, intersection
from qkv.recording.einsum import of_einsum
from qkv.similarity import FromCallable, ScaledDot, Similarity

#: In place of a cap: scores went through tanh, and the cap that multiplies them is yet to come.
_CAP_TO_COME = 0.0

#: A score replaced by no more than this may not attend; models write −10,000 to −inf.
_HIDDEN_BELOW = -1e4

_PRODUCTS = {"matmul", "bmm", "__matmul__"}
_FACTORS = {"mul", "mul_", "multiply", "__mul__", "__rmul__"}
_DIVISORS = {"div", "div_", "divide", "true_divide", "__truediv__"}
_SUMS = {"add", "add_", "__add__", "__radd__"}
_COPIES = {"to", "float", "double", "type_as", "contiguous", "clone", "detach", "view_as"}
_SOFTMAX = {"softmax", "log_softmax"}

#: What may be done to scores, understood or not, and leaves scores: nothing here mixes tokens as a
#: layer does.
_CHANGES = {
    *_FACTORS, *_DIVISORS, *_SUMS, *_COPIES, *_PRODUCTS, "einsum", "baddbmm",
    "sub", "sub_", "__sub__", "__rsub__", "neg", "tanh", "clamp", "clamp_", "clip", "exp", "pow",
    "masked_fill", "masked_fill_", "where", "cat", "concat", "pad", "gather", "index_select",
    "take_along_dim", "view", "reshape", "transpose", "permute", "movedim", "swapaxes", "flatten",
    "unflatten", "squeeze", "unsqueeze", "expand", "narrow", "__getitem__", "flip", "roll", "half",
    "bfloat16", "triu", "tril", "as_strided", "addcmul", "copy_", "__iadd__",
    "__isub__", "__imul__", "__itruediv__", "relu", "relu_", "abs", "bernoulli", "dropout",
    "split", "chunk",
}  # fmt: skip


#: What can make scores or weights where none are known yet.
_BEGINNINGS = {*_PRODUCTS, *_SOFTMAX, "einsum", "baddbmm"}


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


class EagerPatterns:
    """Follows scores from function to function."""

    def __init__(self) -> None:
        self._begun = False
        self._known: Any = WeakIdKeyDictionary()  # of scores: where they came from, as of when
        # What came from products of tokens, in whatever way: how many queries these had.
        self._derived: Any = WeakIdKeyDictionary()
        self._totals: Any = WeakIdKeyDictionary()  # of a sum over keys: what was summed up
        self._weights: Any = WeakIdKeyDictionary()  # what a softmax gave: its products are answers

    def concerns(self, function: Callable[..., Any]) -> bool:
        """Whether there is anything to follow: in many models no scores are ever written out."""
        if not self._begun:
            self._begun = getattr(function, "__name__", "") in _BEGINNINGS
        return self._begun

    def follow(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Take note of what a function made of scores, or of queries and keys."""
        name = getattr(function, "__name__", "")
        if name == "__setitem__":
            self._derive(args[0], self._queries(args[-1:]))
        if not isinstance(result, Tensor) or result.ndim < 2:
            return
        if any(isinstance(each, Tensor) and each in self._weights for each in args[:3]):
            if name in _CHANGES and name not in _PRODUCTS and name != "einsum":
                self._weights[result] = True
            return
        if name in _SOFTMAX:
            self._weights[result] = True
        made = self._made(name, args, kwargs)
        if made is not None:
            self._known[result] = made, _version(result)
        elif result in self._known:  # written over by a function that is not understood
            del self._known[result]
        if name == "einsum" and _of_tokens(*args):
            self._derive(result, set(result.shape))  # any of its axes
        elif (name in _PRODUCTS or name == "baddbmm") and _of_tokens(*args, *kwargs.values()):
            self._derive(result, set(result.shape[-2:]))  # keys may stand in rows
        elif name in _CHANGES:
            self._derive(result, self._queries(args))
        if name == "sum" and args and self._queries(args[:1]):
            self._totals[result] = weakref.ref(args[0])

    def ended(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Scores | None:
        """The scores whose softmax over the keys this call takes, if that is understood."""
        scores, axis = _softmax(function, args, kwargs)
        if scores is None or axis != scores.ndim - 1:
            return None
        origin = self._origin(scores)
        return None if origin is None or origin.cap == _CAP_TO_COME else origin

    def weights(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> Tensor | None:
        """The weights that this call made of a product of tokens, in whatever way; else None."""
        scores, axis = _softmax(function, args, kwargs)
        if scores is not None and axis >= scores.ndim - 2:
            weights: Tensor = result.exp() if function.__name__ == "log_softmax" else result
            weights = weights if axis == scores.ndim - 1 else weights.mT
            # Axes may have been moved about; where they are no longer told apart, none are.
            return weights if weights.shape[-2] in self._queries((scores,)) else None
        if getattr(function, "__name__", "") in _DIVISORS and len(args) == 2:  # exp(s) / its sum
            total = self._totals.get(args[1]) if isinstance(args[1], Tensor) else None
            if total is not None and total() is args[0] and args[1].shape[-1] == 1:
                return result  # type: ignore[no-any-return]
        return None

    def comes_from_a_product(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, ...] | None:
        """The shape of a product of tokens, in whatever way, whose softmax this call takes."""
        scores, _ = _softmax(function, args, kwargs)
        return tuple(scores.shape) if scores is not None and self._queries((scores,)) else None

    def _derive(self, tensor: Any, queries: set[int]) -> None:
        if queries and isinstance(tensor, Tensor):
            self._derived[tensor] = queries

    def _queries(self, args: tuple[Any, ...]) -> set[int]:
        """How many queries the products among these arguments had; empty: there are none."""
        several = args[0] if args and isinstance(args[0], (tuple, list)) else args[:3]
        counts: set[int] = set()
        for each in several:
            if isinstance(each, Tensor):
                counts |= self._derived.get(each, set())
        return counts

    def _origin(self, scores: Any) -> Scores | None:
        if not isinstance(scores, Tensor):
            return None
        origin, version = self._known.get(scores, (None, None))
        return origin if version == _version(scores) else None

    def _made(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scores | None:
        if name in _PRODUCTS and len(args) == 2:
            return _product(*args)
        if name == "baddbmm" and args:
            return _product_and_sum(*args, **kwargs)
        if name == "einsum" and len(args) == 3:
            operands = of_einsum(*args)
            return None if operands is None else _product(operands[0], operands[1].mT)
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
        return scores._replace(cap=_CAP_TO_COME)
    if name in _SUMS and isinstance(others[0], Tensor) and others[0].is_floating_point():
        return _masked(scores, Bias(others[0].detach()))
    if name in ("masked_fill", "masked_fill_") and _hides(others[1]):
        return _masked(scores, Allowed(~others[0]))
    if name in _FACTORS or name in _DIVISORS:
        return _scaled(scores, others[0], name in _DIVISORS)
    return None


def _softmax(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor | None, int]:
    """Of what this call takes the softmax, and over which axis; None: of nothing."""
    if getattr(function, "__name__", "") not in _SOFTMAX:
        return None, 0
    scores = args[0] if args else kwargs.get("input")
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(scores, Tensor) or not isinstance(axis, int) or scores.ndim < 2:
        return None, 0
    return scores, axis % scores.ndim


def square_softmax(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, ...] | None:
    """The shape of what a softmax is taken of, where its last two axes are alike: attention?"""
    scores, _ = _softmax(function, args, kwargs)
    if scores is None or scores.ndim < 3 or scores.shape[-1] != scores.shape[-2]:
        return None
    return tuple(scores.shape) if scores.shape[-1] > 1 else None


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _product(left: Any, right: Any) -> Scores | None:
    """Queries times keys, transposed; a product with a layer's parameters is none."""
    return Scores(left, right.mT) if _of_tokens(left, right) else None


def _of_tokens(*operands: Any) -> bool:
    """Whether there are two tensors of tokens, and no parameter, among the operands."""
    tensors = [each for each in operands if isinstance(each, Tensor)]
    if any(isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter) for x in tensors):
        return False
    return sum(x.ndim > 1 and x.is_floating_point() for x in tensors) > 1


def _product_and_sum(
    added: Any, batch1: Any, batch2: Any, *, beta: float = 1.0, alpha: float = 1.0
) -> Scores | None:
    made = _product(batch1, batch2)
    if made is None:
        return None
    made = made._replace(scale=float(alpha))
    return _masked(made, Bias(added.detach() * beta)) if beta else made


def _scaled(scores: Scores, by: Any, divided: bool) -> Scores | None:
    if isinstance(by, Tensor) and by.ndim > 0:
        return _scaled_by_row(scores, by.detach(), divided)
    if isinstance(by, Tensor):
        by = by.item()
    if not isinstance(by, (int, float)) or scores.mask is not None or not by:
        return None
    factor = 1 / by if divided else float(by)
    if scores.cap is None:
        return scores._replace(scale=scores.scale * factor)
    if scores.cap == _CAP_TO_COME:  # tanh(s) · cap is cap · tanh(s · cap / cap)
        return scores._replace(scale=scores.scale * factor, cap=factor)
    return None


def _scaled_by_row(scores: Scores, by: Tensor, divided: bool) -> Scores | None:
    """A factor for each head or query, as a learned temperature is, belongs to the queries."""
    if by.shape[-1] != 1 or scores.mask is not None or scores.cap is not None:
        return None
    return scores._replace(query=scores.query / by if divided else scores.query * by)


def _masked(scores: Scores, mask: Mask) -> Scores | None:
    return (
        None
        if scores.cap == _CAP_TO_COME
        else scores._replace(mask=intersection(scores.mask, mask))
    )


def _chosen(condition: Any, other: Any, scores: Scores | None) -> Scores | None:
    if scores is None or not isinstance(condition, Tensor) or not _hides(other):
        return None
    return _masked(scores, Allowed(condition))


def _hides(score: Any) -> bool:
    if isinstance(score, Tensor):
        return score.ndim == 0 and score.item() <= _HIDDEN_BELOW
    return isinstance(score, (int, float)) and score <= _HIDDEN_BELOW
