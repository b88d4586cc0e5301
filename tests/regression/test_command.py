"""`qkv regress`: what it prints, draws, and says to a mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

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
        (["--x", "name", "--y", "salary"], "the column 'name' must hold numbers; got string"),
        (["--x", "gpa", "--y", "salary", "--kernel", "cube"], "kernel must be one of"),
        (["--x", "gpa", "--y", "salary", "--bandwidth", "-1"], "bandwidth must be positive"),
    ],
)
def test_mistakes(table: Path, words: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        CliRunner().invoke(app, ["regress", str(table), *words], catch_exceptions=False)


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    for name, text in (("none.csv", "there is no file"), ("notes.txt", "must end in .csv or")):
        path = tmp_path / name
        if name.endswith("txt"):
            path.write_text("x")
        with pytest.raises(ValueError, match=text):
            CliRunner().invoke(
                app, ["regress", str(path), "--x", "a", "--y", "b"], catch_exceptions=False
            )
