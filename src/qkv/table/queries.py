"""Queries as people write them, and as the table takes them: a key for each key column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of


def listed(q: Any, key: list[str], schema: pa.Schema) -> tuple[list[dict[str, Any]], bool]:
    """Queries as mappings of key column to key, and whether there may be many."""
    q = _list_of(q, key)
    if len(key) > 1:
        many = isinstance(q, list)
        return [_by_column(one, key) for one in (q if many else [q])], many
    name = key[0]
    if isinstance(q, Mapping):
        return [_by_column(q, key)], False
    several = hasattr(q, "__len__") and not isinstance(q, str) and np.ndim(q) != 0
    if kind_of(schema.field(name).type) is Kind.VECTOR:
        several = several and len(q) > 0 and hasattr(q[0], "__len__")
    if several and len(q) and isinstance(q[0], Mapping):
        return [_by_column(one, key) for one in q], True
    return [{name: _python(one)} for one in q] if several else [{name: _python(q)}], several


def _list_of(q: Any, key: list[str]) -> Any:
    """Series and frames of any library as lists, whatever the method is called.

    A row of a pandas frame is a series too: with several keys by which it is indexed, one query.
    """
    if type(q).__module__.startswith("pandas"):
        if hasattr(q, "columns"):
            return q.to_dict("records")
        if len(key) > 1 and sorted(map(str, q.index)) == sorted(key):
            return dict(zip(map(str, q.index), q, strict=True))
    for name in ("to_dicts", "to_pylist", "to_list"):  # Polars' frames; Arrow; series
        if hasattr(q, name):
            return getattr(q, name)()
    return q


def _by_column(one: Any, key: list[str]) -> dict[str, Any]:
    if isinstance(one, Mapping) and set(one) == set(key):
        return {name: _python(one[name]) for name in key}
    if isinstance(one, (tuple, list)) and len(one) == len(key):
        return dict(zip(key, map(_python, one), strict=True))
    raise ValueError(f"a query must have a key for each of {', '.join(key)}; got {one!r}")


def _python(entry: Any) -> Any:
    """A key as Python has it."""
    if isinstance(entry, pa.Scalar):
        return entry.as_py()
    if isinstance(entry, np.ndarray):
        return entry.tolist()
    return entry.item() if isinstance(entry, np.generic) and entry.dtype.kind != "M" else entry
