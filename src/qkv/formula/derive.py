"""Derivatives of programs: a table of operations, and the chain rule backwards through it."""

from __future__ import annotations

import math
from collections.abc import Callable

from qkv.formula.program import Graph, Node, ordered


class Algebra:
    """Operations on nodes that leave out what is known to be 0 or 1."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.zero, self.one = graph.constant(0.0), graph.constant(1.0)

    def __call__(self, op: str, *args: Node | float) -> Node:
        nodes = [x if isinstance(x, Node) else self.graph.constant(x) for x in args]
        if op == "mul":
            if self.zero in nodes:
                return self.zero
            if self.one in nodes:
                return nodes[1] if nodes[0] is self.one else nodes[0]
        if op == "add" and self.zero in nodes:
            return nodes[1] if nodes[0] is self.zero else nodes[0]
        if op == "neg" and nodes[0] is self.zero:
            return self.zero
        if op == "where" and nodes[1] is nodes[2]:
            return nodes[1]
        return self.graph.node(op, *nodes)


#: (algebra, node, its arguments, its slope) -> the slope of each argument.
Rule = Callable[[Algebra, Node, tuple[Node, ...], Node], tuple[Node, ...]]


def _larger(a: Algebra, n: Node, args: tuple[Node, ...], g: Node) -> tuple[Node, ...]:
    """Ties share, as in torch."""
    x, y = args
    half = a("mul", g, 0.5)
    shared = a("where", a("eq", x, y), half, a.zero)
    first = a("gt" if n.op == "maximum" else "lt", x, y)
    second = a("lt" if n.op == "maximum" else "gt", x, y)
    return a("where", first, g, shared), a("where", second, g, shared)


def _where(a: Algebra, n: Node, args: tuple[Node, ...], g: Node) -> tuple[Node, ...]:
    return a.zero, a("where", args[0], g, a.zero), a("where", args[0], a.zero, g)


def _power(a: Algebra, n: Node, args: tuple[Node, ...], g: Node) -> tuple[Node, ...]:
    x, y = args
    lower = a("power", x, a("sub", y, 1.0))
    slope = a("where", a("eq", y, 0.0), a.zero, a("mul", a("mul", g, y), lower))
    log = a("where", a("eq", x, 0.0), a.zero, a("mul", g, a("mul", n, a("log", x))))
    return slope, log


def _root(a: Algebra, n: Node, args: tuple[Node, ...], g: Node) -> tuple[Node, ...]:
    """The slope of a root at 0 is 0, as torch's norms have it."""
    slope = a("div", a("mul", g, 0.5), n)
    return (a("where", a("eq", n, 0.0), a.zero, slope),)


RULES: dict[str, Rule] = {
    "neg": lambda a, n, x, g: (a("neg", g),),
    "abs": lambda a, n, x, g: (a("signed", g, x[0]),),
    "exp": lambda a, n, x, g: (a("mul", g, n),),
    "expm1": lambda a, n, x, g: (a("mul", g, a("add", n, 1.0)),),
    "log": lambda a, n, x, g: (a("div", g, x[0]),),
    "log1p": lambda a, n, x, g: (a("div", g, a("add", x[0], 1.0)),),
    "sqrt": lambda a, n, x, g: (a("div", a("mul", g, 0.5), n),),
    "root": _root,
    "sin": lambda a, n, x, g: (a("mul", g, a("cos", x[0])),),
    "cos": lambda a, n, x, g: (a("neg", a("mul", g, a("sin", x[0]))),),
    "tanh": lambda a, n, x, g: (a("mul", g, a("sub", 1.0, a("mul", n, n))),),
    "sigmoid": lambda a, n, x, g: (a("mul", g, a("mul", n, a("sub", 1.0, n))),),
    "softplus": lambda a, n, x, g: (
        a("where", a("gt", x[0], 20.0), g, a("mul", g, a("sigmoid", x[0]))),
    ),
    "erf": lambda a, n, x, g: (
        a("mul", g, a("mul", 2 / math.sqrt(math.pi), a("exp", a("neg", a("mul", x[0], x[0]))))),
    ),
    "add": lambda a, n, x, g: (g, g),
    "sub": lambda a, n, x, g: (g, a("neg", g)),
    "mul": lambda a, n, x, g: (a("mul", g, x[1]), a("mul", g, x[0])),
    "div": lambda a, n, x, g: (
        a("div", g, x[1]),
        a("neg", a("div", a("mul", g, n), x[1])),
    ),
    "maximum": _larger,
    "minimum": _larger,
    "where": _where,
    "power": _power,
}

#: Operations whose slope may be infinite or NaN where their argument is neither.
RISKY = {"log", "log1p", "sqrt", "div", "power", "exp", "expm1"}


def slopes(graph: Graph, root: Node, seed: Node) -> dict[Node, Node]:
    """The slope of each leaf below `root`, given that of `root`; reductions count as leaves."""

    def is_leaf(node: Node) -> bool:
        return not node.args or node.is_reduction

    algebra = Algebra(graph)
    slope_of = {root: seed}
    leaves: dict[Node, Node] = {}
    for node in reversed([*ordered(root, until=is_leaf)]):
        slope = slope_of.get(node)
        if slope is None or slope is algebra.zero:
            continue
        if is_leaf(node):
            leaves[node] = slope
            continue
        rule = RULES.get(node.op)
        if rule is None:  # a step: its slope is 0
            continue
        for arg, part in zip(node.args, rule(algebra, node, node.args, slope), strict=True):
            if part is not algebra.zero and arg.op not in ("constant", "size"):
                slope_of[arg] = algebra("add", slope_of[arg], part) if arg in slope_of else part
    return leaves


def is_risky(root: Node) -> bool:
    return any(node.op in RISKY for node in ordered(root))
