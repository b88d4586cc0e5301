"""What a join is made on: pairs of columns, and how each pair is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from qkv.similarity import Similarity
from qkv.table.columns import Kind, kind_of, unit_of
from qkv.table.comparison import COMPACT, KERNELS
from qkv.table.join.kernels import NEAREST
from qkv.table.join.keys import common_type, per_unit
from qkv.table.similarity_spec import FUZZY_BANDWIDTH, BandwidthLike, CutoffLike, read_spec
from qkv.table.where import check_column

#: Columns and their similarities: {"name": "fuzzy", ("date", "day"): qkv.Gaussian(3)}.
OnLike: TypeAlias = Mapping[Any, "str | Similarity"]

#: Similarities that compare numbers by their distance.
_DISTANCES = {*KERNELS, "euclidean", "nearest"}


class On(NamedTuple):
    """A column of the left table, one of the right, and how they are compared."""

    left: str
    right: str
    type: pa.DataType  # in which both are compared
    name: str  # of the similarity
    bandwidth: float = 1.0
    cutoff: float = 0.0  # of fuzzy
    temperature: float = 1.0  # of cosine

    @property
    def columns(self) -> str:
        return self.left if self.left == self.right else f"{self.left} = {self.right}"

    @property
    def is_equal(self) -> bool:
        return self.name == "equal" and kind_of(self.type) is not Kind.VECTOR

    @property
    def is_distance(self) -> bool:
        """Whether it compares single numbers by their distance."""
        return self.name in _DISTANCES and kind_of(self.type) is not Kind.VECTOR

    @property
    def is_whole(self) -> bool:
        """Whether its keys are counted in whole numbers."""
        return not pa.types.is_floating(self.type)

    @property
    def is_vector(self) -> bool:
        return kind_of(self.type) is Kind.VECTOR

    @property
    def is_compact(self) -> bool:
        return self.is_distance and self.name in COMPACT

    @property
    def code(self) -> int:
        """The kernel of distances, as compiled code knows it."""
        if self.name == "nearest":
            return NEAREST
        return KERNELS["gaussian" if self.name == "euclidean" else self.name]

    @property
    def width(self) -> float:
        """The bandwidth in what keys are counted in."""
        bandwidth = 0.5**0.5 if self.name == "euclidean" else self.bandwidth
        return bandwidth * per_unit(self.type)

    @property
    def description(self) -> str:
        if self.name == "fuzzy":
            return f"fuzzy, ratio at least {self.cutoff:g}, bandwidth {self.bandwidth:g}"
        if self.name in KERNELS:
            return f"{self.name}, bandwidth {self.bandwidth:g}{unit_of(self.type)}"
        return self.name


def read_on(
    on: OnLike,
    left: pa.Schema,
    right: pa.Schema,
    bandwidth: BandwidthLike,
    cutoff: CutoffLike,
) -> list[On]:
    """The conditions in `on`, checked against both tables."""
    if not isinstance(on, Mapping):
        raise TypeError(
            "on must map columns to similarities, such as {'name': 'fuzzy'}; "
            f"got {type(on).__name__}"
        )
    if not on:
        raise ValueError("on must name at least one column")
    conditions = [
        _one(*_columns(key), similarity, left, right, bandwidth, cutoff)
        for key, similarity in on.items()
    ]
    if sum(condition.name == "nearest" for condition in conditions) > 1:
        raise ValueError("on must have at most one 'nearest' column")
    for argument, given in (("bandwidth", bandwidth), ("cutoff", cutoff)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in {condition.left for condition in conditions}:
                raise ValueError(f"{argument} names {name!r}, on which nothing is joined")
    if cutoff is not None and not any(condition.name == "fuzzy" for condition in conditions):
        raise ValueError("cutoff is for 'fuzzy' columns, and on has none")
    return conditions


def _columns(key: Any) -> tuple[str, str]:
    if isinstance(key, str):
        return key, key
    if isinstance(key, tuple) and len(key) == 2 and all(isinstance(name, str) for name in key):
        return key
    raise TypeError(f"on must have columns, or pairs of a left and a right one; got {key!r}")


def _one(
    left_name: str,
    other: str,
    similarity: str | Similarity,
    left: pa.Schema,
    right: pa.Schema,
    bandwidth: BandwidthLike,
    cutoff: CutoffLike,
) -> On:
    check_column(left, left_name, "on (left)")
    check_column(right, other, "on (right)")
    columns = repr(left_name) if left_name == other else f"{left_name!r} and {other!r}"
    type = common_type(left.field(left_name).type, right.field(other).type, columns)
    if similarity == "nearest":
        if kind_of(type) not in (Kind.NUMBER, Kind.TIME):
            raise TypeError(f"similarity 'nearest' cannot compare column {left_name!r} ({type})")
        return On(left_name, other, type, "nearest")
    # One cutoff is for whatever is fuzzy.
    least = cutoff if similarity == "fuzzy" or isinstance(cutoff, Mapping) else None
    spec = read_spec(left_name, type, similarity, bandwidth, least)
    if spec.lacks_bandwidth:
        raise ValueError(
            f"similarity {spec.name!r} of column {left_name!r} needs a bandwidth: "
            f"qkv.{spec.name.capitalize()}(…), or bandwidth={{{left_name!r}: …}}"
        )
    width = spec.bandwidth or (FUZZY_BANDWIDTH if spec.name == "fuzzy" else 1.0)
    return On(left_name, other, type, spec.name, width, spec.cutoff or 0.0, spec.temperature)
