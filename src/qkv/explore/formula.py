"""A similarity typed by a user: a small grammar, an allow-list, and torch operations; no `eval`.

    sum      product (("+" | "-") product)*
    product  signed (("*" | "/") signed)*
    signed   "-" signed | power
    power    atom ("^" signed)?
    atom     number | "q" | "k" | "d" | name "(" sum ("," sum)* ")" | "(" sum ")"

`q` and `k` are vectors, all else that a pair has is a number: ``-norm(q - k)``, or
``dot(q, k) / sqrt(d)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from qkv.explore import limits

Kind = Literal["number", "vector"]

DEPTH = 40

_TOKEN = re.compile(
    r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d{1,3})?|\.\d+)|([A-Za-z_]\w*)|(\*\*|[-+*/^(),]))"
)


class Function(NamedTuple):
    """One of the safe list: what it does to tensors, and how torch writes it."""

    run: Callable[..., Tensor]
    written: str
    to_number: bool = False  # from vectors; else each entry on its own
    arguments: int = 1


SAFE = {
    "dot": Function(lambda a, b: (a * b).sum(-1), "({0} * {1}).sum(-1)", True, 2),
    "sum": Function(lambda a: a.sum(-1), "({0}).sum(-1)", True),
    "mean": Function(lambda a: a.mean(-1), "({0}).mean(-1)", True),
    "max": Function(lambda a: a.amax(-1), "({0}).amax(-1)", True),
    "min": Function(lambda a: a.amin(-1), "({0}).amin(-1)", True),
    "norm": Function(
        lambda a: torch.linalg.vector_norm(a, dim=-1), "torch.linalg.vector_norm({0}, dim=-1)", True
    ),
    "abs": Function(torch.abs, "torch.abs({0})"),
    "exp": Function(torch.exp, "torch.exp({0})"),
    "log": Function(torch.log, "torch.log({0})"),
    "sqrt": Function(torch.sqrt, "torch.sqrt({0})"),
    "tanh": Function(torch.tanh, "torch.tanh({0})"),
    "sigmoid": Function(torch.sigmoid, "torch.sigmoid({0})"),
    "relu": Function(torch.relu, "torch.relu({0})"),
    "sin": Function(torch.sin, "torch.sin({0})"),
    "cos": Function(torch.cos, "torch.cos({0})"),
}
_SIGNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "^": torch.pow,
}
_PYTHON = {"^": "**"}


class Node(NamedTuple):
    """A part of a formula: its value for tokens q (…, n, 1, d) and k (…, 1, m, d)."""

    kind: Kind
    run: Callable[[Tensor, Tensor], Tensor]
    python: str


class Formula(NamedTuple):
    """A similarity (query, key) -> scores, as :func:`qkv.attend` takes it.

    >>> scores = parse("-norm(q - k)")(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    >>> scores
    tensor([[-5.]])
    """

    root: Node

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        q, k = query[..., :, None, :], key[..., None, :, :]
        scores = self.root.run(q, k)
        return scores.expand(*torch.broadcast_shapes(q.shape[:-1], k.shape[:-1]))

    def as_python(self) -> list[str]:
        """The same as a function."""
        return [
            "def similarity(q, k):",
            "    q, k = q[..., :, None, :], k[..., None, :, :]",
            "    pairs = torch.broadcast_shapes(q.shape[:-1], k.shape[:-1])",
            f"    return torch.as_tensor({self.root.python}).expand(pairs)",
        ]


def parse(text: str) -> Formula:
    """The similarity that a formula stands for; ValueError says what is wrong, and where."""
    if len(text) > limits.FORMULA:
        raise ValueError(f"a formula may have {limits.FORMULA} characters; got {len(text)}")
    reader = _Reader(_tokens(text))
    root = reader.sum(0)
    if reader.next is not None:
        raise ValueError(f"the formula should end before {reader.next!r}")
    if root.kind == "vector":
        raise ValueError(
            "a formula must give one number for a pair, and this gives a vector: "
            "sum(…), norm(…) or dot(…, …) makes it a number"
        )
    return Formula(root)


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"a formula cannot hold {text[place:].strip()[0]!r}")
        tokens.append(match.group().strip().replace("**", "^"))
        place = match.end()
    if not tokens:
        raise ValueError("a formula must not be empty; -norm(q - k) is one")
    return tokens


class _Reader:
    """Reads tokens from left to right, with one token of look-ahead."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place = tokens, 0

    @property
    def next(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self, *signs: str) -> str | None:
        """The next token, if it is one of these."""
        token = self.next
        if token is None or token not in signs:
            return None
        self.place += 1
        return token

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            got = "the end" if self.next is None else repr(self.next)
            raise ValueError(f"the formula should have {sign!r} where it has {got}")

    def sum(self, depth: int) -> Node:
        total = self.product(depth)
        while sign := self.take("+", "-"):
            total = _joined(sign, total, self.product(depth))
        return total

    def product(self, depth: int) -> Node:
        result = self.signed(depth)
        while sign := self.take("*", "/"):
            result = _joined(sign, result, self.signed(depth))
        return result

    def signed(self, depth: int) -> Node:
        if depth > DEPTH:
            raise ValueError(f"a formula may be nested {DEPTH} deep; this is more")
        if self.take("-"):
            inner = self.signed(depth + 1)
            return Node(inner.kind, lambda q, k: -inner.run(q, k), f"(-{inner.python})")
        operand = self.atom(depth)
        if self.take("^"):
            return _joined("^", operand, self.signed(depth + 1))
        return operand

    def atom(self, depth: int) -> Node:
        token = self.next
        if token is None:
            raise ValueError("the formula ends where a value is expected")
        self.place += 1
        if token == "(":
            inner = self.sum(depth + 1)
            self.expect(")")
            return inner
        if token[0].isdigit() or token[0] == ".":
            number = float(token)
            return Node("number", lambda q, k: q.new_tensor(number), repr(number))
        if token in ("q", "k"):
            return Node("vector", lambda q, k: q if token == "q" else k, token)
        if token == "d":
            return Node("number", lambda q, k: q.new_tensor(q.shape[-1]), "q.shape[-1]")
        if token in SAFE:
            return self.call(token, depth)
        if token[0].isalpha() or token[0] == "_":
            raise ValueError(f"a formula knows q, k, d and {', '.join(SAFE)}; got {token[:30]!r}")
        raise ValueError(f"the formula has {token!r} where a value is expected")

    def call(self, name: str, depth: int) -> Node:
        function = SAFE[name]
        self.expect("(")
        given = [self.sum(depth + 1)]
        while self.take(","):
            given.append(self.sum(depth + 1))
        self.expect(")")
        if len(given) != function.arguments:
            raise ValueError(f"{name} takes {function.arguments}; got {len(given)} values")
        if function.to_number and any(each.kind == "number" for each in given):
            raise ValueError(f"{name} takes vectors, such as q and k; got a number")
        kind: Kind = "number" if function.to_number else given[0].kind
        written = function.written.format(*(_as_tensor(each) for each in given))
        return Node(kind, lambda q, k: function.run(*(each.run(q, k) for each in given)), written)


def _as_tensor(node: Node) -> str:
    """Numbers that no token enters are plain in Python, where torch's functions want tensors."""
    plain = node.kind == "number" and not re.search(r"\b[qk]\b(?!\.shape)", node.python)
    return f"torch.as_tensor({node.python}, dtype=q.dtype)" if plain else node.python


def _joined(sign: str, left: Node, right: Node) -> Node:
    """Two parts and the operator between them; a number applies to each entry of a vector."""
    kind: Kind = "vector" if "vector" in (left.kind, right.kind) else "number"

    def lifted(node: Node, q: Tensor, k: Tensor) -> Tensor:
        value = node.run(q, k)
        return value.unsqueeze(-1) if node.kind != kind else value

    def written(node: Node) -> str:
        return f"{_as_tensor(node)}[..., None]" if node.kind != kind else node.python

    def run(q: Tensor, k: Tensor) -> Tensor:
        return _SIGNS[sign](lifted(left, q, k), lifted(right, q, k))

    text: Any = f"({written(left)} {_PYTHON.get(sign, sign)} {written(right)})"
    return Node(kind, run, text)
