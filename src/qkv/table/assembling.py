"""From the sums of a pass to answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.table.aggregation import Reading
from qkv.table.answer import Answer
from qkv.table.answers import ColumnAnswers, GroupAnswers
from qkv.table.columns import Kind, kind_of
from qkv.table.comparison import Comparison
from qkv.table.partial import TablePartial
from qkv.table.plan import TablePlan
from qkv.table.plot_data import PlottedAnswer, picture
from qkv.table.row_weights import RowWeights
from qkv.table.sources import Scan
from qkv.table.sums import Sums


class Assembly:
    """A finished pass, from which answers are assembled one by one."""

    def __init__(
        self,
        reading: Reading,
        queries: list[dict[str, Any]],
        comparisons: list[Comparison],
        weights: RowWeights,
        plan: TablePlan,
        scan: Scan,
        schema: pa.Schema,
    ) -> None:
        self._reading = reading
        self._queries = queries
        self._comparisons = comparisons
        self._weights = weights
        self._schema = schema
        self._columns = [
            _Column(sums, _of_column(plan, reading, sums), sums.leaders.shown(scan))
            for sums in reading.sums
        ]

    def answers(self, by: list[str], several: bool) -> list[Any]:
        """For each query an answer; of each group where rows were grouped, of each value column.

        Groups come in their order, and only those in which any row has weight.
        """
        if not by:
            return [self._values(0, number, several) for number in range(len(self._queries))]
        labels = self._reading.groups.labels
        order = sorted(range(len(labels)), key=labels.__getitem__)
        is_answered = np.zeros((len(labels), len(self._queries)), bool)
        for column in self._columns:
            totals = column.sums.partial.total.reshape(-1, len(self._queries))
            is_answered[: len(totals)] |= totals > 0.0
        return [
            GroupAnswers(
                by,
                {
                    labels[group] if len(by) > 1 else labels[group][0]: self._values(
                        group, number, several
                    )
                    for group in order
                    if is_answered[group, number]
                },
                one,
            )
            for number, one in enumerate(self._queries)
        ]

    def _values(self, group: int, number: int, several: bool) -> Answer | ColumnAnswers:
        answers = {
            column.sums.column: self._answer(column, group, number) for column in self._columns
        }
        return (
            ColumnAnswers(answers, self._queries[number])
            if several
            else next(iter(answers.values()))
        )

    def _answer(self, column: _Column, group: int, number: int) -> Answer:
        sums, place = column.sums, group * len(self._queries) + number
        one, total = self._queries[number], 0.0
        value: Any = None
        std: Any = None
        distribution: dict[Any, float] = {}
        best: list[dict[str, Any]] = []
        effective = 0.0
        if place < len(sums.partial.total):
            total = float(sums.partial.total[place])
        if total > 0.0:
            value, std, distribution = self._summary(sums, place, total)
            effective = total**2 / float(sums.partial.squared[place])
            best = self._heaviest(column, place, total)
        label = dict(zip(self._reading.groups.by, self._reading.groups.labels[group], strict=True))
        drawn = PlottedAnswer(self._comparisons, self._weights, number, sums.column, label)
        draw = partial(picture, self._reading.sample.batches, drawn, one, value, std)
        return Answer(
            query=one,
            column=sums.column,
            value=value,
            std=std,
            distribution=distribution,
            effective_rows=effective,
            rows=best,
            plan=column.plan,
            _picture=draw,
        )

    def _summary(self, sums: Sums, place: int, total: float) -> tuple[Any, Any, dict[Any, float]]:
        partial: TablePartial = sums.partial
        if kind_of(self._schema.field(sums.column).type) in (Kind.NUMBER, Kind.VECTOR):
            deviation = np.sqrt(partial.spread[place] / total)
            return _number(partial.mean[place]), _number(deviation), {}
        distribution = _distribution(partial.values, partial.mass[place] / total)
        return next(iter(distribution)), None, distribution

    def _heaviest(self, column: _Column, place: int, total: float) -> list[dict[str, Any]]:
        leaders, peak = column.sums.leaders, column.sums.partial.peak[place]
        name, best = _weight_name(self._schema), []
        for row, log in zip(leaders.rows[place], leaders.logs[place], strict=True):
            weight = float(np.exp(log - peak) / total) if row >= 0 else 0.0
            if weight > 0.0:
                best.append({name: weight, **column.rows[int(row)]})
        return best


class _Column:
    """What was found of a value column, and the rows that lead."""

    def __init__(self, sums: Sums, plan: TablePlan, rows: dict[int, dict[str, Any]]) -> None:
        self.sums = sums
        self.plan = plan
        self.rows = rows


def _of_column(plan: TablePlan, reading: Reading, sums: Sums) -> TablePlan:
    missing = {**reading.missing, sums.column: sums.missing}
    if sums.column in reading.missing:  # it is a key as well
        missing = dict(reading.missing)
    return replace(plan, rows_used=sums.used, missing=missing)


def _distribution(values: list[Any], weights: np.ndarray) -> dict[Any, float]:
    """Values with any weight, the heaviest first."""
    order = np.argsort(-weights, kind="stable")
    return {values[place]: float(weights[place]) for place in order if weights[place] > 0.0}


def _number(numbers: np.ndarray) -> float | list[float]:
    return float(numbers[0]) if len(numbers) == 1 else numbers.tolist()


def _weight_name(schema: pa.Schema) -> str:
    """`weight`, unless the table has a column of that name."""
    name = "weight"
    while name in schema.names:
        name += "_"
    return name
