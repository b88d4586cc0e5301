"""A formula as a small program: what is left to do for a pair once its tokens are prepared.

A program is a graph of :class:`Node`. Its inputs are columns of queries and of keys and entries of
a parameter, each a number or a run of numbers along one axis of features. Reductions over such an
axis make numbers for a pair, and what follows them makes the score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add, floordiv, sub
from typing import Any, NamedTuple

import torch
from torch import Tensor

REDUCTIONS = ("sum", "max", "min")


@dataclass(frozen=True, eq=False)
class Node:
    """An operation; equal ones are one object, see :class:`Graph`.

    Leaves are "input" (detail: its place in the program's slots), "constant" (a number) and "size"
    (of an axis); for a reduction the detail is its axis.
    """

    op: str
    args: tuple[Node, ...] = ()
    detail: float | int | None = None
    axis: int | None = None  # the axis of features that it varies along

    @property
    def is_reduction(self) -> bool:
        return self.op in REDUCTIONS


class Graph:
    """Makes nodes, each of them once."""

    def __init__(self) -> None:
        self._known: dict[Any, Node] = {}

    def node(self, op: str, *args: Node, detail: float | int | None = None) -> Node:
        axes = {arg.axis for arg in args} - {None}
        assert len(axes) <= 1, "an operation varies along one axis of features at most"
        axis = None if op in REDUCTIONS else next(iter(axes), None)
        return self._once(Node(op, args, detail, axis))

    def input(self, place: int, axis: int | None) -> Node:
        return self._once(Node("input", (), place, axis))

    def constant(self, number: float) -> Node:
        return self._once(Node("constant", (), float(number)))

    def leaf(self, op: str, axis: int | None = None) -> Node:
        """Something that a pass is given: a slope, or the value of a reduction."""
        return self._once(Node(op, (), None, axis))

    def _once(self, node: Node) -> Node:
        key = (node.op, tuple(map(id, node.args)), repr(node.detail), node.axis)
        return self._known.setdefault(key, node)


class Slot(NamedTuple):
    """An input: one column of "query" or "key", or entry of "parameter"; or as many as `axis`."""

    kind: str
    axis: int | None
    wanted: bool  # whether its gradient may be asked for


@dataclass(frozen=True, eq=False)
class Program:
    slots: tuple[Slot, ...]
    axes: int
    root: Node
    proportional: bool  # scores are weights, not logits

    @cached_property
    def order(self) -> tuple[Node, ...]:
        """All nodes, arguments first."""
        return tuple(ordered(self.root))

    @cached_property
    def reductions(self) -> tuple[Node, ...]:
        return tuple(node for node in self.order if node.is_reduction)

    @cached_property
    def sizes_held(self) -> int:
        """The sizes of axes that the parameter starts with: none if queries tell the only one."""
        told = self.axes == 1 and any(
            slot.kind == "query" and slot.axis is not None for slot in self.slots
        )
        return 0 if told else self.axes

    def size_of_axis(self, depth: Any, divide: Callable[[Any, int], Any], less: Any) -> Any:
        """The size of the only axis, of the columns of a query; whole numbers of any sort."""
        axes = [slot.axis for slot in self.slots if slot.kind == "query"]
        numbers = axes.count(None)
        return divide(less(depth, numbers) if numbers else depth, len(axes) - numbers)

    @property
    def parts(self) -> int:
        """The blocks of lines in which the gradient works: for scores, and for each reduction."""
        return 1 + sum(1 if node.op == "sum" else 2 for node in self.reductions)

    @cached_property
    def cost(self) -> int:
        """Of a feature of a pair, in about as many multiply-adds."""
        along = [node for node in self.order if node.args and node.axis is not None]
        return max(1, sum(PRICES.get(node.op, 1) for node in along))

    @property
    def summary(self) -> str:
        """What it does, in short: 2 operations for a feature of a pair, sum, 1 for a pair."""
        made = [node for node in self.order if node.args and not node.is_reduction]
        along = sum(node.axis is not None for node in made)
        over = " and ".join(dict.fromkeys(node.op for node in self.reductions)) or "no sum"
        return (
            f"{along} operations for a feature of a pair, {over} over features, "
            f"{len(made) - along} for a pair"
        )

    @cached_property
    def digest(self) -> str:
        """The same for programs that compute the same in the same way."""
        return self._digest(self.slots)

    @cached_property
    def score_digest(self) -> str:
        """The same for programs that differ only in which gradients are wanted."""
        return self._digest([slot._replace(wanted=True) for slot in self.slots])

    def _digest(self, slots: Sequence[Slot]) -> str:
        place = {node: i for i, node in enumerate(self.order)}
        lines = [f"{self.axes} {self.proportional}", *map(repr, slots)]
        lines += (
            f"{node.op} {[place[arg] for arg in node.args]} {node.detail!r}" for node in self.order
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def places(
        self, kind: str, sizes: Sequence[Any], first: Any, add: Callable[..., Any]
    ) -> dict[int, Any]:
        """Where each slot of a kind starts: numbers first, then runs; whole numbers of any sort."""
        places, at = {}, first
        numbers = [
            i for i, slot in enumerate(self.slots) if slot.kind == kind and slot.axis is None
        ]
        for i in numbers:
            places[i] = at
            at = add(at, 1)
        for i, slot in enumerate(self.slots):
            if slot.kind == kind and slot.axis is not None:
                places[i] = at
                at = add(at, sizes[slot.axis])
        return places

    def scores(self, query: Tensor, key: Tensor, parameter: Tensor) -> Tensor:
        """The scores (…, n, m) in plain torch, of columns as the kernels take them."""
        if self.axes and not self.sizes_held:
            sizes = [self.size_of_axis(query.shape[-1], floordiv, sub)]
        else:
            sizes = [int(size) for size in parameter.detach()[: self.axes].tolist()]

        starts = {
            kind: self.places(kind, sizes, self.sizes_held if kind == "parameter" else 0, add)
            for kind in ("query", "key", "parameter")
        }

        def value(node: Node) -> Tensor | None:
            if node.op == "constant":
                return query.new_tensor(node.detail)
            if node.op == "size":
                assert isinstance(node.detail, int)
                return query.new_tensor(float(sizes[node.detail]))
            if node.op != "input":
                return None
            assert isinstance(node.detail, int)
            slot = self.slots[node.detail]
            first = starts[slot.kind][node.detail]
            source = {"query": query, "key": key, "parameter": parameter}[slot.kind]
            if slot.axis is None:
                number = source[..., first]
                if slot.kind == "parameter":
                    return number
                return number.unsqueeze(-1 if slot.kind == "query" else -2)
            run = source[..., first : first + sizes[slot.axis]]
            if slot.kind == "parameter":
                return run
            return run.unsqueeze(-2 if slot.kind == "query" else -3)

        value_of: dict[Node, Tensor] = {}
        for node in self.order:
            leaf = value(node)
            if leaf is None:
                args = [value_of[arg] for arg in node.args]
                if _along(node):
                    args = [
                        x.unsqueeze(-1) if arg.axis is None else x
                        for arg, x in zip(node.args, args, strict=True)
                    ]
                leaf = TORCH[node.op](*args)
            value_of[node] = leaf
        return value_of[self.root]


def _along(node: Node) -> bool:
    """Whether the arguments of a node have an axis of features."""
    return any(arg.axis is not None for arg in node.args)


def ordered(*roots: Node, until: Callable[[Node], bool] = lambda node: False) -> Iterator[Node]:
    """All that some nodes depend on, arguments first; what `until` says is not looked into."""
    seen: set[Node] = set()
    pending: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while pending:
        node, ready = pending.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            pending.append((node, True))
            if not until(node):
                pending += ((arg, False) for arg in reversed(node.args))


def never_negative(node: Node) -> bool:
    """Whether it is seen at once that a node is not below 0."""
    if node.op == "constant":
        return float(node.detail or 0.0) >= 0.0
    if node.op in ("exp", "abs", "sqrt", "root", "sigmoid", "softplus"):
        return True
    if node.op == "mul" and node.args[0] is node.args[1]:
        return True
    if node.op == "where":
        condition, chosen, other = node.args
        # clamp(min=…): the other one is taken only where it is no less.
        clamped = condition.op == "lt" and condition.args == (other, chosen)
        return never_negative(chosen) and (clamped or never_negative(other))
    if node.op in ("add", "mul", "div", "sum", "max", "min", "maximum", "minimum"):
        return all(map(never_negative, node.args))
    return False


#: What an operation costs, in multiply-adds, where it is not one.
PRICES = {
    "exp": 10, "expm1": 24, "log": 16, "log1p": 20, "sqrt": 6, "root": 6, "sin": 24, "cos": 24,
    "tanh": 20, "sigmoid": 14, "softplus": 30, "erf": 30, "power": 28, "div": 4,
}  # fmt: skip


def _root(x: Tensor) -> Tensor:
    """√x with the slope 0 at 0, as torch's norms have it."""
    zero = x == 0
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, x)))


#: What each operation is, in torch.
TORCH: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "root": _root,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "erf": torch.erf,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "power": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "where": torch.where,
    "sum": lambda x: x.sum(-1),
    "max": lambda x: x.amax(-1),
    "min": lambda x: x.amin(-1),
}
