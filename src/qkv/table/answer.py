"""The answer of a table to a query, with the rows and the plan behind it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from qkv.table.plan import TablePlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.table.plot_data import PlotData


@dataclass(frozen=True)
class Answer:
    """The answer to one query; print it.

    Numbers give their weighted mean as `value` and their weighted deviation as `std`, a list for
    vectors. Other values give a `distribution`, the heaviest first, and the heaviest as `value`.
    Where no row has any weight, `value` is None.
    """

    query: Mapping[str, Any]  # by key column
    column: str  # the value column
    value: Any
    std: Any
    distribution: Mapping[Any, float]
    effective_rows: float
    rows: list[dict[str, Any]]  # those that weighed most: `weight`, and all their columns
    plan: TablePlan
    _picture: Callable[[], PlotData] = field(repr=False, compare=False)

    @property
    def found(self) -> bool:
        """Whether any row had weight."""
        return self.value is not None

    def interval(self, level: float = 0.9) -> tuple[float, float] | None:
        """A confidence interval for the mean at this level.

        value ± z · std / √(effective_rows − 1). None where values are no single numbers, or where
        less than two rows' worth of weight leaves the spread unknown.
        """
        far = math.nan
        if isinstance(self.value, float):
            far = float(reach(np.float64(self.std), np.float64(self.effective_rows), level))
        return None if math.isnan(far) else (self.value - far, self.value + far)

    def to_dict(self) -> dict[str, Any]:
        """The answer as a dictionary that JSON can hold."""
        interval = self.interval()
        return {
            "query": jsonable(dict(self.query)),
            "value": jsonable(self.value),
            "std": self.std,
            "interval": None if interval is None else list(interval),
            "distribution": [
                {"value": jsonable(value), "weight": weight}
                for value, weight in self.distribution.items()
            ],
            "effective_rows": self.effective_rows,
            "rows": [jsonable(row) for row in self.rows],
            "plan": self.plan.to_dict(),
        }

    def record(self) -> dict[str, Any]:
        """The answer as one row of a table.

        The query stands under `query.<column>`, the distribution as a list of structs.
        """
        low, high = self.interval() or (None, None)
        row: dict[str, Any] = {
            **{f"query.{name}": _plain(entry) for name, entry in self.query.items()},
            "value": self.value,
            "std": self.std,
            "interval_low": low,
            "interval_high": high,
            "effective_rows": self.effective_rows,
        }
        if self.distribution or not isinstance(self.value, (float, list)):
            row["distribution"] = [
                {"value": value, "weight": weight} for value, weight in self.distribution.items()
            ]
        return row

    def to_arrow(self) -> pa.Table:
        """The answer as a table of one row, to be put together with others."""
        return records_to_arrow([self.record()])

    def plot(self, path: str | Path | None = None) -> Figure:
        """The weights over the keys, with the answer marked; saved where a path is given."""
        from qkv.visualization.plot import save, soft_lookup

        figure = soft_lookup(**self._picture()._asdict())
        if path is not None:
            save(figure, Path(path))
        return figure

    def __str__(self) -> str:
        from qkv.table.report import in_text

        return in_text(self.__rich__())

    def __rich__(self) -> Any:
        from qkv.table.report import as_rich

        return as_rich(self)

    def _repr_html_(self) -> str:
        from qkv.table.report import as_html

        return as_html(self)


def reach(std: Any, effective_rows: Any, level: float) -> Any:
    """How far a mean may lie from the true one; NaN below two rows' worth of weight."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1; got {level}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    is_estimable = effective_rows >= 2.0
    return np.where(
        is_estimable, z * std / np.sqrt(np.where(is_estimable, effective_rows, 2.0) - 1.0), np.nan
    )


def records_to_arrow(records: list[dict[str, Any]]) -> pa.Table:
    """Rows as a table; what is unknown in all of them is still a number where it would be one."""
    names = dict.fromkeys(name for record in records for name in record)
    columns = {}
    for name in names:
        entries = [record.get(name) for record in records]
        has_entries = any(entry is not None for entry in entries)
        number = not has_entries and name.endswith(("std", "interval_low", "interval_high"))
        columns[name] = pa.array(entries, pa.float64() if number else None)
    return pa.table(columns)


def _plain(entry: Any) -> Any:
    if isinstance(entry, np.generic):
        return entry.item()
    return entry.tolist() if isinstance(entry, np.ndarray) else entry


def jsonable(entry: Any) -> Any:
    """An entry as a JSON value; types that JSON lacks become text."""
    entry = _plain(entry)
    if isinstance(entry, Mapping):
        return {str(name): jsonable(part) for name, part in entry.items()}
    if isinstance(entry, (list, tuple)):
        return [jsonable(part) for part in entry]
    if isinstance(entry, float) and not math.isfinite(entry):
        return None
    if entry is None or isinstance(entry, (bool, int, float, str)):
        return entry
    if isinstance(entry, (dt.date, dt.time)):
        return entry.isoformat()
    return str(entry)
