"""`qkv join`: words to a joined file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import qkv
from qkv.cli import app
from qkv.table import soft_join


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables in the working directory."""
    (tmp_path / "a.csv").write_text(
        "name,date,n=1\nACME Corp,2024-01-03,1\nGlobex,2024-01-05,2\n,2024-01-06,3\n",
        encoding="utf-8",
    )
    days = pa.array([19725, 19730, 19727], pa.int32()).cast(pa.date32())
    firms = ["Acme Corp.", "ACME Corp", "Globexx"]
    table = pa.table({"name": firms, "date": days, "price": [7.5, 3.0, 4.0]})
    pq.write_table(table, tmp_path / "b.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["join", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_a_join_is_written_whole(folder: Path, suffix: str) -> None:
    told = run(
        "a.csv", "b.parquet", "--on", "name:fuzzy", "--on", "date:gaussian:3", "--take", "price",
        "--cutoff", "0.7", "--out", f"joined.{suffix}",
    )  # fmt: skip
    assert "2 of 3 rows matched" in told
    path = folder / f"joined.{suffix}"
    if suffix == "csv":
        joined = pyarrow.csv.read_csv(path)
    else:
        joined = pq.read_table(path) if suffix == "parquet" else pa.ipc.open_file(path).read_all()
    expected = soft_join(
        "a.csv", "b.parquet", on={"name": "fuzzy", "date": qkv.Gaussian(3)}, take="price",
        cutoff=0.7,
    )  # fmt: skip
    assert joined["price"].to_pylist() == expected["price"].to_pylist() == [7.5, 4.0, None]
    assert joined["weight"].to_pylist() == pytest.approx(expected["weight"].to_pylist())
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "b.parquet", path.name]


def test_rows_are_shown_where_nothing_is_written(folder: Path) -> None:
    told = run("a.csv", "b.parquet", "--on", "date:nearest", "--top", "0", "--take", "price")
    assert "effective_rows" in told
    assert "ACME Corp" in told
    assert "3 of 3 rows matched" in told


def test_some_rows_of_either_table(folder: Path) -> None:
    words = ["a.csv", "b.parquet", "--on", "date:nearest", "--take", "price", "--out", "c.parquet"]
    run(*words, "--where", "price < 7", "--where-left", "date > '2024-01-03'")
    joined = pq.read_table("c.parquet")
    assert joined["n=1"].to_pylist() == [2, 3]
    assert joined["price"].to_pylist() == [4.0, 4.0]
    assert "rows where price < 7.0" in run(*words, "--where", "price < 7", "--explain")


def test_columns_of_other_names(folder: Path) -> None:
    table = pq.read_table("b.parquet").rename_columns(["company", "n=1", "price"])
    pq.write_table(table.drop_columns("n=1").append_column("n=1", pa.array([1, 2, 3])), "c.parquet")
    told = run("a.csv", "c.parquet", "--on", "name=company:fuzzy", "--explain")
    assert "compares name = company: fuzzy" in told
    assert "compares n=1: boxcar, bandwidth 2" in run(
        "a.csv", "c.parquet", "--on", "n=1:boxcar:2", "--explain"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "name"], "--on must be COLUMN:SIMILARITY"),
        (["--on", "name:3"], "--on must be COLUMN:SIMILARITY"),
        (["--on", "name:fuzzy", "--on", "name:equal"], "--on must name each column once"),
        (["--on", "name:fuzzy", "--out", "x.txt"], "--out must end in .parquet, .csv or .arrow"),
        (["--on", "name:fuzy"], "did you mean 'fuzzy'"),
        (["--on", "name:equal:2"], "similarity 'equal' of column 'name' has no bandwidth"),
    ],
)
def test_mistakes(folder: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, ["join", "a.csv", "b.parquet", *words], catch_exceptions=False)
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "b.parquet"]
