"""`qkv query`: words to an answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from qkv.cli import app
from qkv.table.samples import SALARIES, STUDENTS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both sample tables in the working directory, one of them as Parquet."""
    shutil.copy(STUDENTS, tmp_path)
    pq.write_table(pyarrow.csv.read_csv(SALARIES), tmp_path / "salaries.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def ask(*words: str) -> str:
    result = CliRunner().invoke(app, ["query", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_hard_look_up(folder: Path) -> None:
    told = ask("students.csv", "--key", "name", "--value", "major", "John Doe")
    assert "name = John Doe  →  major psychology" in told
    assert "no major found" in ask("students.csv", "--key", "name", "--value", "major", "Jon Doe")


def test_a_soft_one_drawn(folder: Path) -> None:
    told = ask(
        *("salaries.parquet", "--key", "gpa", "--value", "salary", "3.5"),
        *("--similarity", "gaussian", "--bandwidth", "0.1", "--rows", "5", "--plot", "answer.png"),
    )
    assert "gpa = 3.5  →  salary 70,648" in told
    assert len(told.splitlines()) == 3 + 5
    assert (folder / "answer.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_a_list_of_objects(folder: Path) -> None:
    told = ask(
        *("salaries.parquet", "--key", "gpa", "--value", "salary", "3.5", "9", "--json"),
        *("--similarity", "boxcar", "--bandwidth", "0.1", "--rows", "2", "--where", "year >= 2021"),
    )
    first, second = json.loads(told)
    assert list(first) == [
        "query", "value", "std", "interval", "distribution", "effective_rows", "rows", "plan",
    ]  # fmt: skip
    assert first["query"] == {"gpa": 3.5}
    assert first["interval"][0] < first["value"] < first["interval"][1]
    assert [sorted(row) for row in first["rows"]] == [
        ["field", "gpa", "salary", "weight", "year"]
    ] * 2
    assert first["plan"]["where"] == "year >= 2021"
    assert second["value"] is None
    assert second["rows"] == []


def test_queries_from_a_file_to_a_file(folder: Path) -> None:
    (folder / "asked.csv").write_text("who,gpa,field\n" + "a,3.5,civil\nb,3.0,software\n" * 7)
    how = [
        "--similarity",
        "gaussian",
        "--similarity",
        "equal",
        "--bandwidth",
        "0.2",
        "--bandwidth",
        "-",
    ]
    told = ask(
        *("salaries.parquet", "--key", "gpa", "--key", "field", "--value", "salary"),
        *(*how, "--queries", "asked.csv", "--out", "answers.parquet"),
    )
    assert told == "14 answers in answers.parquet\n"
    answers = pq.read_table("answers.parquet")
    assert answers["query.field"].to_pylist() == ["civil", "software"] * 7
    single = json.loads(
        ask(
            "salaries.parquet",
            "--key",
            "gpa",
            "--key",
            "field",
            "--value",
            "salary",
            *how,
            "3.5,civil",
            "--json",
        )
    )
    assert answers["value"][0].as_py() == pytest.approx(single[0]["value"])
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_demo_and_its_plan(folder: Path) -> None:
    told = ask("--demo")
    assert "psychology" in told
    assert "70,648" in told
    fuzzy = ask("--demo", "--key", "name", "--value", "major", "Jhon Doe", "--similarity", "fuzzy")
    assert "psychology" in fuzzy
    plan = ask("salaries.parquet", "--key", "gpa", "--value", "salary", "3.5", "--explain")
    assert "reads 1 of 1 row groups" in plan
    assert "not read yet" in plan


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--demo", "--key", "gpa", "--value", "salary", "3.x"],
            "column 'gpa' \\(double\\) holds a number; '3.x' is none",
        ),
        (["students.csv", "John"], "query needs --key and --value"),
        (["--key", "a", "--value", "b"], "query needs a source"),
        (["students.csv", "--key", "name", "--value", "major"], "query needs something to ask"),
        (
            ["--demo", "--key", "gpa", "--value", "major", "3"],
            "no sample table has the columns gpa, major",
        ),
        (
            ["--demo", "--key", "gpa", "--value", "salary", "3", "--bandwidth", "wide"],
            "--bandwidth must be a number or '-'",
        ),
        (
            ["--demo", "--key", "gpa", "--key", "field", "--value", "salary", "3"],
            "a key for each of gpa, field; got '3'",
        ),
        (
            ["--demo", "--key", "gpa", "--value", "salary", "3", "--out", "a.xls"],
            "--out must end in .parquet or .csv",
        ),
        (
            ["--demo", "--key", "gpa", "--value", "salary", "--queries", "students.csv"],
            "'students.csv' must have a column 'gpa'",
        ),
    ],
)
def test_mistakes(words: list[str], message: str, folder: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        CliRunner().invoke(app, ["query", *words], catch_exceptions=False)
