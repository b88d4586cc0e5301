"""Answers along a grid of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from qkv.table.aggregation import Reading
from qkv.table.answer import jsonable, reach
from qkv.table.answers import Answers
from qkv.table.plan import TablePlan
from qkv.table.sums import Sums

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.visualization.plot.curve import Curved

#: The level of the intervals that `to_arrow`, `plot` and print show.
LEVEL = 0.9


@dataclass(frozen=True)
class Curve:
    """The weighted mean of a value column at each key of a grid; print it.

    `value`, `std` and `effective_rows` are arrays, with NaN where no row has any weight.
    """

    key: str
    column: str
    grid: pa.Array
    value: np.ndarray
    std: np.ndarray
    effective_rows: np.ndarray
    plan: TablePlan

    def __len__(self) -> int:
        return len(self.grid)

    def interval(self, level: float = LEVEL) -> np.ndarray:
        """Where each mean lies with this probability, (n, 2), as :meth:`Answer.interval` has it.

        NaN where less than two rows' worth of weight leaves the spread unknown.
        """
        far = reach(self.std, self.effective_rows, level)
        return np.stack([self.value - far, self.value + far], axis=1)

    def to_arrow(self) -> pa.Table:
        """A row for each key of the grid; null where nothing is known."""
        interval = self.interval()
        numbers = {
            "value": self.value,
            "std": self.std,
            "interval_low": interval[:, 0],
            "interval_high": interval[:, 1],
        }
        columns = {name: pa.array(each, from_pandas=True) for name, each in numbers.items()}
        rows = {"effective_rows": self.effective_rows}
        return pa.table({f"query.{self.key}": self.grid, **columns, **rows})

    def to_dict(self) -> dict[str, Any]:
        """The curve as JSON has it."""
        points = [jsonable(point) for point in self.to_arrow().to_pylist()]
        return {"column": self.column, "points": points, "plan": self.plan.to_dict()}

    def plot(self, path: str | Path | None = None) -> Figure:
        """The curve with its band; saved where a path is given."""
        return _draw([self._line(self.column)], self.key, self.column, path)

    def _line(self, name: str) -> Curved:
        from qkv.visualization.plot.curve import Curved

        interval = self.interval()
        grid = self.grid.to_numpy(zero_copy_only=False)
        return Curved(name, grid, self.value, interval[:, 0], interval[:, 1])

    def __str__(self) -> str:
        from qkv.table.report import in_text

        return in_text(self.__rich__())

    def __rich__(self) -> Any:
        from qkv.table.report import curve_as_rich

        return curve_as_rich(self)


class Curves(Answers):
    """Several curves, by group or by value column; print it."""

    def to_arrow(self) -> pa.Table:
        """All curves in one table, after columns that identify them."""
        tables = []
        for label, curve in self.items():
            table = curve.to_arrow()
            for place, (name, entry) in enumerate(self.labels(label).items()):
                table = table.add_column(place, name, pa.repeat(entry, len(table)))
            tables.append(table)
        return pa.concat_tables(tables) if tables else pa.table({})

    def to_dict(self) -> list[dict[str, Any]]:
        """The curves as JSON has them."""
        return [
            {"labels": jsonable(self.labels(label)), "curve": curve.to_dict()}
            for label, curve in self.items()
        ]

    def plot(self, path: str | Path | None = None) -> Figure:
        """All curves in one figure; saved where a path is given."""
        lines = [
            curve._line(", ".join(map(str, self.labels(label).values())))
            for label, curve in self.items()
        ]
        columns = dict.fromkeys(curve.column for curve in self.values())
        keys = dict.fromkeys(curve.key for curve in self.values())
        return _draw(lines, ", ".join(keys), ", ".join(columns), path)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = []
        for label, curve in self.items():
            named = ", ".join(f"{name} = {entry}" for name, entry in self.labels(label).items())
            parts += [Text(named, style="bold"), curve.__rich__()]
        return Group(*parts)


def assemble(reading: Reading, key: str, grid: pa.Array, plan: TablePlan, single: bool) -> Any:
    """The curve of a pass, or the curves where there are groups or several value columns."""
    by = reading.groups.by
    curves: dict[Any, Curve] = {}
    for group in sorted(range(len(reading.groups.labels)), key=reading.groups.labels.__getitem__):
        for sums in reading.sums:
            curve = _curve(sums, group, key, grid, plan)
            label = (*reading.groups.labels[group], *([] if single else [sums.column]))
            if not by or np.isfinite(curve.value).any():
                curves[label if len(label) > 1 else label[0] if label else None] = curve
    if not by and single:
        return curves[None]
    names = [*by, *([] if single else ["column"])]
    query: Mapping[str, Any] = {key: f"{len(grid):,} points"}
    return Curves(names, curves, query)


def _curve(sums: Sums, group: int, key: str, grid: pa.Array, plan: TablePlan) -> Curve:
    n = len(grid)
    total, squared, spread, mean = np.zeros((4, n))
    if len(sums.partial.total) >= (group + 1) * n:  # else none of its rows had this value
        rows = slice(group * n, (group + 1) * n)
        total, squared = sums.partial.total[rows], sums.partial.squared[rows]
        mean, spread = sums.partial.mean[rows, 0], sums.partial.spread[rows, 0]
    is_answered = total > 0.0
    safe = np.where(is_answered, total, 1.0)
    return Curve(
        key,
        sums.column,
        grid,
        np.where(is_answered, mean, np.nan),
        np.where(is_answered, np.sqrt(spread / safe), np.nan),
        np.where(is_answered, total**2 / np.where(is_answered, squared, 1.0), 0.0),
        plan,
    )


def _draw(lines: list[Curved], key: str, column: str, path: str | Path | None) -> Figure:
    from qkv.visualization.plot import save
    from qkv.visualization.plot.curve import curves

    figure = curves(lines, key, column, LEVEL)
    if path is not None:
        save(figure, Path(path))
    return figure
