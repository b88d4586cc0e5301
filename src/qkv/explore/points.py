"""The points of the pooling room: synthetic as on the slides, or uploaded, then edited by hand."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.explore import limits
from qkv.explore.desk import Desk
from qkv.explore.fields import Fields

Array = npt.NDArray[np.float64]

#: Added, moved or deleted: a:x,y  m:i,x,y  d:i
_EDIT = re.compile(r"(?:a:|m:(\d{1,6}),)(-?[\d.e+-]{1,24}),(-?[\d.e+-]{1,24})|d:(\d{1,6})")
_FARTHEST = 1e9


class Made(NamedTuple):
    """The slides' samples, y = 2 sin x + x + ε."""

    seed: int
    size: int
    noise: float


class Columns(NamedTuple):
    """Two columns of an uploaded table."""

    source: str
    x: str
    y: str


class Points(NamedTuple):
    """The source of the points, and their edits."""

    origin: Made | Columns
    edits: str

    @classmethod
    def of(cls, fields: Fields) -> Points:
        edits = fields.text("edits", "", 60 * limits.EDITS)
        source = fields.text("source", "", 16)
        if source:
            x, y = fields.text("x", "", 200), fields.text("y", "", 200)
            return cls(Columns(source, x, y), edits)
        made = Made(
            fields.integer("seed", 5, 0, 10**6),
            fields.integer("count", 100, 1, limits.POINTS),
            fields.number("noise", 1.0, 0.0, 100.0),
        )
        return cls(made, edits)

    def arrays(self, desk: Desk) -> tuple[Array, Array]:
        """x and y, kept for the next question."""
        return desk.once(("points", self), lambda: _edited(*self._original(desk), self.edits))

    def _original(self, desk: Desk) -> tuple[Array, Array]:
        if isinstance(self.origin, Columns):
            table = desk.uploads.get(self.origin.source)
            x, y = (_numbers(table, name) for name in (self.origin.x, self.origin.y))
            is_finite = np.isfinite(x) & np.isfinite(y)
            if not is_finite.any():
                raise ValueError("no row has a number in both columns")
            return x[is_finite], y[is_finite]
        seed, count, noise = self.origin
        random = np.random.default_rng(seed)
        x = np.sort(random.uniform(0, 4, count))
        return x, 2 * np.sin(x) + x + noise * random.standard_normal(count)

    def as_python(self) -> list[str]:
        """Lines that make x and y."""
        if isinstance(self.origin, Columns):
            return [  # the file that is exported holds the edits
                "import pyarrow.csv",
                'table = pyarrow.csv.read_csv("points.csv")  # Export, CSV',
                'x, y = (table[name].to_numpy().astype(float) for name in ("x", "y"))',
            ]
        seed, count, noise = self.origin
        lines = [
            f"random = np.random.default_rng({seed})",
            f"x = np.sort(random.uniform(0, 4, {count}))",
            f"y = 2 * np.sin(x) + x + {noise:g} * random.standard_normal({count})",
        ]
        return lines + [_as_python(*edit) for edit in _parsed(self.edits)]


def _numbers(table: Any, name: str) -> Array:
    import pyarrow as pa

    if name not in table.column_names:
        names = ", ".join(table.column_names[:8])
        raise ValueError(f"a column must be one of {names}; got {name!r}")
    if len(table) > limits.POINTS:
        raise ValueError(f"this room shows up to {limits.POINTS:,} points; got {len(table):,} rows")
    column = table.column(name)
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ValueError(f"the column {name!r} must hold numbers; got {kind}")
    numbers: Array = column.cast(pa.float64()).to_numpy()
    return numbers


class Edit(NamedTuple):
    kind: str  # a, m or d
    place: int  # of a point that was there
    x: float = 0.0
    y: float = 0.0


def _parsed(edits: str) -> list[Edit]:
    numbers = []
    parts = edits.split(";") if edits else []
    if len(parts) > limits.EDITS:
        raise ValueError(f"at most {limits.EDITS} points are edited by hand; got {len(parts)}")
    for part in parts:
        match = _EDIT.fullmatch(part)
        if match is None:
            raise ValueError(f"edits must be such as a:1,2 or m:5,1,2 or d:5; got {part[:40]!r}")
        moved, x, y, deleted = match.groups()
        if deleted is not None:
            numbers.append(Edit("d", int(deleted)))
            continue
        place = -1 if moved is None else int(moved)
        numbers.append(Edit(part[0], place, _coordinate(x), _coordinate(y)))
    return numbers


def _coordinate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"a point's place must be a number; got {text!r}") from None
    if not abs(number) <= _FARTHEST:
        raise ValueError(f"a point must lie within {_FARTHEST:g}; got {text!r}")
    return number


def _edited(x: Array, y: Array, edits: str) -> tuple[Array, Array]:
    for kind, place, new_x, new_y in _parsed(edits):
        if kind != "a" and not place < len(x):
            raise ValueError(f"an edit must name one of {len(x)} points; got {place}")
        if kind == "a":
            x, y = np.append(x, new_x), np.append(y, new_y)
        elif kind == "m":
            x, y = x.copy(), y.copy()
            x[place], y[place] = new_x, new_y
        else:
            x, y = np.delete(x, place), np.delete(y, place)
    if not len(x):
        raise ValueError("no point is left: add one")
    return x, y


def _as_python(kind: str, place: int, x: float, y: float) -> str:
    if kind == "a":
        return f"x, y = np.append(x, {x!r}), np.append(y, {y!r})"
    if kind == "m":
        return f"x[{place}], y[{place}] = {x!r}, {y!r}"
    return f"x, y = np.delete(x, {place}), np.delete(y, {place})"
