"""What each operation of a program is, in LLVM's instructions."""

from __future__ import annotations

import math
from collections.abc import Callable

from qkv.formula import elementary
from qkv.formula.program import Node, ordered
from qkv.formula.vector import Value

#: Gives the value of a leaf.
Leaves = Callable[[Node], Value]


def evaluate(root: Node, leaf: Leaves, known: dict[Node, Value]) -> Value:
    """The value of a node; `known` holds what was evaluated before, and is added to."""

    def given(node: Node) -> bool:
        return node in known or not node.args or node.is_reduction

    for node in ordered(root, until=given):
        if node in known:
            continue
        if given(node):
            known[node] = leaf(node)
        elif _is_extreme(node):
            condition, chosen, other = node.args
            a, b = known[chosen].writer.alike(known[chosen], known[other])
            is_chosen = b < a if condition.op == "le" else b > a
            known[node] = a.writer.select(is_chosen, a, b)
        else:
            known[node] = INSTRUCTIONS[node.op](*(known[arg] for arg in node.args))
    return known[root]


def _is_extreme(node: Node) -> bool:
    """Whether it is b <= a ? a : b, or b >= a ? a : b: both are the same where a equals b, so the
    comparison may be strict, which processors have as one instruction."""
    if node.op != "where":
        return False
    condition, chosen, other = node.args
    return condition.op in ("le", "ge") and condition.args == (other, chosen)


def larger(a: Value, b: Value) -> Value:
    """The larger of two; NaN if either is."""
    a, b = a.writer.alike(a, b)
    chosen = a.writer.select(a > b, a, b)
    return a.writer.select(a.differs(a), a, chosen)


def smaller(a: Value, b: Value) -> Value:
    a, b = a.writer.alike(a, b)
    chosen = a.writer.select(a < b, a, b)
    return a.writer.select(a.differs(a), a, chosen)


def _sign(x: Value) -> Value:
    return x.writer.select(x > 0.0, 1.0, x.writer.select(x < 0.0, -1.0, 0.0))  # NaN: 0, as in torch


def _signed(slope: Value, x: Value) -> Value:
    """The slope with the sign of x; 0 where x is."""
    writer = x.writer
    slope, x = writer.alike(slope, x)
    sign = writer.integer(writer.bits(x), "and_", -(1 << (31 if writer.is_narrow else 63)))
    turned = Value(writer, writer.builder.xor(writer.bits(slope).code, sign.code))
    return writer.select(x.equals(0.0), 0.0, writer.from_bits(turned, x))


INSTRUCTIONS: dict[str, Callable[..., Value]] = {
    "neg": lambda x: -x,
    "abs": lambda x: x.writer.abs(x),
    "sign": _sign,
    "signed": _signed,
    "exp": elementary.exp,
    "expm1": elementary.expm1,
    "log": elementary.log,
    "log1p": elementary.log1p,
    "sqrt": lambda x: x.writer.select(x < 0.0, math.nan, x.writer.sqrt(x)),
    "root": lambda x: x.writer.select(x < 0.0, math.nan, x.writer.sqrt(x)),
    "floor": lambda x: x.writer.intrinsic("floor", x.code.type, x.code.type, x),
    "ceil": lambda x: x.writer.intrinsic("ceil", x.code.type, x.code.type, x),
    "sin": elementary.sin,
    "cos": elementary.cos,
    "tanh": elementary.tanh,
    "sigmoid": elementary.sigmoid,
    "softplus": elementary.softplus,
    "erf": elementary.erf,
    "power": elementary.power,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "maximum": larger,
    "minimum": smaller,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a.equals(b),
    "ne": lambda a, b: a.differs(b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: ~a,
    "where": lambda c, a, b: c.writer.select(c, a, b),
}
