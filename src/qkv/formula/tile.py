"""A tile function's operands, and how reductions are taken up; what scores and gradients share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qkv.formula.instructions import evaluate, larger, smaller
from qkv.formula.program import Node, Program, ordered
from qkv.formula.vector import WORD, Value, Writer

ROWS = 8  # queries in a block; the lines of `raw` for each of its parts


class Tile:
    """The operands of a tile function, and where the inputs of the program lie in them."""

    def __init__(self, program: Program, writer: Writer, words: Any, gradient: bool) -> None:
        self.program, self.writer = program, writer
        builder = writer.builder
        self._words = builder.bitcast(words, WORD.as_pointer())
        self._next = 0
        self.query, (_, self.query_depth) = self._array(2)
        self.key, self.key_shape = self._array(2)
        self.parameter, _ = self._array(1)
        self.raw, (_, self.width) = self._array(2)
        if gradient:
            self.slopes, _ = self._array(2)
        self.rows = self._word()
        self._word()  # the reach, of which programs know nothing
        if gradient:
            self.query_slope, (_, self.query_slope_depth) = self._array(2)
            self.key_slope, self.key_slope_shape = self._array(2)
            self.parameter_slope, _ = self._array(1)
        self.sizes = []
        for axis in range(program.sizes_held):
            number = writer.load(self.parameter, writer.index(axis))
            self.sizes.append(builder.fptosi(number.code, WORD))
        if program.axes and not program.sizes_held:
            self.sizes.append(program.size_of_axis(self.query_depth, self._over, self._less))
        first = {"query": 0, "key": 0, "parameter": program.sizes_held}
        self.places: dict[int, Any] = {}
        for kind, start in first.items():
            self.places |= program.places(kind, self.sizes, writer.index(start), self._plus)
        self.one = writer.hidden_one()
        self._parameters = {
            i: writer.load(self.parameter, self.places[i])
            for i, slot in enumerate(program.slots)
            if slot.kind == "parameter" and slot.axis is None
        }

    def _plus(self, a: Any, b: Any) -> Any:
        return self.writer.builder.add(a, self.writer.index(b) if isinstance(b, int) else b)

    def _less(self, a: Any, b: int) -> Any:
        return self.writer.builder.sub(a, self.writer.index(b))

    def _over(self, a: Any, b: int) -> Any:
        return a if b == 1 else self.writer.builder.sdiv(a, self.writer.index(b))

    def _word(self) -> Any:
        builder = self.writer.builder
        place = builder.gep(self._words, [self.writer.index(self._next)])
        self._next += 1
        return builder.load(place)

    def _array(self, axes: int) -> tuple[Any, tuple[Any, ...]]:
        address = self._word()
        pointer = self.writer.builder.inttoptr(address, self.writer.real.as_pointer())
        return pointer, tuple(self._word() for _ in range(axes))

    def constant(self, node: Node) -> Value | None:
        """The value of what is the same for all pairs."""
        if node.op == "constant":
            assert isinstance(node.detail, float)
            return self.writer.number(node.detail)
        if node.op == "size":
            assert isinstance(node.detail, int)
            number = self.writer.builder.sitofp(self.sizes[node.detail], self.writer.real)
            return Value(self.writer, number)
        if node.op == "input":
            assert isinstance(node.detail, int)
            return self._parameters.get(node.detail)
        return None

    def at(self, line: Any, length: Any, column: Any) -> Any:
        """The place of an entry in an array of lines."""
        builder = self.writer.builder
        return builder.add(builder.mul(line, length), column)

    def plus(self, a: Any, b: int) -> Any:
        return self.writer.builder.add(a, self.writer.index(b)) if b else a

    def part(self, number: int, row: Any, j: Any) -> Any:
        """The place of a pair in a part of `raw`; part 0 holds the scores."""
        line = self.plus(row, ROWS * number)
        return self.at(line, self.width, j)

    def inputs_of(self, *roots: Node) -> list[Node]:
        """The inputs below some nodes that differ from pair to pair or along an axis."""

        def given(node: Node) -> bool:
            return node.is_reduction

        nodes = ordered(*roots, until=given)
        return [node for node in nodes if node.op == "input" and self.constant(node) is None]

    def slot(self, node: Node) -> tuple[str, Any, bool]:
        """The kind of an input, its first place, and whether it runs along an axis."""
        assert isinstance(node.detail, int)
        slot = self.program.slots[node.detail]
        return slot.kind, self.places[node.detail], slot.axis is not None


def parts_of(program: Program) -> dict[Node, tuple[int, int]]:
    """The parts of `raw` of each reduction: for its slope, and for its value."""
    parts, at = {}, 1
    for node in program.reductions:
        extreme = node.op != "sum"
        parts[node] = at, at + extreme
        at += 1 + extreme
    return parts


# Accumulating: a sum is one carried value, an extreme is two: itself, and how often it was met.


def start(tile: Tile, node: Node, lanes: int, counted: bool) -> list[Value]:
    if node.op == "sum":
        return [tile.writer.number(0.0, lanes)]
    worst = tile.writer.number(-math.inf if node.op == "max" else math.inf, lanes)
    return [worst, tile.writer.number(0.0, lanes)] if counted else [worst]


def take_up(tile: Tile, node: Node, carried: Sequence[Value], value: Value) -> list[Value]:
    if node.op == "sum":
        return [add_to(tile, carried[0], value, node.args[0])]
    best = (larger if node.op == "max" else smaller)(value, carried[0])
    if len(carried) == 1:
        return [best]
    writer = tile.writer
    again = carried[1] + 1.0
    better = value > carried[0] if node.op == "max" else value < carried[0]
    equal = writer.select(value.equals(carried[0]), again, carried[1])
    return [best, writer.select(better, 1.0, equal)]


def add_to(tile: Tile, total: Value, value: Value, origin: Node) -> Value:
    """total + value as one multiply-add, which does not compete with additions for a vector unit.

    A product is one anyway.
    """
    if origin.op == "mul":
        return total + value
    return tile.writer.multiply_add(value, tile.one, total)


def _block(body: Callable[[Any, int], None], size: int, first: Any) -> None:
    body(first, size)


def body_of(tile: Tile, node: Node, leaf: Callable[[Node], Value]) -> Value:
    """The value that a reduction takes up; an extreme is found again by its bits."""
    if node.op == "sum":
        return evaluate(node.args[0], leaf, {})
    with tile.writer.repeatably():
        return evaluate(node.args[0], leaf, {})


def in_blocks(
    tile: Tile, stop: Any, sizes: Sequence[int], body: Callable[[Any, int], None]
) -> None:
    """body(first, size) for 0 to `stop` in blocks of the first size, then of the next, …, of 1."""
    writer, start = tile.writer, tile.writer.index(0)
    for size in sizes:
        end = writer.whole(stop, size) if size > 1 else stop
        writer.repeat(start, end, size, partial(_block, body, size))
        start = end


def across(tile: Tile, node: Node, carried: Sequence[Value]) -> list[Value]:
    """What the lanes of carried vectors come to."""
    writer, vector = tile.writer, carried[0]
    if node.op == "sum":
        return [writer.total(vector)]
    lanes = [writer.lane(vector, i) for i in range(vector.lanes)]
    extreme = lanes[0]
    for lane in lanes[1:]:
        extreme = (larger if node.op == "max" else smaller)(lane, extreme)
    if len(carried) == 1:
        return [extreme]
    return [extreme, writer.total(writer.select(vector.equals(extreme), carried[1], 0.0))]
