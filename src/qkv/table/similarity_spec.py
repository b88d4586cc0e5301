"""The similarity of each key column, as users specify it."""

from __future__ import annotations

import builtins
import datetime as dt
import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from qkv.similarity import (
    NAMED,
    Cosine,
    Dot,
    Equal,
    Euclidean,
    FromCallable,
    Kernel,
    OfDistance,
    ScaledDot,
    Similarity,
)
from qkv.similarity.base import compares_pairs
from qkv.table.columns import Kind, in_units, kind_of
from qkv.table.comparison import (
    KERNELS,
    NAMES,
    Comparison,
    Distance,
    Fuzzy,
    Same,
    check_serves,
    check_serves_custom,
)
from qkv.table.custom_similarity import Pairs, custom_kernel, described
from qkv.table.vectors import Vectors

#: Of the distance in bandwidths, or of queries and keys.
Formula: TypeAlias = Callable[[Any], Any] | Callable[[Any, Any], Any]
SimilarityLike: TypeAlias = str | Similarity | Formula | Mapping[str, "str | Similarity | Formula"]
Bandwidth: TypeAlias = float | dt.timedelta
BandwidthLike: TypeAlias = Bandwidth | Mapping[str, Bandwidth] | None
CutoffLike: TypeAlias = float | Mapping[str, float] | None

#: How far a misspelling reaches: a ratio of 0.95 weighs 1/e of an exact match.
FUZZY_BANDWIDTH = 0.05
#: Ratios below this are of unlike texts, as difflib has it.
FUZZY_CUTOFF = 0.6


class SimilaritySpec(NamedTuple):
    """A similarity for one column; a bandwidth of None is yet to be chosen."""

    name: str
    bandwidth: float | None
    temperature: float = 1.0
    cutoff: float | None = None
    custom: Similarity | None = None  # of someone's own; the bandwidth is that of a kernel

    @property
    def lacks_bandwidth(self) -> bool:
        return self.name in KERNELS and self.bandwidth is None


def read_spec(
    column: str,
    type: pa.DataType,
    similarity: SimilarityLike,
    bandwidth: BandwidthLike,
    cutoff: CutoffLike = None,
) -> SimilaritySpec:
    """The similarity of this column, checked against its type."""
    custom = _of_column(similarity, column, "similarity")
    width = _of_column(bandwidth, column, "bandwidth", optional=True)
    if callable(custom) and not isinstance(custom, (Similarity, builtins.type)):
        custom = FromCallable(custom) if compares_pairs(custom) else OfDistance(custom)
    spec = (
        _from_object(custom)
        if isinstance(custom, Similarity)
        else SimilaritySpec(_name(custom), None)
    )
    if spec.custom is None:
        check_serves(spec.name, column, type)
    else:
        check_serves_custom(spec.name, column, type, isinstance(spec.custom, Kernel))
    if width is not None:
        if spec.name not in (*KERNELS, "fuzzy") and not isinstance(spec.custom, Kernel):
            raise ValueError(f"similarity {spec.name!r} of column {column!r} has no bandwidth")
        spec = spec._replace(bandwidth=in_units(width, type, column))
    if spec.bandwidth is not None and not 0.0 < spec.bandwidth < float("inf"):
        raise ValueError(
            f"bandwidth of column {column!r} must be positive and finite; got {spec.bandwidth}"
        )
    return spec._replace(cutoff=_cutoff(column, spec.name, cutoff))


def _cutoff(column: str, name: str, cutoff: CutoffLike) -> float | None:
    """The ratio below which texts do not match, where texts are compared."""
    least = _of_column(cutoff, column, "cutoff", optional=True)
    if least is None:
        return FUZZY_CUTOFF if name == "fuzzy" else None
    if name != "fuzzy":
        raise ValueError(f"similarity {name!r} of column {column!r} has no cutoff")
    if isinstance(least, bool) or not isinstance(least, (int, float)) or not 0.0 <= least <= 1.0:
        raise ValueError(f"cutoff of column {column!r} must be a number from 0 to 1; got {least!r}")
    return float(least)


def compare(column: str, type: pa.DataType, entries: pa.Array, spec: SimilaritySpec) -> Comparison:
    """Queries, as entries of the column, ready to be compared with its keys."""
    width = 1.0 if spec.bandwidth is None else spec.bandwidth
    is_vector = kind_of(type) is Kind.VECTOR
    if isinstance(spec.custom, Kernel) and not is_vector:
        return custom_kernel(column, type, entries, spec.custom, width)
    if spec.custom is not None:
        custom = (
            spec.custom.with_bandwidth(width) if isinstance(spec.custom, Kernel) else spec.custom
        )
        return Pairs(column, type, entries, custom)
    if is_vector:
        return Vectors(column, entries, spec.name, width, spec.temperature)
    if spec.name == "equal":
        return Same(column, type, entries)
    if spec.name == "fuzzy":
        return Fuzzy(column, entries, spec.bandwidth or FUZZY_BANDWIDTH, spec.cutoff or 0.0)
    if spec.name == "euclidean":  # −(q − k)² is a Gaussian's logarithm at this bandwidth
        return Distance(column, type, entries, "gaussian", 0.5**0.5)
    return Distance(column, type, entries, spec.name, width)


def _of_column(given: Any, column: str, argument: str, optional: bool = False) -> Any:
    if not isinstance(given, Mapping):
        return given
    if column not in given and not optional:
        raise ValueError(f"{argument} has no entry for key column {column!r}; got {dict(given)!r}")
    return given.get(column)


def _name(similarity: Any) -> str:
    if not isinstance(similarity, str):
        raise TypeError(
            "similarity must be a name, a qkv.Similarity, a function of the distance in "
            "bandwidths or of queries and keys, or a mapping of key columns to these; "
            f"got {type(similarity).__name__}"
        )
    if similarity not in NAMES:
        close = difflib.get_close_matches(similarity, NAMES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"similarity must be one of {', '.join(NAMES)}; got {similarity!r}{hint}")
    return similarity


def _kernel_name(kernel: Kernel) -> str:
    """The name by which tables know the kernels of the package; "" where they know none."""
    name = type(kernel).__name__.lower()
    return name if name in KERNELS else ""


def _width(kernel: Kernel, example: Any) -> float:
    width = kernel.bandwidth(example)
    if not isinstance(width, float) and width.numel() > 1:
        raise ValueError(
            f"bandwidth of {described(kernel)} must be one number; got {width.numel()}"
        )
    return float(width)


def _from_object(similarity: Similarity) -> SimilaritySpec:
    """The same similarity as tables compute it: in float64, and without a gradient."""
    import torch

    example = torch.zeros(1, 1, dtype=torch.float64)
    if isinstance(similarity, Kernel) and type(similarity) is type(
        NAMED.get(_kernel_name(similarity))
    ):
        return SimilaritySpec(_kernel_name(similarity), _width(similarity, example))
    if type(similarity) is Cosine:
        return SimilaritySpec("cosine", None, float(similarity.temperature(example)))
    if type(similarity) is ScaledDot and similarity.scale is None:
        return SimilaritySpec("scaled_dot", None)
    if isinstance(similarity, Kernel):
        return SimilaritySpec(described(similarity), _width(similarity, example), custom=similarity)
    plain = {Dot: "dot", Euclidean: "euclidean", Equal: "equal"}
    if type(similarity) in plain:
        return SimilaritySpec(plain[type(similarity)], None)
    return SimilaritySpec(described(similarity), None, custom=similarity)
