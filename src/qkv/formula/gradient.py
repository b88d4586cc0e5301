"""The gradient of a tile's scores in LLVM's instructions.

It starts from the reductions that the scores have left behind them in the lines of `raw` beyond the
first block: a pass over pairs turns each into its slope, and a pass over features adds up what it
contributes to queries, keys and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qkv.formula.derive import Algebra, is_risky, slopes
from qkv.formula.instructions import evaluate
from qkv.formula.program import Graph, Node
from qkv.formula.tile import Tile, body_of, in_blocks, parts_of
from qkv.formula.vector import Value


def gradient(tile: Tile, rows: bool) -> None:
    graph = Graph()
    seed = graph.leaf("seed")
    slope_of = slopes(graph, tile.program.root, seed)
    _pair_slopes(tile, graph, seed, slope_of, rows)
    for node in tile.program.reductions:
        if node not in slope_of:
            continue
        assert node.args[0].axis is not None
        slope = graph.leaf("slope")
        start = slope
        if node.op != "sum":  # the slope goes to the features that are the extreme
            algebra = Algebra(graph)
            value = graph.leaf("value")
            start = algebra("where", algebra("eq", node.args[0], value), slope, 0.0)
        below = _wanted(tile, slopes(graph, node.args[0], start))
        if not below:
            continue
        guard = is_risky(node.args[0])
        pass_over = _row_pass if rows else _column_pass
        pass_over(tile, node, below, guard)


def _wanted(tile: Tile, slope_of: dict[Node, Node]) -> dict[Node, Node]:
    return {
        node: slope
        for node, slope in slope_of.items()
        if node.op == "input"
        and isinstance(node.detail, int)
        and tile.program.slots[node.detail].wanted
    }


def _pair_slopes(
    tile: Tile, graph: Graph, seed: Node, slope_of: dict[Node, Node], rows: bool
) -> None:
    """Turn each reduction in `raw` into its slope; add up those of numbers for a query or key."""
    writer, program = tile.writer, tile.program
    parts = parts_of(program)
    wanted = _wanted(tile, slope_of)
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
                value = writer.splat(evaluate(slope_of[node], load, known), lanes)
                return writer.select(upstream.equals(0.0), 0.0, value) if guard else value

            # All are known before the first is written over.
            of_reductions = [(node, slope(node)) for node in program.reductions if node in slope_of]
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
                    met = writer.load(tile.raw, place, lanes)
                    # None met it where all were NaN, as behind the last key.
                    value = value / writer.select(met > 0.0, met, 1.0)
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


def _add_number(tile: Tile, node: Node, row: Any, total: Value) -> None:
    """Add to the slope of a number that a query has, or all pairs share."""
    writer = tile.writer
    assert isinstance(node.detail, int)
    place = tile.places[node.detail]
    if tile.program.slots[node.detail].kind == "query":
        writer.add_to(tile.query_slope, tile.at(row, tile.query_slope_depth, place), total)
    else:
        writer.add_to(tile.parameter_slope, place, total)


def _sum(values: Sequence[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _contributions(
    tile: Tile, node: Node, below: dict[Node, Node], guard: bool, load: Callable[[Node], Value]
) -> dict[Node, Value]:
    """What a pair, or a vector of them, adds to the slopes of the inputs at a feature."""
    known: dict[Node, Value] = {}
    if node.op != "sum":
        known[node.args[0]] = body_of(tile, node, load)
    contributions = {}
    for input, expression in below.items():
        value = evaluate(expression, load, known)
        if guard:
            slope = next((v for n, v in known.items() if n.op == "slope"), None)
            if slope is not None:
                value = tile.writer.select(slope.equals(0.0), 0.0, value)
        contributions[input] = value
    return contributions


def _column_pass(tile: Tile, node: Node, below: dict[Node, Node], guard: bool) -> None:
    """Add up the slopes of a reduction's inputs, keys as columns."""
    writer, lanes = tile.writer, tile.writer.lanes
    parts = parts_of(tile.program)[node]
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

                def load(r: int, leaf: Node) -> Value:
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
                    _contributions(tile, node, below, guard, partial(load, r)) for r in range(count)
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

    in_blocks(tile, tile.rows, (4, 1), block)


def _add_at(tile: Tile, node: Node, row: Any, c: Any, value: Value) -> None:
    """Add to the slope of a query's or a parameter's input, at a feature if it has any."""
    writer = tile.writer
    assert isinstance(node.detail, int)
    slot, place = tile.program.slots[node.detail], tile.places[node.detail]
    at = place if slot.axis is None else writer.builder.add(place, c)
    if slot.kind == "query":
        writer.add_to(tile.query_slope, tile.at(row, tile.query_slope_depth, at), value)
    else:
        writer.add_to(tile.parameter_slope, at, value)


def _row_pass(tile: Tile, node: Node, below: dict[Node, Node], guard: bool) -> None:
    """The same with keys as rows: a block of queries meets a block of keys, vector by vector."""
    writer = tile.writer
    parts = parts_of(tile.program)[node]
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

            def load(r: int, u: int, leaf: Node) -> Value:
                if leaf.op in ("slope", "value"):
                    return of_pair[leaf.op, r, u]
                constant = tile.constant(leaf)
                return loaded[owner(leaf, r, u)] if constant is None else constant

            sums: dict[tuple[Node, int], list[Value]] = {}
            for r, u in pairs:
                each = _contributions(tile, node, below, guard, partial(load, r, u))
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
        in_blocks(
            tile, tile.key_shape[0], (4, 1),
            lambda first_key, key_count: block(first_row, row_count, first_key, key_count),
        )  # fmt: skip

    in_blocks(tile, tile.rows, (4, 1), all_keys)
