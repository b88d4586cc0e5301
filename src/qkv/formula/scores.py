"""The scores of a tile in LLVM's instructions, for keys that are columns or rows.

What is summed up stays in registers: a vector of keys meets a block of queries, feature by feature.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from qkv.formula.instructions import evaluate
from qkv.formula.program import Node, Program, never_negative
from qkv.formula.tile import Tile, across, body_of, in_blocks, parts_of, start, take_up
from qkv.formula.vector import Value


def column_scores(tile: Tile, keep: bool) -> None:
    writer, program, lanes = tile.writer, tile.program, tile.writer.lanes
    parts = parts_of(program)

    def block(j: Any, first: Any, count: int, single: bool) -> None:
        rows = [tile.plus(first, r) for r in range(count)]
        lines = [writer.builder.mul(row, tile.query_depth) for row in rows]
        reduced: list[dict[Node, list[Value]]] = [{} for _ in rows]

        def load(line: Any, c: Any, shared: dict[Node, Value], node: Node) -> Value:
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
            carried = [x for _ in rows for x in start(tile, node, lanes, keep)]
            each = len(carried) // count

            def take(
                c: Any, carried: list[Value], node: Node = node, each: int = each
            ) -> list[Value]:
                shared: dict[Node, Value] = {}
                taken: list[Value] = []
                for r, line in enumerate(lines):
                    value = body_of(tile, node, partial(load, line, c, shared))
                    value = writer.splat(value, lanes)
                    taken += take_up(tile, node, carried[r * each : (r + 1) * each], value)
                return taken

            assert node.args[0].axis is not None
            size = tile.sizes[node.args[0].axis]
            if single:
                totals = take(writer.index(0), carried)
            else:
                totals = writer.loop(writer.index(0), size, 1, carried, take)
            for r in range(count):
                reduced[r][node] = totals[r * each : (r + 1) * each]
        shared: dict[Node, Value] = {}
        for r, row in enumerate(rows):
            known = {node: values[0] for node, values in reduced[r].items()}
            score = evaluate(program.root, partial(load, lines[r], None, shared), dict(known))
            writer.store(shown(program, score, lanes), tile.raw, tile.part(0, row, j))
            if keep:
                _keep(tile, parts, reduced[r], row, j)

    def columns(single: bool, j: Any) -> None:
        in_blocks(tile, tile.rows, (8, 1), lambda first, count: block(j, first, count, single))

    def every(single: bool) -> None:
        writer.repeat(writer.index(0), tile.width, lanes, partial(columns, single))

    if len(tile.sizes) != 1:
        every(False)
        return
    # Keys of one feature are common in regression: no loop over features for them.
    with writer.builder.if_else(
        writer.builder.icmp_signed("==", tile.sizes[0], writer.index(1))
    ) as (one, more):
        with one:
            every(True)
        with more:
            every(False)


def _keep(
    tile: Tile,
    parts: dict[Node, tuple[int, int]],
    reduced: dict[Node, list[Value]],
    row: Any,
    j: Any,
) -> None:
    """Leave the reductions behind for the gradient: values, and how often an extreme was met."""
    for node, values in reduced.items():
        slope, value = parts[node]
        tile.writer.store(values[0], tile.raw, tile.part(value, row, j))
        if len(values) > 1:
            tile.writer.store(values[1], tile.raw, tile.part(slope, row, j))


def shown(program: Program, score: Value, lanes: int) -> Value:
    """A score as it is given out: a kernel that is negative is none, and shows as NaN."""
    score = score.writer.splat(score, lanes)
    if not program.proportional or never_negative(program.root):
        return score
    return score.writer.select(score < 0.0, math.nan, score)


def row_scores(tile: Tile, keep: bool) -> None:
    writer, program = tile.writer, tile.program
    parts = parts_of(program)
    only = program.reductions[0] if len(program.reductions) == 1 else None

    def keys(row: Any, first: Any, count: int) -> None:
        line = writer.builder.mul(row, tile.query_depth)
        lines = [writer.builder.mul(tile.plus(first, u), tile.key_shape[1]) for u in range(count)]

        def load(key_line: Any, c: Any, lanes: int, node: Node) -> Value:
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

        reduced: list[dict[Node, list[Value]]] = [{} for _ in lines]
        for node in program.reductions:
            assert node.args[0].axis is not None
            begin = start(tile, node, writer.lanes, keep)
            each = len(begin)
            size = tile.sizes[node.args[0].axis]

            def run(
                start: Any, stop: Any, lanes: int, carried: list[Value],
                node: Node = node, each: int = each,
            ) -> list[Value]:  # fmt: skip
                def take(c: Any, carried: list[Value]) -> list[Value]:
                    taken: list[Value] = []
                    for u, key_line in enumerate(lines):
                        value = body_of(tile, node, partial(load, key_line, c, lanes))
                        before = carried[u * each : (u + 1) * each]
                        taken += take_up(tile, node, before, writer.splat(value, lanes))
                    return taken

                return writer.loop(start, stop, lanes, carried, take)

            whole = writer.whole(size, writer.lanes)
            vectors = run(writer.index(0), whole, writer.lanes, begin * count)
            singles: list[Value] = []
            for u in range(count):
                singles += across(tile, node, vectors[u * each : (u + 1) * each])
            totals = run(whole, size, 1, singles)
            for u in range(count):
                reduced[u][node] = totals[u * each : (u + 1) * each]
        for u, key_line in enumerate(lines):
            j = tile.plus(first, u)
            if only is not None:
                writer.store(reduced[u][only][0], tile.raw, tile.part(0, row, j))
            else:
                known = {node: values[0] for node, values in reduced[u].items()}
                score = evaluate(program.root, partial(load, key_line, None, 1), known)
                writer.store(shown(program, score, 1), tile.raw, tile.part(0, row, j))
            if keep:
                _keep(tile, parts, reduced[u], row, j)

    def scores(row: Any, j: Any, lanes: int) -> None:
        """Turn what the only reduction came to into scores, a vector of keys at a time."""
        assert only is not None

        def load(node: Node) -> Value:
            constant = tile.constant(node)
            if constant is not None:
                return constant
            kind, place, _ = tile.slot(node)
            if kind == "query":
                return writer.load(tile.query, tile.at(row, tile.query_depth, place))
            depth = tile.key_shape[1]
            return writer.gather(tile.key, tile.at(j, depth, place), depth, lanes)

        value = writer.load(tile.raw, tile.part(0, row, j), lanes)
        score = evaluate(program.root, load, {only: value})
        writer.store(shown(program, score, lanes), tile.raw, tile.part(0, row, j))

    def rows(row: Any) -> None:
        in_blocks(tile, tile.key_shape[0], (4, 1), lambda j, count: keys(row, j, count))
        if only is not None:
            sizes = (writer.lanes, writer.lanes // 2, 1)
            in_blocks(tile, tile.key_shape[0], sizes, lambda j, lanes: scores(row, j, lanes))

    writer.repeat(writer.index(0), tile.rows, 1, rows)
