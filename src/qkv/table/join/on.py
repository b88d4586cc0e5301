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
from qkv.table.similarity_spec import FUZZY_BANDWIDTH, BandwidthLike, CutoffLike, similarity_specs
from qkv.table.where import check_column

#: Which columns, and how alike: {"name": "fuzzy", ("date", "day"): qkv.Gaussian(3)}.
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
        own = 0.5**0.5 if self.name == "euclidean" else self.bandwidth
        return own * per_unit(self.type)

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
    """What `on` says, checked against both tables."""
    if not isinstance(on, Mapping):
        raise TypeError(
            "on must map columns to similarities, such as {'name': 'fuzzy'}; "
            f"got {type(on).__name__}"
        )
    if not on:
        raise ValueError("on must name at least one column")
    found = [_one(*_columns(key), how, left, right, bandwidth, cutoff) for key, how in on.items()]
    if sum(own.name == "nearest" for own in found) > 1:
        raise ValueError("on must have at most one 'nearest' column")
    for argument, given in (("bandwidth", bandwidth), ("cutoff", cutoff)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in {own.left for own in found}:
                raise ValueError(f"{argument} names {name!r}, on which nothing is joined")
    if cutoff is not None and not any(own.name == "fuzzy" for own in found):
        raise ValueError("cutoff is for 'fuzzy' columns, and on has none")
    return found


def _columns(key: Any) -> tuple[str, str]:
    if isinstance(key, str):
        return key, key
    if isinstance(key, tuple) and len(key) == 2 and all(isinstance(name, str) for name in key):
        return key
    raise TypeError(f"on must have columns, or pairs of a left and a right one; got {key!r}")


def _one(
    own: str,
    other: str,
    how: str | Similarity,
    left: pa.Schema,
    right: pa.Schema,
    bandwidth: BandwidthLike,
    cutoff: CutoffLike,
) -> On:
    check_column(left, own, "on (left)")
    check_column(right, other, "on (right)")
    columns = repr(own) if own == other else f"{own!r} and {other!r}"
    type = common_type(left.field(own).type, right.field(other).type, columns)
    if how == "nearest":
        if kind_of(type) not in (Kind.NUMBER, Kind.TIME):
            raise TypeError(f"similarity 'nearest' cannot compare column {own!r} ({type})")
        return On(own, other, type, "nearest")
    # One cutoff is for whatever is fuzzy.
    least = cutoff if how == "fuzzy" or isinstance(cutoff, Mapping) else None
    wanted = similarity_specs(own, type, how, bandwidth, least)
    if wanted.lacks_bandwidth:
        raise ValueError(
            f"similarity {wanted.name!r} of column {own!r} needs a bandwidth: "
            f"qkv.{wanted.name.capitalize()}(…), or bandwidth={{{own!r}: …}}"
        )
    width = wanted.bandwidth or (FUZZY_BANDWIDTH if wanted.name == "fuzzy" else 1.0)
    return On(own, other, type, wanted.name, width, wanted.cutoff or 0.0, wanted.temperature)
