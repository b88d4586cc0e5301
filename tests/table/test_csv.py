"""CSV files as they come: what is detected, what is said of it, and what can be set."""

from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import qkv

HOW: dict[str, Any] = {"similarity": "boxcar", "bandwidth": 0.6}


def _database(path: Path, text: str | bytes, **options: Any) -> qkv.Database:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return qkv.Database(path, **{"key": "k", "value": "v", **options})


def _notes(database: qkv.Database, query: Any) -> str:
    return "\n".join(database.explain(query).notes)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".CSV"])
def test_the_delimiter_is_detected_and_told(delimiter: str, suffix: str, tmp_path: Path) -> None:
    rows = [["k", "name", "v"], ["1.5", "a b", "2"], ["2.5", '"x, ; y"', "3"], ["3.5", "", "4"]]
    text = "\n".join(delimiter.join(row) for row in rows) + "\n"
    database = _database(tmp_path / f"t{suffix}", text)
    answer = database.query(2.0, **HOW)
    assert answer.value == 2.5
    assert [row["name"] for row in answer.rows] == ["a b", "x, ; y"]
    assert f"delimiter {delimiter!r}, encoding utf-8, decimal '.'" in _notes(database, 2.0)
    assert "k number, name text, v integer; empty cells are missing" in _notes(database, 2.0)


@pytest.mark.parametrize(
    ("text", "value", "told"),
    [
        ("k;v\n1,5;2\n2,5;3\n", 2, "decimal ','"),
        ("k\tv\n1,5\t2,25\n2,5\t3,75\n", 2.25, "decimal ','"),
        ('k,v\n"1,5",2\n"2,5",3\n', 2, "decimal ','"),
        ("k;v\n1,5;1.002\n2,5;1.003\n", 1002, "decimal ',', thousands '.'"),
        ("k;v\n1,5;1.002.003,5\n2,5;999\n", 1002003.5, "decimal ',', thousands '.'"),
        ('k,v\n1.5,"1,002"\n2.5,"1,003"\n', 1002, "decimal '.', thousands ','"),
        ('k,v\n1.5,"1,000,000.5"\n2.5,-7\n', 1000000.5, "decimal '.', thousands ','"),
        ("k;v\n1,534;2\n2,534;3\n", 2, "decimal ','"),
    ],
)
def test_decimals_and_thousands_are_detected_and_told(
    text: str, value: float, told: str, tmp_path: Path
) -> None:
    database = _database(tmp_path / "t.csv", text)
    assert told in _notes(database, 2.0)
    assert database.query(1.5, similarity="boxcar", bandwidth=0.25).value == value


def test_text_that_has_commas_stays_text(tmp_path: Path) -> None:
    database = _database(tmp_path / "t.csv", 'k,name,v\n1.5,"1,5",2\n2.5,"a, b",3\n3.5,"1,234",4\n')
    assert database.query(1.5).rows[0]["name"] == "1,5"
    # One sign cannot be both: a column with points keeps them, the other stays text.
    both = _database(tmp_path / "u.csv", 'k,name,v\n1.5,"1,5",2\n2.25,"2,5",3\n')
    assert both.query(2.25).rows[0] == {"weight": 1.0, "k": 2.25, "name": "2,5", "v": 3}


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8-sig"),
        ("latin-1", "cp1252"),
        ("cp1252", "cp1252"),
        ("utf-16", "utf-16"),
        ("utf-32", "utf-32"),
    ],
)
def test_the_encoding_is_detected_and_told(encoding: str, told: str, tmp_path: Path) -> None:
    text = "k,v\nMüller,1\nJosé,2\nЖ,3\n" if "utf" in encoding else "k,v\nMüller,1\nJosé,2\n"
    database = _database(tmp_path / "t.csv", text.encode(encoding))
    assert [a.value for a in database.query(["José", "Müller"])] == [2.0, 1.0]
    assert f"encoding {told}" in _notes(database, "José")


def test_an_encoding_can_be_set(tmp_path: Path) -> None:
    text = "k,v\nпривет,1\nмир,2\n".encode("koi8-r")
    database = _database(tmp_path / "t.csv", text, csv={"encoding": "koi8-r"})
    assert database.query("мир").value == 2.0
    with pytest.raises(ValueError, match=r"^'t.csv' cannot be read as CSV"):
        _database(tmp_path / "t.csv", text, csv={"encoding": "utf-8"})
    with pytest.raises(ValueError, match=r"csv\['encoding'\] is unknown: 'klingon'"):
        _database(tmp_path / "t.csv", text, csv={"encoding": "klingon"})


def test_bytes_that_are_not_utf8_far_into_a_file(tmp_path: Path) -> None:
    text = b"k,v\n" + b"some quite long name that fills the file,1\n" * 1_600_000 + b"Jos\xe9,2\n"
    database = _database(tmp_path / "t.csv", text)
    with pytest.raises(ValueError, match=r"^CSV, 1 file: .*utf-8 encoded.*; csv="):
        database.query("x")
    given = qkv.Database(tmp_path / "t.csv", key="k", value="v", csv={"encoding": "latin-1"})
    assert given.query("José").value == 2.0


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_compressed_files(suffix: str, encoding: str, tmp_path: Path) -> None:
    text = "name;k;v\nJosé;1,5;2\nAna;2,5;3\n".encode(encoding)
    path = tmp_path / f"t.csv{suffix}"
    if suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    else:
        with pa.output_stream(str(path), compression="zstd") as out:
            out.write(text)
    database = qkv.Database(path, key="name", value="v")
    assert database.query("José").value == 2.0
    folder = qkv.Database(tmp_path, key="k", value="v")
    assert folder.query(2.0, **HOW).value == 2.5


def test_types_are_detected_by_column_and_can_be_set(tmp_path: Path) -> None:
    text = (
        "id,day,at,on,zip,v\n"
        "9007199254740993,2020-01-01,2020-01-01 12:30:00,true,01234,1\n"
        "9007199254740995,2020-01-03,2020-01-02 12:30:00,false,99999,2\n"
    )
    path = tmp_path / "t.csv"
    ids = _database(path, text, key="id")
    assert ids.query(9007199254740995).value == 2.0
    held = "id integer, day date, at timestamp, on boolean, zip text, v integer"
    assert held in _notes(ids, 1)
    assert qkv.Database(path, key="day", value="v").query(dt.date(2020, 1, 3)).value == 2.0
    assert qkv.Database(path, key="on", value="v").query(True).value == 1.0
    assert qkv.Database(path, key="zip", value="v").query("01234").value == 1.0  # no number
    zips = qkv.Database(path, key="zip", value="v", csv={"types": {"zip": "integer"}})
    assert zips.query(1234).value == 1.0
    numbers = qkv.Database(path, key="v", value="zip", csv={"types": {"zip": "number"}})
    assert numbers.query(1.0).value == 1234.0
    days = _database(tmp_path / "d.csv", "k,v\n31/12/2020,1\n01/12/2020,2\n")
    assert days.query(dt.date(2020, 12, 1)).value == 2.0
    assert "dates %d/%m/%Y" in _notes(days, dt.date(2020, 12, 1))


@pytest.mark.parametrize(("cell", "query"), [("2.5", 2.5), ("abc", "abc"), ("7", 7)])
def test_a_column_whose_first_cells_are_empty(cell: str, query: Any, tmp_path: Path) -> None:
    rows = "x,,\n" * 400_000 + f"y,{cell},3\n"
    database = _database(tmp_path / "t.csv", "name,k,v\n" + rows)
    answer = database.query(query)
    assert answer.value == 3.0
    assert answer.plan.missing == {"k": 0, "v": 0}
    other = qkv.Database(tmp_path / "t.csv", key="name", value="k").query("x")
    assert other.plan.missing == {"name": 0, "k": 400_000}


def test_empty_cells_are_missing_in_columns_of_text_too(tmp_path: Path) -> None:
    database = _database(tmp_path / "t.csv", 'k,v\na,1\n,2\n"",3\nb,\n', key="k")
    answer = database.query("a", similarity="fuzzy", cutoff=0)
    assert answer.plan.missing == {"k": 2, "v": 1}
    words = qkv.Database(tmp_path / "t.csv", key="v", value="k").query(2, similarity="gaussian",
                                                                       bandwidth=9)  # fmt: skip
    assert words.plan.missing == {"v": 1, "k": 2}
    assert dict(words.distribution) == {"a": 1.0}


def test_names_with_signs_that_others_take_for_patterns(tmp_path: Path) -> None:
    for name in ("a[1].csv", "b*.csv", "c?.csv", "d'e\".csv", "bx.csv"):
        assert _database(tmp_path / name, f"k,v,n\n1,{len(name)},\n").query(1).value == len(name)


@pytest.mark.parametrize("name", ["*", "a.b", "COLUMNS(*)", "1", "'"])
def test_columns_with_signs_that_others_take_for_expressions(name: str, tmp_path: Path) -> None:
    late = "".join(f"{i},,{i}\n" for i in range(3)) + "3,7,9\n"
    (tmp_path / "t.csv").write_text(f"k,{name},v\n{late}")
    database = qkv.Database(tmp_path / "t.csv", key=name, value="v")
    assert database.query(7).value == 9
    assert qkv.Database(tmp_path / "t.csv", key="k", value=name).query(3).value == 7


def test_files_of_a_folder_may_be_written_differently(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,v\n1.5,2\n")
    (tmp_path / "b.csv").write_bytes("v;k;name\n3;2,5;José\n".encode("latin-1"))
    (tmp_path / "c.tsv").write_text("k\tv\n9\t\n")
    database = qkv.Database(tmp_path, key="k", value="v")
    assert database.query(2.0, **HOW).value == 2.5
    assert database.query(2.5).rows[0]["name"] == "José"
    assert database.query(2.0, **HOW).plan.source == "CSV, 3 files"
    notes = _notes(database, 2.0)
    assert "delimiter ';', encoding cp1252, decimal ','" in notes
    assert "delimiter ',', encoding utf-8, decimal '.'" in notes


@pytest.mark.parametrize("number", ["1", "1.5"])
def test_a_cell_that_does_not_fit_is_named(number: str, tmp_path: Path) -> None:
    database = _database(tmp_path / "t.csv", "k,v\n" + f"{number},2\n" * 30_000 + "oops,3\n")
    with pytest.raises(ValueError, match=r"^CSV, 1 file: .*\bk\b.*oops.*csv=\{'types': "):
        database.query(7)
    text = qkv.Database(tmp_path / "t.csv", key="k", value="v", csv={"types": {"k": "text"}})
    assert text.query("oops").value == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'t.csv' cannot be read as CSV: it is empty"),
        ("k,v\n1,2\n3\n", r"'t.csv' cannot be read as CSV: line 3 has 1 cells and the header 2"),
        ("k;v\n1;2\n3;4;5\n", "line 3 has 3 cells and the header 2, parted by ';'"),
    ],
)
def test_files_that_are_no_tables(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        _database(tmp_path / "t.csv", text)


def test_an_error_far_into_a_file_is_a_sentence(tmp_path: Path) -> None:
    """Where it comes up after the first batch, Arrow raises another kind of it."""
    broken = _database(tmp_path / "t.csv", "k,v\n" + "1,2\n" * 400_000 + "1.5,3\n")
    with pytest.raises(ValueError, match=r"^CSV, 1 file: .*column 'k' held integers .* then 1.5"):
        broken.query(1)


@pytest.mark.parametrize("thousands", [False, True])
def test_integers_that_become_decimals_are_not_rounded(thousands: bool, tmp_path: Path) -> None:
    first, last = "9007199254740993", "1002.5"
    if thousands:
        first, last = '"9,007,199,254,740,993"', '"1,002.5"'
    text = "k,v\n" + f"{first},2\n" * 21_000
    whole = _database(tmp_path / "t.csv", text)
    assert whole.query(9007199254740993).effective_rows == 21_000
    assert whole.query(9007199254740992).value is None
    broken = _database(tmp_path / "t.csv", text + f"{last},3\n")
    with pytest.raises(ValueError, match=r"column 'k' held integers in the first 20,480 rows, and "
                       r"then 1002.5, which csv=\{'types': \{'k': 'number'"):  # fmt: skip
        broken.query(7)
    given = qkv.Database(tmp_path / "t.csv", key="k", value="v", csv={"types": {"k": "number"}})
    assert given.query(1002.5).value == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"csv": {"delim": ";"}}, "csv must have the keys delimiter, .*; got 'delim'"),
        ({"csv": {"decimal": "comma"}}, r"csv\['decimal'\] must be a character; got 'comma'"),
        ({"csv": {"types": {"k": "float"}}}, "must map columns to text, .*; got 'float' for 'k'"),
        ({"csv": {"types": {"kk": "text"}}}, "names column 'kk', which is not there"),
        ({"csv": ";"}, "csv must be a mapping"),
    ],
)  # fmt: skip
def test_mistakes_in_what_is_set(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        _database(tmp_path / "t.csv", "k,v\n1,2\n", **options)


def test_csv_is_for_csv(tmp_path: Path) -> None:
    table = pa.table({"k": [1], "v": [2]})
    with pytest.raises(ValueError, match="csv= is for CSV files; got Table"):
        qkv.Database(table, key="k", value="v", csv={"delimiter": ";"})
    import pyarrow.parquet as pq

    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"csv= is for CSV files; got 't.parquet'"):
        qkv.Database(tmp_path / "t.parquet", key="k", value="v", csv={"delimiter": ";"})
    (tmp_path / "none.csv").write_text("")
    with pytest.raises(ValueError, match=r"^'none.csv' "):
        qkv.Database(tmp_path / "none.csv", key="k", value="v")
    (tmp_path / "x.parquet.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a table's name must end in .*; got 'x.parquet.gz'"):
        qkv.Database(tmp_path / "x.parquet.gz", key="k", value="v")


def test_many_rows_come_in_their_order(tmp_path: Path) -> None:
    rows = 300_000
    numbers = np.arange(rows)
    path = tmp_path / "t.csv"
    path.write_text("k,v\n" + "\n".join(f"{n % 7},{n}" for n in numbers) + "\n")
    answer = qkv.Database(path, key="k", value="v").query(3, top=3)
    assert [row["v"] for row in answer.rows] == [3, 10, 17]
    assert answer.value == numbers[numbers % 7 == 3].mean()
