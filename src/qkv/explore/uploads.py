"""Uploaded tables: parsed once, kept in memory, identified by their content."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.explore import limits
from qkv.explore.workers import Gone, Ticket

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET = b"PAR1"


class Uploads:
    """The last few tables, by a digest of their bytes, which links refer to."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, content: bytes, ticket: Ticket) -> str:
        """Read a CSV or Parquet file; the name under which it is kept."""
        name = hashlib.sha256(content).hexdigest()[:16]
        table = read(content, ticket)
        with self._lock:
            self._tables[name] = table
            self._tables.move_to_end(name)
            while len(self._tables) > limits.TABLES:
                self._tables.popitem(last=False)
        return name

    def get(self, name: str) -> pa.Table:
        with self._lock:
            if name not in self._tables:
                raise ValueError("that table is no longer here: upload its file again")
            self._tables.move_to_end(name)
            return self._tables[name]


def read(content: bytes, ticket: Ticket) -> pa.Table:
    """The rows of a file, all of them or none, in bounded memory."""
    if not content.strip():
        raise ValueError("the file is empty: there is nothing to look at in it")
    if b"\0" in content[:4096] and not content.startswith(_PARQUET):
        raise ValueError("the file is neither CSV nor Parquet")
    with tempfile.TemporaryDirectory(prefix="qkv-explore-") as folder:
        # The name on disk is ours, never one that came with the file.
        path = Path(folder) / ("table.parquet" if content.startswith(_PARQUET) else "table.csv")
        path.write_bytes(content)
        try:
            return rows_of(path, ticket)
        except (Gone, MemoryError):
            raise
        except Exception as error:  # readers fail in ways of their own
            reason = (
                str(error).partition("\n")[0].replace(f"{folder}/", "").replace(path.name, "it")
            )
            raise ValueError(f"the file cannot be read: {reason}") from error


def rows_of(path: Path, ticket: Ticket) -> pa.Table:
    """The rows of a file on disk, read as :class:`qkv.Database` reads it."""
    import pyarrow as pa

    from qkv.table.sources import Request, open_source

    source = open_source(path)
    batches, rows, size = [], 0, 0
    for batch in source.scan(Request(list(source.schema.names), whole_rows=False)).batches():
        ticket.check()
        rows, size = rows + len(batch), size + batch.nbytes
        if rows > limits.TABLE_ROWS or size > limits.TABLE_BYTES:
            raise ValueError(
                f"it has more than the {limits.TABLE_ROWS:,} rows or {limits.TABLE_BYTES >> 20} MB "
                "that are kept here; `qkv explore --open FILE` takes larger ones"
            )
        batches.append(batch)
    if not rows:
        raise ValueError("it has no rows, and there is nothing to look at in it")
    return pa.Table.from_batches(batches)
