"""Files and datasets: CSV, Parquet, Arrow IPC, one file or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from qkv.table.columns import Kind, kind_of
from qkv.table.sources import base
from qkv.table.sources.base import (
    BATCH_ROWS,
    Part,
    Request,
    Scan,
    Source,
    arrow_filter,
    as_python,
    filtered,
    numbered,
)
from qkv.table.sources.delimited import open_delimited
from qkv.table.sources.duck import open_parquet
from qkv.table.sources.file_states import FileStates
from qkv.table.sources.read_errors import READ_ERRORS, readable

#: How files are read, by the end of their name.
FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
}
#: Ends of names that CSV files may have besides.
COMPRESSED = (".gz", ".zst")

#: What is read ahead while a batch is weighed; more would only hold more memory.
_AHEAD = {"batch_readahead": 4, "fragment_readahead": 2}


def open_files(path: Path, csv: Mapping[str, Any] | None, needed: list[str]) -> Source:
    """The file, or the folder of files of one kind, as a source."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    kind = _format_inside(path) if path.is_dir() else _format(path)
    if kind is None:
        raise ValueError(
            f"a table's name must end in {', '.join(FORMATS)}, and CSV's may in "
            f"{' or '.join(COMPRESSED)} besides; got {path.name!r}"
        )
    if kind == "csv":
        files = sorted(_tables(path)) if path.is_dir() else [path]
        delimited = open_delimited(files, csv, needed, path)
        delimited.files = [str(file) for file in files]
        return delimited
    if csv is not None:
        raise ValueError(f"csv= is for CSV files; got {path.name!r}")
    try:
        if kind == "parquet" and path.is_file():
            names, repeated = numbered(pq.read_schema(path).names)
            if repeated:
                source = open_parquet(path, names)
                source.repeated = repeated
                return source
        return open_dataset(_dataset(path, kind))
    except (*READ_ERRORS, pa.ArrowNotImplementedError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path.name!r} cannot be read as {kind}: {reason}") from error


def _dataset(path: Path, kind: str) -> ds.Dataset:
    """The files as a dataset that has the columns of all of them."""
    dataset = ds.dataset(path, format=kind, partitioning="hive")
    schema = dataset.schema
    origin: dict[str, str] = {}  # by column: the file that told its type
    for fragment in dataset.get_fragments():
        file_schema, file = fragment.physical_schema.remove_metadata(), Path(fragment.path).name
        for column in file_schema:
            if column.name in origin or column.name not in schema.names:
                try:
                    schema = pa.unify_schemas(
                        [schema, pa.schema([column])], promote_options="permissive"
                    )
                except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
                    type = schema.field(column.name).type
                    raise ValueError(
                        f"column {column.name!r} is {type} in {origin[column.name]!r} and "
                        f"{column.type} in {file!r}, which no type can hold"
                    ) from error
            origin.setdefault(column.name, file)
    if schema.equals(dataset.schema):
        return dataset
    return ds.dataset(path, schema=schema, format=kind, partitioning="hive")


def open_dataset(dataset: ds.Dataset) -> Source:
    """A pyarrow dataset as a source."""
    files = getattr(dataset, "files", None)
    if isinstance(getattr(dataset, "format", None), ds.ParquetFileFormat):
        return Parquet(dataset)
    kind = getattr(getattr(dataset, "format", None), "default_extname", "Arrow")
    count = f", {len(files):,} files" if files and len(files) > 1 else ""
    return Files(dataset, f"{kind} dataset{count}")


def _format(path: Path) -> str | None:
    """How a file of this name is read."""
    name = path.name.lower()
    for end in COMPRESSED:
        if name.endswith(end):
            inside = FORMATS.get(Path(name.removesuffix(end)).suffix)
            return inside if inside == "csv" else None
    return FORMATS.get(path.suffix.lower())


def _tables(folder: Path) -> list[Path]:
    """The files of a folder that hold tables; hidden ones do not."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if _format(path) and not path.name.startswith((".", "_"))]


def _format_inside(folder: Path) -> str:
    kinds = sorted({str(_format(path)) for path in _tables(folder)})
    if len(kinds) != 1:
        raise ValueError(
            f"folder {str(folder)!r} must hold files of one kind ({', '.join(FORMATS)}); "
            f"got {', '.join(kinds) or 'none'}"
        )
    return kinds[0]


class Files(Source):
    """Files that can only be read from start to end; Arrow filters them while it reads."""

    def __init__(self, dataset: ds.Dataset, description: str) -> None:
        self._dataset = dataset
        self.description = description
        self.schema = dataset.schema
        self.files = getattr(dataset, "files", ())

    def scan(self, request: Request) -> Scan:
        columns = self.columns_for(request)
        if isinstance(getattr(self._dataset, "format", None), ds.IpcFileFormat):
            needed = columns if request.where is None else list(self.schema.names)
            rows = filtered(self._validated(needed), columns, request.where)
        else:
            where = arrow_filter(request.where)
            rows = self._batches(columns=columns, filter=where)
        notes = [] if request.where is None else ["where is applied by Arrow while it reads"]
        return Scan(rows, columns, [*notes, *request.unused_window])

    def _batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """The batches; a scanner is made when the first is wanted, since Arrow then starts."""
        with self._readable():
            yield from self._dataset.scanner(
                batch_size=BATCH_ROWS, **options, **_AHEAD
            ).to_batches()

    def _validated(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Arrow IPC is read without parsing, so that corrupt offsets must be detected first."""
        for batch in self._batches(columns=columns):
            with self._readable():
                batch.validate(full=True)
            yield batch

    def _readable(self) -> AbstractContextManager[None]:
        of_files = isinstance(self._dataset, ds.FileSystemDataset)
        return readable(self.description, self._dataset.get_fragments() if of_files else ())

    def parts(self, request: Request) -> list[Part] | None:
        if not isinstance(self._dataset, ds.FileSystemDataset):
            return None
        return [_file_part(self._dataset, each) for each in self._dataset.get_fragments()]


def _file_part(dataset: ds.FileSystemDataset, fragment: ds.FileFragment) -> Part:
    states = FileStates(dataset.filesystem, [fragment.path])
    piece = _Piece.of(dataset, [fragment])
    return Part(FilePart(piece, states), repr(Path(fragment.path).name))


class _Piece(NamedTuple):
    """Some fragments of a dataset, picklable: Arrow's own would open the file for that."""

    #: Path, what is known of all its rows, and row groups where there are any.
    fragments: list[tuple[str, pc.Expression, list[int] | None]]
    schema: pa.Schema
    format: ds.FileFormat
    filesystem: Any

    @classmethod
    def of(cls, dataset: ds.FileSystemDataset, fragments: list[ds.FileFragment]) -> _Piece:
        pieces: list[tuple[str, pc.Expression, list[int] | None]] = [
            (
                fragment.path,
                fragment.partition_expression,
                [group.id for group in fragment.row_groups],
            )
            if isinstance(fragment, ds.ParquetFileFragment)
            else (fragment.path, fragment.partition_expression, None)
            for fragment in fragments
        ]
        return cls(pieces, dataset.schema, dataset.format, dataset.filesystem)

    def opened(self) -> list[ds.FileFragment]:
        return [
            self.format.make_fragment(path, self.filesystem, partition)
            if groups is None
            else self.format.make_fragment(path, self.filesystem, partition, row_groups=groups)
            for path, partition, groups in self.fragments
        ]

    def dataset(self) -> ds.FileSystemDataset:
        return ds.FileSystemDataset(self.opened(), self.schema, self.format, self.filesystem)


class FilePart(Source):
    """One of the files, to be read by another process."""

    description = "a file"

    def __init__(self, piece: _Piece, states: FileStates) -> None:
        self._piece, self._states = piece, states
        self.schema = piece.schema

    def scan(self, request: Request) -> Scan:
        self._states.check()
        return Files(self._piece.dataset(), self.description).scan(request)


class Parquet(Source):
    """Parquet: row groups whose statistics rule them out are not read."""

    def __init__(self, dataset: ds.Dataset) -> None:
        self._dataset = dataset
        count = f"{len(dataset.files):,} file" + ("s" if len(dataset.files) != 1 else "")
        self.description = f"Parquet, {count}"
        self.schema = dataset.schema
        self.files = dataset.files

    def scan(self, request: Request) -> Scan:
        with readable(self.description):
            dataset, groups, total = self._groups(request)
        return _ParquetScan(dataset, groups, total, request.columns, arrow_filter(request.where))

    def parts(self, request: Request) -> list[Part]:
        dataset, groups, _ = self._groups(request)
        counts = [group.row_groups[0].num_rows for group in groups]
        least = max(base.PART_ROWS, -(-sum(counts) // base.MOST_PARTS))
        states = FileStates(dataset.filesystem, list(dict.fromkeys(g.path for g in groups)))
        parts: list[Part] = []
        start = rows = 0
        for place, count in enumerate(counts):
            rows += count
            if rows >= least or place == len(counts) - 1:
                part_groups = groups[start : place + 1]
                piece = _Piece.of(dataset, part_groups)
                files = list(dict.fromkeys(group.path for group in part_groups))
                name = ", ".join(repr(Path(file).name) for file in files[:3])
                more = f" and {len(files) - 3:,} files more" if len(files) > 3 else ""
                parts.append(Part(ParquetPart(piece, states.of(files)), name + more, rows))
                start, rows = place + 1, 0
        return parts

    def _groups(
        self, request: Request
    ) -> tuple[ds.FileSystemDataset, list[ds.ParquetFileFragment], int]:
        """The dataset, the row groups that may hold rows of weight, and how many there are."""
        where = arrow_filter(request.where)
        outside = arrow_filter(request.window)
        remaining = where if outside is None else outside if where is None else where & outside
        groups, total = [], 0
        dataset = (
            self._dataset if where is not None else _with_categories(self._dataset, request.by)
        )
        for fragment in dataset.get_fragments():
            total += len(fragment.row_groups)
        for fragment in dataset.get_fragments(filter=remaining):
            groups += fragment.split_by_row_group(filter=remaining, schema=dataset.schema)
        return dataset, groups, total


class ParquetPart(Source):
    """Some row groups, to be read by another process."""

    description = "row groups"

    def __init__(self, piece: _Piece, states: FileStates) -> None:
        self._piece, self._states = piece, states
        self.schema = piece.schema

    def scan(self, request: Request) -> Scan:
        self._states.check()
        groups = self._piece.opened()
        where = arrow_filter(request.where)
        return _ParquetScan(self._piece.dataset(), groups, len(groups), request.columns, where)


def _with_categories(dataset: ds.Dataset, columns: tuple[str, ...]) -> ds.Dataset:
    """The same dataset with texts as the categories that Parquet keeps, quicker to group by."""
    schema, partitions = dataset.schema, [f.partition_expression for f in dataset.get_fragments()]
    partition_keys = {name for each in partitions for name in ds.get_partition_keys(each)}
    texts = [
        name
        for name in columns
        if name not in partition_keys and kind_of(schema.field(name).type) is Kind.TEXT
    ]
    if not texts:
        return dataset
    for name in texts:
        categories = pa.field(name, pa.dictionary(pa.int32(), pa.string()))
        schema = schema.set(schema.get_field_index(name), categories)
    options = ds.ParquetReadOptions(
        dictionary_columns=texts,
        coerce_int96_timestamp_unit=dataset.format.read_options.coerce_int96_timestamp_unit,
    )
    format = ds.ParquetFileFormat(options, dataset.format.default_fragment_scan_options)
    fragments = [
        format.make_fragment(fragment.path, dataset.filesystem, fragment.partition_expression)
        for fragment in dataset.get_fragments()
    ]
    return ds.FileSystemDataset(fragments, schema, format, dataset.filesystem)


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

    def fetch(self, places: list[Any]) -> list[dict[str, Any]]:
        rows_by_group: dict[tuple[str, int], list[int]] = {}
        for place, row in places:
            rows_by_group.setdefault(place, []).append(row)
        fragments = [group for group in self._fragments if _place(group) in rows_by_group]
        records: dict[tuple[Any, int], dict[str, Any]] = {}
        offsets = dict.fromkeys(rows_by_group, 0)
        for place, batch in self._scan(fragments, list(self._dataset.schema.names)):
            first = offsets[place]
            offsets[place] += len(batch)
            here = [row for row in rows_by_group[place] if first <= row < first + len(batch)]
            selected = batch.take(pa.array([row - first for row in here], pa.int64()))
            records.update(zip(((place, row) for row in here), as_python(selected), strict=True))
        return [records[token] for token in places]

    def _scan(
        self, fragments: list[ds.ParquetFileFragment], columns: list[str]
    ) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
        chosen = ds.FileSystemDataset(
            fragments, self._dataset.schema, self._dataset.format, self._dataset.filesystem
        )
        scanner = chosen.scanner(
            columns=columns, filter=self._where, batch_size=BATCH_ROWS, **_AHEAD
        )
        with readable("Parquet", fragments):
            for tagged in scanner.scan_batches():
                yield _place(tagged.fragment), tagged.record_batch


def _place(fragment: ds.ParquetFileFragment) -> tuple[str, int]:
    return fragment.path, fragment.row_groups[0].id
