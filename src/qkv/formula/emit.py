"""Tile functions of a program, in LLVM's instructions: scores, and their gradient.

Both exist for keys that are columns (the lanes of vectors run along keys) and for keys that are rows
(they run along features); `operators/fused/inputs.py` says what each is given.

Scores keep what they sum up in registers: a vector of keys meets a block of queries, feature by
feature. The gradient starts from the reductions that the scores have left behind them in the lines
of `raw` beyond the first block: a pass over pairs turns each into its slope, and a pass over features
adds up what it contributes to queries, keys and parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from qkv.formula.derive import Algebra, is_risky, slopes
from qkv.formula.instructions import evaluate, larger, smaller
from qkv.formula.program import Graph, Node, Program, ordered
from qkv.formula.vector import WORD, Value, Writer

ROWS = 8  # queries in a block; the lines of `raw` for each of its parts
ENTRY = "qkv_entry"
FORMS = ("scores", "kept_scores", "row_scores", "gradient", "row_gradient")


def module_of(program: Program, form: str, real: str, triple: str) -> ir.Module:
    """The module of one tile function; its entry takes the words of `jit/arguments.py`."""
    module = ir.Module()
    module.triple = triple
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
    function = ir.Function(module, kind, ENTRY)
    # For processors with AVX-512 LLVM prefers vectors of half the width.
    set.add(function.attributes, '"prefer-vector-width"="512"')
    tile = _Tile(program, Writer(function, real), function.args[0], "gradient" in form)
    if form == "row_scores":
        _row_scores(tile)
    elif form == "row_gradient":
        _gradient(tile, rows=True)
    elif form == "gradient":
        _gradient(tile, rows=False)
    else:
        _column_scores(tile, keep=form == "kept_scores")
    tile.writer.builder.ret_void()
    return module


class _Tile:
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
        for axis in range(program.axes):
            number = writer.load(self.parameter, writer.index(axis))
            self.sizes.append(builder.fptosi(number.code, WORD))
        first = {"query": 0, "key": 0, "parameter": program.axes}
        self.places: dict[int, Any] = {}
        for kind, start in first.items():
            self.places |= program.places(kind, self.sizes, writer.index(start), self._plus)
        self._parameters = {
            i: writer.load(self.parameter, self.places[i])
            for i, slot in enumerate(program.slots)
            if slot.kind == "parameter" and slot.axis is None
        }

    def _plus(self, a: Any, b: Any) -> Any:
        return self.writer.builder.add(a, self.writer.index(b) if isinstance(b, int) else b)

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


def _parts(program: Program) -> dict[Node, tuple[int, int]]:
    """The parts of `raw` of each reduction: for its slope, and for its value."""
    found, at = {}, 1
    for node in program.reductions:
        extreme = node.op != "sum"
        found[node] = at, at + extreme
        at += 1 + extreme
    return found


# Accumulating: a sum is one carried value, an extreme is two: itself, and how often it was met.


def _start(tile: _Tile, node: Node, lanes: int, counted: bool) -> list[Value]:
    if node.op == "sum":
        return [tile.writer.number(0.0, lanes)]
    worst = tile.writer.number(-math.inf if node.op == "max" else math.inf, lanes)
    return [worst, tile.writer.number(0.0, lanes)] if counted else [worst]


def _take(tile: _Tile, node: Node, carried: Sequence[Value], value: Value) -> list[Value]:
    if node.op == "sum":
        return [carried[0] + value]
    best = (larger if node.op == "max" else smaller)(value, carried[0])
    if len(carried) == 1:
        return [best]
    writer = tile.writer
    again = carried[1] + 1.0
    better = value > carried[0] if node.op == "max" else value < carried[0]
    equal = writer.select(value.equals(carried[0]), again, carried[1])
    return [best, writer.select(better, 1.0, equal)]


def _body(tile: _Tile, node: Node, leaf: Callable[[Node], Value]) -> Value:
    """The value that a reduction takes up; an extreme is found again by its bits."""
    if node.op == "sum":
        return evaluate(node.args[0], leaf, {})
    with tile.writer.repeatably():
        return evaluate(node.args[0], leaf, {})


def _blocks(tile: _Tile, stop: Any, sizes: Sequence[int], body: Callable[[Any, int], None]) -> None:
    """body(first, size) for 0 to `stop` in blocks of the first size, then of the next, …, of 1."""
    writer, start = tile.writer, tile.writer.index(0)
    for size in sizes:
        end = writer.whole(stop, size) if size > 1 else stop
        writer.repeat(start, end, size, lambda i, size=size: body(i, size))  # type: ignore[misc]
        start = end


def _column_scores(tile: _Tile, keep: bool) -> None:
    writer, program, lanes = tile.writer, tile.program, tile.writer.lanes
    parts = _parts(program)

    def block(j: Any, first: Any, count: int) -> None:
        rows = [tile.plus(first, r) for r in range(count)]
        lines = [writer.builder.mul(row, tile.query_depth) for row in rows]
        found: list[dict[Node, list[Value]]] = [{} for _ in rows]

        def load(node: Node, line: Any, c: Any, shared: dict[Node, Value]) -> Value:
            """An input of a query's line and a vector of keys, at a feature if it has any."""
            constant = tile.constant(node)
            if constant is not None:
                return constant
            kind, place, runs = tile.slot(node)
            at = writer.builder.add(place, c) if runs else place
            if kind == "query":
                return writer.load(tile.query, writer.builder.add(line, at))
            if node not in shared:
                if kind == "key":
                    shared[node] = writer.load(tile.key, tile.at(at, tile.width, j), lanes)
                else:
                    shared[node] = writer.load(tile.parameter, at)
            return shared[node]

        for node in program.reductions:
            carried = [x for _ in rows for x in _start(tile, node, lanes, keep)]
            each = len(carried) // count

            def take(c: Any, carried: list[Value], node: Node = node, each: int = each) -> list[Value]:
                shared: dict[Node, Value] = {}
                taken: list[Value] = []
                for r, line in enumerate(lines):
                    value = _body(tile, node, lambda n, line=line: load(n, line, c, shared))
                    value = writer.splat(value, lanes)
                    taken += _take(tile, node, carried[r * each : (r + 1) * each], value)
                return taken

            assert node.args[0].axis is not None
            size = tile.sizes[node.args[0].axis]
            totals = writer.loop(writer.index(0), size, 1, carried, take)
            for r in range(count):
                found[r][node] = totals[r * each : (r + 1) * each]
        shared: dict[Node, Value] = {}
        for r, row in enumerate(rows):
            known = {node: values[0] for node, values in found[r].items()}
            score = evaluate(
                program.root, lambda n, r=r: load(n, lines[r], None, shared), dict(known)
            )
            writer.store(_shown(program, score, lanes), tile.raw, tile.part(0, row, j))
            if keep:
                for node, values in found[r].items():
                    slope, value = parts[node]
                    writer.store(values[0], tile.raw, tile.part(value, row, j))
                    if len(values) > 1:
                        writer.store(values[1], tile.raw, tile.part(slope, row, j))

    def columns(j: Any) -> None:
        _blocks(tile, tile.rows, (8, 1), lambda first, count: block(j, first, count))

    writer.repeat(writer.index(0), tile.width, lanes, columns)


def _shown(program: Program, score: Value, lanes: int) -> Value:
    """A score as it is given out: a kernel that is negative is none, and shows as NaN."""
    score = score.writer.splat(score, lanes)
    return score.writer.select(score < 0.0, math.nan, score) if program.proportional else score


def _row_scores(tile: _Tile) -> None:
    writer, program = tile.writer, tile.program

    def keys(row: Any, first: Any, count: int) -> None:
        line = writer.builder.mul(row, tile.query_depth)
        lines = [writer.builder.mul(tile.plus(first, u), tile.key_shape[1]) for u in range(count)]

        def load(node: Node, key_line: Any, c: Any, lanes: int) -> Value:
            constant = tile.constant(node)
            if constant is not None:
                return constant
            kind, place, runs = tile.slot(node)
            at = writer.builder.add(place, c) if runs else place
            count = lanes if runs else 1
            if kind == "parameter":
                return writer.load(tile.parameter, at, count)
            pointer, start = (tile.query, line) if kind == "query" else (tile.key, key_line)
            return writer.load(pointer, writer.builder.add(start, at), count)

        found: list[dict[Node, Value]] = [{} for _ in lines]
        for node in program.reductions:
            assert node.args[0].axis is not None
            size = tile.sizes[node.args[0].axis]

            def run(
                start: Any, stop: Any, lanes: int, carried: list[Value], node: Node = node
            ) -> list[Value]:
                def take(c: Any, carried: list[Value]) -> list[Value]:
                    taken: list[Value] = []
                    for u, key_line in enumerate(lines):
                        value = _body(tile, node, lambda n: load(n, key_line, c, lanes))
                        taken += _take(tile, node, [carried[u]], writer.splat(value, lanes))
                    return taken

                return writer.loop(start, stop, lanes, carried, take)

            whole = writer.whole(size, writer.lanes)
            begin = [_start(tile, node, writer.lanes, False)[0] for _ in lines]
            vectors = run(writer.index(0), whole, writer.lanes, begin)
            singles = [_across(tile, node, vector) for vector in vectors]
            for u, value in enumerate(run(whole, size, 1, singles)):
                found[u][node] = value
        for u, key_line in enumerate(lines):
            score = evaluate(
                program.root, lambda n, k=key_line: load(n, k, None, 1), dict(found[u])
            )
            place = tile.part(0, row, tile.plus(first, u))
            writer.store(_shown(program, score, 1), tile.raw, place)

    def rows(row: Any) -> None:
        _blocks(tile, tile.key_shape[0], (4, 1), lambda j, count: keys(row, j, count))

    writer.repeat(writer.index(0), tile.rows, 1, rows)


def _across(tile: _Tile, node: Node, vector: Value) -> Value:
    """What the lanes of a vector come to."""
    if node.op == "sum":
        return tile.writer.total(vector)
    lanes = [tile.writer.lane(vector, i) for i in range(vector.lanes)]
    found = lanes[0]
    for lane in lanes[1:]:
        found = (larger if node.op == "max" else smaller)(lane, found)
    return found


def _gradient(tile: _Tile, rows: bool) -> None:
    graph = Graph()
    seed = graph.leaf("seed")
    found = slopes(graph, tile.program.root, seed)
    _pair_slopes(tile, graph, seed, found, rows)
    for node in tile.program.reductions:
        if node not in found:
            continue
        assert node.args[0].axis is not None
        slope = graph.leaf("slope")
        start = slope
        if node.op != "sum":  # whoever is the extreme has its slope
            algebra = Algebra(graph)
            value = graph.leaf("value")
            start = algebra("where", algebra("eq", node.args[0], value), slope, 0.0)
        below = _wanted(tile, slopes(graph, node.args[0], start))
        if not below:
            continue
        guard = is_risky(node.args[0])
        pass_over = _row_pass if rows else _column_pass
        pass_over(tile, node, below, guard)


def _wanted(tile: _Tile, found: dict[Node, Node]) -> dict[Node, Node]:
    return {
        node: slope
        for node, slope in found.items()
        if node.op == "input"
        and isinstance(node.detail, int)
        and tile.program.slots[node.detail].wanted
    }


def _pair_slopes(
    tile: _Tile, graph: Graph, seed: Node, found: dict[Node, Node], rows: bool
) -> None:
    """Turn each reduction in `raw` into its slope; add up those of numbers for a query or key."""
    writer, program = tile.writer, tile.program
    parts = _parts(program)
    wanted = _wanted(tile, found)
    summed = [node for node in wanted if tile.slot(node)[0] != "key"]
    guard = is_risky(program.root)

    def line(row: Any) -> None:
        query_line = writer.builder.mul(row, tile.query_depth)

        def visit(j: Any, carried: list[Value], lanes: int) -> list[Value]:
            def load(node: Node) -> Value:
                if node.op == "seed":
                    return upstream
                if node.is_reduction:
                    return writer.load(tile.raw, tile.part(parts[node][1], row, j), lanes)
                constant = tile.constant(node)
                if constant is not None:
                    return constant
                kind, place, _ = tile.slot(node)
                if kind == "query":
                    return writer.load(tile.query, writer.builder.add(query_line, place))
                if rows:
                    depth = tile.key_shape[1]
                    return writer.gather(tile.key, tile.at(j, depth, place), depth, lanes)
                return writer.load(tile.key, tile.at(place, tile.width, j), lanes)

            upstream = writer.load(tile.slopes, tile.at(row, tile.width, j), lanes)
            known: dict[Node, Value] = {}

            def slope(node: Node) -> Value:
                value = writer.splat(evaluate(found[node], load, known), lanes)
                return writer.select(upstream.equals(0.0), 0.0, value) if guard else value

            # All are known before the first is written over.
            of_reductions = [(node, slope(node)) for node in program.reductions if node in found]
            for node in wanted:
                if tile.slot(node)[0] == "key":
                    _, place, _ = tile.slot(node)
                    if rows:
                        depth = tile.key_slope_shape[1]
                        at = tile.at(j, depth, place)
                        writer.scatter_add(tile.key_slope, at, depth, slope(node))
                    else:
                        at = tile.at(place, tile.width, j)
                        writer.add_to(tile.key_slope, at, slope(node))
            taken = [total + slope(node) for total, node in zip(carried, summed, strict=True)]
            for node, value in of_reductions:
                place = tile.part(parts[node][0], row, j)
                if node.op != "sum":  # those that share the extreme share its slope
                    value = value / writer.load(tile.raw, place, lanes)
                writer.store(value, tile.raw, place)
            return taken

        count = tile.key_shape[0] if rows else tile.width
        whole = writer.whole(count, writer.lanes)
        carried = [writer.number(0.0, writer.lanes) for _ in summed]
        vectors = writer.loop(
            writer.index(0), whole, writer.lanes, carried,
            lambda j, carried: visit(j, carried, writer.lanes),
        )  # fmt: skip
        totals = [writer.total(vector) for vector in vectors]
        if rows:
            totals = writer.loop(whole, count, 1, totals, lambda j, carried: visit(j, carried, 1))
        for node, total in zip(summed, totals, strict=True):
            _add_number(tile, node, row, total)

    writer.repeat(writer.index(0), tile.rows, 1, line)


def _add_number(tile: _Tile, node: Node, row: Any, total: Value) -> None:
    """Add to the slope of a number that a query has, or all pairs share."""
    writer = tile.writer
    assert isinstance(node.detail, int)
    place = tile.places[node.detail]
    if tile.program.slots[node.detail].kind == "query":
        writer.add_to(tile.query_slope, tile.at(row, tile.query_slope_depth, place), total)
    else:
        writer.add_to(tile.parameter_slope, place, total)


def _sum(values: Sequence[Value]) -> Value:
    found = values[0]
    for value in values[1:]:
        found = found + value
    return found


def _contributions(
    tile: _Tile, node: Node, below: dict[Node, Node], guard: bool, load: Callable[[Node], Value]
) -> dict[Node, Value]:
    """What a pair, or a vector of them, adds to the slopes of the inputs at a feature."""
    known: dict[Node, Value] = {}
    if node.op != "sum":
        known[node.args[0]] = _body(tile, node, load)
    found = {}
    for input, expression in below.items():
        value = evaluate(expression, load, known)
        if guard:
            slope = next((v for n, v in known.items() if n.op == "slope"), None)
            if slope is not None:
                value = tile.writer.select(slope.equals(0.0), 0.0, value)
        found[input] = value
    return found


def _column_pass(tile: _Tile, node: Node, below: dict[Node, Node], guard: bool) -> None:
    """Add up the slopes of a reduction's inputs, keys as columns."""
    writer, lanes = tile.writer, tile.writer.lanes
    parts = _parts(tile.program)[node]
    assert node.args[0].axis is not None
    size = tile.sizes[node.args[0].axis]
    summed = [input for input in below if tile.slot(input)[0] != "key"]

    def block(first: Any, count: int) -> None:
        rows = [tile.plus(first, r) for r in range(count)]

        def feature(c: Any) -> None:
            fixed: list[dict[Node, Value]] = [{} for _ in rows]
            shared: dict[Node, Value] = {}
            for input in tile.inputs_of(node.args[0]):
                kind, place, runs = tile.slot(input)
                at = writer.builder.add(place, c) if runs else place
                if kind == "parameter":
                    shared[input] = writer.load(tile.parameter, at)
                elif kind == "query":
                    for r, row in enumerate(rows):
                        place = tile.at(row, tile.query_depth, at)
                        fixed[r][input] = writer.load(tile.query, place)

            def visit(j: Any, carried: list[Value]) -> list[Value]:
                keys: dict[Node, Value] = {}

                def load(leaf: Node, r: int) -> Value:
                    if leaf.op in ("slope", "value"):
                        part = parts[leaf.op == "value"]
                        return writer.load(tile.raw, tile.part(part, rows[r], j), lanes)
                    constant = tile.constant(leaf)
                    if constant is not None:
                        return constant
                    known = fixed[r].get(leaf) or shared.get(leaf) or keys.get(leaf)
                    if known is None:
                        _, place, runs = tile.slot(leaf)
                        at = writer.builder.add(place, c) if runs else place
                        known = writer.load(tile.key, tile.at(at, tile.width, j), lanes)
                        keys[leaf] = known
                    return known

                each = [
                    _contributions(tile, node, below, guard, lambda n, r=r: load(n, r))
                    for r in range(count)
                ]
                for input in below:
                    if input in summed:
                        continue
                    _, place, runs = tile.slot(input)
                    at = writer.builder.add(place, c) if runs else place
                    value = writer.splat(_sum([one[input] for one in each]), lanes)
                    writer.add_to(tile.key_slope, tile.at(at, tile.width, j), value)
                return [
                    total + each[r][input]
                    for r in range(count)
                    for input, total in zip(
                        summed, carried[r * len(summed) : (r + 1) * len(summed)], strict=True
                    )
                ]

            begin = [writer.number(0.0, lanes) for _ in rows for _ in summed]
            totals = writer.loop(writer.index(0), tile.width, lanes, begin, visit)
            for r, row in enumerate(rows):
                for i, input in enumerate(summed):
                    _add_at(tile, input, row, c, writer.total(totals[r * len(summed) + i]))

        writer.repeat(writer.index(0), size, 1, feature)

    _blocks(tile, tile.rows, (4, 1), block)


def _add_at(tile: _Tile, node: Node, row: Any, c: Any, value: Value) -> None:
    """Add to the slope of a query's or a parameter's input, at a feature if it has any."""
    writer = tile.writer
    assert isinstance(node.detail, int)
    slot, place = tile.program.slots[node.detail], tile.places[node.detail]
    at = place if slot.axis is None else writer.builder.add(place, c)
    if slot.kind == "query":
        writer.add_to(tile.query_slope, tile.at(row, tile.query_slope_depth, at), value)
    else:
        writer.add_to(tile.parameter_slope, at, value)


def _row_pass(tile: _Tile, node: Node, below: dict[Node, Node], guard: bool) -> None:
    """The same with keys as rows: a block of queries meets a block of keys, vector by vector."""
    writer = tile.writer
    parts = _parts(tile.program)[node]
    assert node.args[0].axis is not None
    size = tile.sizes[node.args[0].axis]
    numbers = [n for n in below if not tile.slot(n)[2]]
    runs = [n for n in below if tile.slot(n)[2]]
    inputs = tile.inputs_of(node.args[0])

    def block(first_row: Any, row_count: int, first_key: Any, key_count: int) -> None:
        rows = [tile.plus(first_row, r) for r in range(row_count)]
        keys = [tile.plus(first_key, u) for u in range(key_count)]
        pairs = [(r, u) for r in range(row_count) for u in range(key_count)]
        of_pair: dict[tuple[str, int, int], Value] = {}
        for r, u in pairs:
            of_pair["slope", r, u] = writer.load(tile.raw, tile.part(parts[0], rows[r], keys[u]))
            if node.op != "sum":
                place = tile.part(parts[1], rows[r], keys[u])
                of_pair["value", r, u] = writer.load(tile.raw, place)

        def line_of(input: Node, of_slope: bool, r: int, u: int) -> tuple[Any, Any]:
            """The array of an input or of its slope, and where its line starts."""
            kind = tile.slot(input)[0]
            if kind == "parameter":
                return tile.parameter_slope if of_slope else tile.parameter, writer.index(0)
            if kind == "query":
                depth = tile.query_slope_depth if of_slope else tile.query_depth
                pointer = tile.query_slope if of_slope else tile.query
                return pointer, writer.builder.mul(rows[r], depth)
            depth = tile.key_slope_shape[1] if of_slope else tile.key_shape[1]
            pointer = tile.key_slope if of_slope else tile.key
            return pointer, writer.builder.mul(keys[u], depth)

        def owner(input: Node, r: int, u: int) -> tuple[Node, int]:
            kind = tile.slot(input)[0]
            return input, r if kind == "query" else u if kind == "key" else 0

        def visit(c: Any, carried: list[Value], lanes: int) -> list[Value]:
            loaded: dict[tuple[Node, int], Value] = {}

            def place(input: Node, of_slope: bool, r: int, u: int) -> tuple[Any, Any]:
                pointer, line = line_of(input, of_slope, r, u)
                _, start, run = tile.slot(input)
                at = writer.builder.add(start, c) if run else start
                return pointer, writer.builder.add(line, at)

            for input in inputs:
                for r, u in pairs:
                    if owner(input, r, u) not in loaded:
                        count = lanes if tile.slot(input)[2] else 1
                        value = writer.load(*place(input, False, r, u), count)
                        loaded[owner(input, r, u)] = value

            def load(leaf: Node, r: int, u: int) -> Value:
                if leaf.op in ("slope", "value"):
                    return of_pair[leaf.op, r, u]
                constant = tile.constant(leaf)
                return loaded[owner(leaf, r, u)] if constant is None else constant

            sums: dict[tuple[Node, int], list[Value]] = {}
            for r, u in pairs:
                each = _contributions(
                    tile, node, below, guard, lambda n, r=r, u=u: load(n, r, u)
                )
                for input, value in each.items():
                    sums.setdefault(owner(input, r, u), []).append(value)
            stored: set[tuple[Node, int]] = set()
            for input in runs:
                for r, u in pairs:
                    key = owner(input, r, u)
                    if key not in stored:
                        stored.add(key)
                        value = writer.splat(_sum(sums[key]), lanes)
                        pointer, at = place(input, True, r, u)
                        writer.add_to(pointer, at, value)
            owners = [key for key in sums if key[0] in numbers]
            return [
                total + writer.splat(_sum(sums[key]), lanes)
                for total, key in zip(carried, owners, strict=True)
            ]

        owners: list[tuple[Node, int]] = []
        where: dict[tuple[Node, int], tuple[int, int]] = {}
        for r, u in pairs:
            for input in below:
                key = owner(input, r, u)
                if input in numbers and key not in where:
                    owners.append(key)
                    where[key] = r, u
        whole = writer.whole(size, writer.lanes)
        begin = [writer.number(0.0, writer.lanes) for _ in owners]
        vectors = writer.loop(
            writer.index(0), whole, writer.lanes, begin, lambda c, x: visit(c, x, writer.lanes)
        )
        singles = [writer.total(vector) for vector in vectors]
        totals = writer.loop(whole, size, 1, singles, lambda c, x: visit(c, x, 1))
        for key, total in zip(owners, totals, strict=True):
            pointer, line = line_of(key[0], True, *where[key])
            writer.add_to(pointer, writer.builder.add(line, tile.slot(key[0])[1]), total)

    def all_keys(first_row: Any, row_count: int) -> None:
        _blocks(
            tile, tile.key_shape[0], (4, 1),
            lambda first_key, key_count: block(first_row, row_count, first_key, key_count),
        )  # fmt: skip

    _blocks(tile, tile.rows, (4, 1), all_keys)
