"""Files and datasets: CSV, Parquet, Arrow IPC, one file or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from qkv.table.sources.base import (
    BATCH_ROWS,
    Request,
    Scan,
    Source,
    arrow_filter,
    as_python,
)

#: How files are read, by the end of their name.
FORMATS = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
}

#: What is read ahead while a batch is weighed; more would only hold more memory.
_AHEAD = {"batch_readahead": 4, "fragment_readahead": 2}


def open_files(path: Path) -> Source:
    """The file, or the folder of files of one kind, as a source."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    suffix = _suffix_inside(path) if path.is_dir() else path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"a table's name must end in {', '.join(FORMATS)}; got {path.name!r}")
    try:
        return open_dataset(ds.dataset(path, format=FORMATS[suffix], partitioning="hive"))
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path.name!r} cannot be read as {FORMATS[suffix]}: {reason}") from error


def open_dataset(dataset: ds.Dataset) -> Source:
    """A pyarrow dataset as a source."""
    files = getattr(dataset, "files", None)
    if isinstance(getattr(dataset, "format", None), ds.ParquetFileFormat):
        return Parquet(dataset)
    kind = getattr(getattr(dataset, "format", None), "default_extname", "Arrow")
    count = f", {len(files):,} files" if files and len(files) > 1 else ""
    return Files(dataset, f"{kind} dataset{count}")


def _suffix_inside(folder: Path) -> str:
    suffixes = {path.suffix.lower() for path in folder.rglob("*") if path.is_file()}
    known = sorted(suffixes & set(FORMATS))
    if len(known) != 1:
        raise ValueError(
            f"folder {str(folder)!r} must hold files of one kind ({', '.join(FORMATS)}); "
            f"got {', '.join(known) or 'none'}"
        )
    return known[0]


class Files(Source):
    """Files that can only be read from start to end; Arrow filters them while it reads."""

    def __init__(self, dataset: ds.Dataset, description: str) -> None:
        self._dataset = dataset
        self.description = description
        self.schema = dataset.schema

    def scan(self, request: Request) -> Scan:
        scanner = self._dataset.scanner(
            columns=self.columns_for(request),
            filter=arrow_filter(request.where),
            batch_size=BATCH_ROWS,
            **_AHEAD,
        )
        notes = [] if request.where is None else ["where is applied by Arrow while it reads"]
        return Scan(_batches(scanner), self.columns_for(request), [*notes, *request.unused_window])


def _batches(scanner: ds.Scanner) -> Iterator[pa.RecordBatch]:
    """A scanner's batches; opened when the first is wanted, since Arrow then starts to read."""
    yield from scanner.to_batches()


class Parquet(Source):
    """Parquet: row groups whose statistics rule them out are not read."""

    def __init__(self, dataset: ds.Dataset) -> None:
        self._dataset = dataset
        count = f"{len(dataset.files):,} file" + ("s" if len(dataset.files) != 1 else "")
        self.description = f"Parquet, {count}"
        self.schema = dataset.schema

    def scan(self, request: Request) -> Scan:
        where = arrow_filter(request.where)
        outside = arrow_filter(request.window)
        kept = where if outside is None else outside if where is None else where & outside
        groups, total = [], 0
        for fragment in self._dataset.get_fragments():
            total += len(fragment.row_groups)
        for fragment in self._dataset.get_fragments(filter=kept):
            groups += fragment.split_by_row_group(filter=kept)
        return _ParquetScan(self._dataset, groups, total, request.columns, where)


class _ParquetScan(Scan):
    """Reads only the columns that are weighed; rows to show are read again, by row group."""

    def __init__(
        self,
        dataset: ds.Dataset,
        groups: list[ds.ParquetFileFragment],
        total: int,
        columns: list[str],
        where: pc.Expression | None,
    ) -> None:
        rows = sum(group.row_groups[0].num_rows for group in groups) if where is None else None
        super().__init__([], columns, [f"reads {len(groups):,} of {total:,} row groups"], rows)
        self.groups = len(groups), total
        self._dataset = dataset
        self._fragments = groups
        self._columns = columns
        self._where = where
        self._place = ("", -1)  # file and row group of the batch just read
        self._offset = 0  # and its first row there, counted among rows that fulfil `where`

    def batches(self) -> Iterator[pa.RecordBatch]:
        for place, batch in self._scan(self._fragments, self._columns):
            if place != self._place:
                self._place, self._offset = place, 0
            yield batch
            self._offset += len(batch)

    def keep(self, batch: pa.RecordBatch, rows: list[int]) -> list[Any]:
        return [(self._place, self._offset + row) for row in rows]

    def fetch(self, kept: list[Any]) -> list[dict[str, Any]]:
        wanted: dict[tuple[str, int], list[int]] = {}
        for place, row in kept:
            wanted.setdefault(place, []).append(row)
        fragments = [group for group in self._fragments if _place(group) in wanted]
        found: dict[tuple[Any, int], dict[str, Any]] = {}
        offsets = dict.fromkeys(wanted, 0)
        for place, batch in self._scan(fragments, list(self._dataset.schema.names)):
            first = offsets[place]
            offsets[place] += len(batch)
            here = [row for row in wanted[place] if first <= row < first + len(batch)]
            taken = batch.take(pa.array([row - first for row in here], pa.int64()))
            found.update(zip(((place, row) for row in here), as_python(taken), strict=True))
        return [found[token] for token in kept]

    def _scan(
        self, fragments: list[ds.ParquetFileFragment], columns: list[str]
    ) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
        chosen = ds.FileSystemDataset(
            fragments, self._dataset.schema, self._dataset.format, self._dataset.filesystem
        )
        scanner = chosen.scanner(
            columns=columns, filter=self._where, batch_size=BATCH_ROWS, **_AHEAD
        )
        for tagged in scanner.scan_batches():
            yield _place(tagged.fragment), tagged.record_batch


def _place(fragment: ds.ParquetFileFragment) -> tuple[str, int]:
    return fragment.path, fragment.row_groups[0].id
