"""`qkv regress`: what it prints, draws, and says to a mistake."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import qkv
import qkv.regression
from qkv.cli import app


@pytest.fixture
def table(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    gpa = random.uniform(2, 4, 80)
    rows = [f"{g},{40 + 8 * g + random.standard_normal()},name" for g in gpa]
    path = tmp_path / "students.csv"
    path.write_text("\n".join(["gpa,salary,name", *rows, ",50,missing"]))
    return path


def test_fit_answers_and_figure(table: Path, tmp_path: Path) -> None:
    figure = tmp_path / "fit.png"
    words = [
        "regress",
        str(table),
        "--x",
        "gpa",
        "--y",
        "salary",
        "--at",
        "3.5",
        "--plot",
        str(figure),
    ]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "salary by gpa: gaussian, bandwidth" in result.stdout
    assert "n = 80" in result.stdout
    assert "LOO R²" in result.stdout
    assert "3.5" in result.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": np.arange(20), "b": np.arange(20) * 2.0}), path)
    words = ["regress", str(path), "--x", "a", "--y", "b", "--bandwidth", "0.5", "--at", "7"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "14" in result.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--x", "age", "--y", "salary"], "a column must be one of gpa, salary, name; got 'age'"),
        (["--x", "gpa", "--y", "name"], "the column 'name' must hold numbers; got string"),
        (["--x", "gpa", "--y", "salary", "--at", "3,4"], "entries of the column 'gpa'"),
        (
            ["--x", "gpa", "--x", "name", "--y", "salary", "--at", "3"],
            "one entry for each of gpa, name",
        ),
        (
            ["--x", "gpa", "--y", "salary", "--at", "3", "--queries", "q.csv"],
            "--at and --queries both",
        ),
        (["--x", "gpa", "--y", "salary", "--queries", "none.csv"], "there is no file 'none.csv'"),
        (["--x", "gpa", "--y", "salary", "--out", "a.txt"], "--out must end in .csv or .parquet"),
        (["--x", "gpa", "--y", "salary", "--kernel", "cube"], "kernel must be one of"),
        (["--x", "gpa", "--y", "salary", "--bandwidth", "-1"], "bandwidth must be positive"),
    ],
)
def test_mistakes(table: Path, words: list[str], text: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=text):
        CliRunner().invoke(app, ["regress", str(table), *words], catch_exceptions=False)


def test_files_as_they_are_written(table: Path, tmp_path: Path) -> None:
    """Delimiters, decimal commas, encodings and compression, as `qkv query` reads them."""
    plain = ["--x", "gpa", "--y", "salary", "--at", "3"]
    expected = CliRunner().invoke(app, ["regress", str(table), *plain], catch_exceptions=False)
    text = table.read_text().replace(",", ";").replace(".", ",").replace("name", "Größe")
    path = tmp_path / "deutsch.csv.gz"
    path.write_bytes(gzip.compress(text.encode("latin-1")))
    other = CliRunner().invoke(app, ["regress", str(path), *plain], catch_exceptions=False)
    assert other.stdout == expected.stdout


@pytest.mark.parametrize("degree", ["0", "1"])
def test_rows_that_lack_a_column_take_part(degree: str, tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    rows = [f"{i if i % 5 else ''},{i % 7 if i % 4 else ''},{3 * i}" for i in range(60)]
    path.write_text("\n".join(["a,b,y", *rows]))
    words = ["regress", str(path), "--x", "a", "--x", "b", "--y", "y", "--bandwidth", "5,4"]
    result = CliRunner().invoke(app, [*words, "--degree", degree, "--at", "31,3"])
    assert result.exit_code == 0, result.output
    assert "n = 57" in result.stdout  # three lack both
    knn = CliRunner().invoke(app, [*words[:-1], "knn", "--at", "31,3"])
    assert "n = 36" in knn.stdout


def test_what_the_search_cannot_tell_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("x,y\n1,2\n2,2\n3,2\n")
    result = CliRunner().invoke(app, ["regress", str(path), "--x", "x", "--y", "y"])
    assert "note: the examples do not determine the bandwidth" in result.stdout.replace("\n", " ")


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    for name, text in (("none.csv", "there is no file"), ("notes.txt", "must end in .csv, ")):
        path = tmp_path / name
        if name.endswith("txt"):
            path.write_text("x")
        with pytest.raises((ValueError, FileNotFoundError), match=text):
            CliRunner().invoke(
                app, ["regress", str(path), "--x", "a", "--y", "b"], catch_exceptions=False
            )


def _houses(n: int = 40) -> pa.Table:
    random = np.random.default_rng(0)
    size, kind = random.uniform(50, 150, n), random.choice(["flat", "house"], n)
    day = np.datetime64("2024-03-01") + random.integers(0, 100, n)
    price = 3 * size + 40 * (kind == "house") + random.standard_normal(n)
    return pa.table({"size": size, "kind": kind, "day": day, "price": price})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_several_columns_and_a_file_of_queries(tmp_path: Path, suffix: str) -> None:
    import pyarrow.csv

    rows = _houses()
    asked = rows.slice(0, 30).drop_columns(["price"]).append_column("id", pa.array(range(30)))
    write = pq.write_table if suffix == "parquet" else pyarrow.csv.write_csv
    table, queries, out = (tmp_path / f"{name}.{suffix}" for name in ("rows", "asked", "answers"))
    write(rows, table)
    write(asked, queries)
    words = ["regress", str(table), "--x", "size", "--x", "kind", "--x", "day", "--y", "price"]
    words += ["--bandwidth", "20,60"]
    result = CliRunner().invoke(
        app, [*words, "--queries", str(queries), "--out", str(out)], catch_exceptions=False
    )
    assert "price by size, kind, day: gaussian, bandwidth size 20, day 60, LOO R²" in result.stdout
    assert "30 rows:" in result.stdout
    found = pq.read_table(out) if suffix == "parquet" else pyarrow.csv.read_csv(out)
    assert found.column_names == ["size", "kind", "day", "id", "answer", "low", "high"]
    model = qkv.NadarayaWatsonRegressor(bandwidth=[20, 60], categorical="auto")
    model.fit(rows.drop_columns(["price"]), rows["price"].to_numpy())
    expected = model.predict(asked.drop_columns(["id"]))
    np.testing.assert_allclose(found["answer"].to_numpy(), expected, rtol=1e-9)
    result = CliRunner().invoke(app, [*words, "--queries", str(queries)], catch_exceptions=False)
    assert "20 of 30 rows; --out writes all" in result.stdout
    typed = CliRunner().invoke(app, [*words, "--at", "80,flat,2024-04-01"], catch_exceptions=False)
    assert "2024-04-01" in typed.stdout
    plain = CliRunner().invoke(app, words, catch_exceptions=False)
    assert plain.stdout.count("│ flat") + plain.stdout.count("│ house") == 7


def test_one_row_says_so(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("a,b\n1,2\n")
    words = ["regress", str(path), "--x", "a", "--y", "b", "--bandwidth", "1", "--at", "1"]
    with pytest.warns(qkv.regression.BandwidthWarning, match="the interval cannot be estimated"):
        result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "LOO R² needs two rows" in result.stdout
