"""`df.qkv` for pandas and Polars: importing this module registers it.

>>> import pandas as pd
>>> import qkv.table.accessor
>>> people = pd.DataFrame({"name": ["Ana", "John"], "age": [31, 44]})
>>> people.qkv.query("Jon", key="name", value="age", similarity="fuzzy").value
44.0
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from qkv.table.database import Database


class Accessor:
    """A data frame as a soft database."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def database(self, *, key: str | Sequence[str], value: str | Sequence[str]) -> Database:
        """The frame as a :class:`qkv.Database`, to be asked more than once."""
        return Database(self._frame, key=key, value=value)

    def query(
        self, q: Any, *, key: str | Sequence[str], value: str | Sequence[str], **options: Any
    ) -> Any:
        """What :meth:`qkv.Database.query` answers, with its other arguments."""
        return self.database(key=key, value=value).query(q, **options)

    def curve(
        self, grid: Any, *, key: str | Sequence[str], value: str | Sequence[str], **options: Any
    ) -> Any:
        """What :meth:`qkv.Database.curve` gives, with its other arguments."""
        return self.database(key=key, value=value).curve(grid, **options)


if find_spec("pandas") is not None:
    import_module("pandas").api.extensions.register_dataframe_accessor("qkv")(Accessor)

if find_spec("polars") is not None:
    for register in ("register_dataframe_namespace", "register_lazyframe_namespace"):
        getattr(import_module("polars").api, register)("qkv")(Accessor)
