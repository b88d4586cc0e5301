"""`qkv query`: words to an answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import qkv
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


def test_negative_numbers_are_words(folder: Path) -> None:
    (folder / "t.csv").write_text("k,name,v\n-3,a,1\n-0.5,b,2\n-1e3,c,3\n4,d,4\n")
    asked = ("-3", "4", "-.5", "-1e3")
    for words in (
        ("t.csv", *asked, "--key", "k", "--value", "v", "--json"),
        ("t.csv", "--key", "k", "--json", *asked, "--value", "v"),
        ("--key", "k", "--value", "v", "--json", "--", "t.csv", *asked),
    ):
        assert [answer["value"] for answer in json.loads(ask(*words))] == [1, 4, 2, 3]
    pairs = ("t.csv", "-3,a", "--key", "k", "--key", "name", "--value", "v", "--json")
    assert json.loads(ask(*pairs))[0]["value"] == 1
    wide = ("t.csv", "--key", "k", "--value", "v", "-3", "--similarity", "gaussian")
    with pytest.raises(ValueError, match="bandwidth of column 'k' must be positive"):
        ask(*wide, "--bandwidth", "-3")
    unknown = CliRunner().invoke(app, ["query", *wide, "--simlarity", "boxcar"])
    assert unknown.exit_code == 2
    assert "No such option" in unknown.output


def test_how_a_file_is_written_can_be_said(folder: Path) -> None:
    (folder / "t.txt.csv").write_bytes("zip|preis\n01234|1.234,5\n99999|2,0\n".encode("utf-16"))
    how = ["--delimiter", "|", "--encoding", "utf-16", "--decimal", ",", "--thousands", "."]
    words = ["t.txt.csv", "--key", "zip", "--value", "preis", "--type", "zip=text", "01234"]
    (answer,) = json.loads(ask(*words, *how, "--json"))
    assert answer["value"] == 1234.5
    told = " ".join(answer["plan"]["notes"])
    assert "delimiter '|', encoding utf-16, decimal ',', thousands '.'" in told
    assert "zip text, preis number" in told
    (detected,) = json.loads(ask(*words, "--json"))
    assert detected["value"] == 1234.5
    with pytest.raises(ValueError, match="--type must be given as column=type; got 'zip'"):
        ask(*words, "--type", "zip")


def test_a_cutoff_on_the_command_line(folder: Path) -> None:
    words = ("students.csv", "--key", "name", "--value", "major", "Jo", "--similarity", "fuzzy")
    assert "no major found" in ask(*words, "--cutoff", "0.9")
    assert "no major found" not in ask(*words, "--cutoff", "0.1")


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


def test_a_line_of_queries_has_an_end(folder: Path) -> None:
    (folder / "long.csv").write_text("gpa\n1\n" + "2" * 2_000_000)
    with pytest.raises(ValueError, match=r"^'long.csv': line 3 is longer than 1,048,576 char"):
        ask("salaries.parquet", "--key", "gpa", "--value", "salary", "--queries", "long.csv")


def test_groups_weights_decay_and_several_values(folder: Path) -> None:
    asked = ["salaries.parquet", "--key", "gpa", "--value", "salary", "--value", "field", "3.5"]
    how = ["--similarity", "gaussian", "--bandwidth", "0.1", "--by", "year", "--weight", "gpa"]
    ageing = ["--decay", "year=2", "--as-of", "2022"]
    (told,) = json.loads(ask(*asked, *how, *ageing, "--json"))
    database = qkv.Database("salaries.parquet", key="gpa", value=["salary", "field"])
    groups = database.query(
        3.5, similarity="gaussian", bandwidth=0.1, by="year", weight="gpa", decay=("year", 2, 2022)
    )
    assert [own["group"]["year"] for own in told["groups"]] == list(groups)
    assert max(groups) == 2022
    first = told["groups"][0]["answer"]
    assert first["salary"]["value"] == groups[told["groups"][0]["group"]["year"]]["salary"].value
    assert "answers by year" in ask(*asked, *how, *ageing)
    ask(*asked, *how, "--out", "groups.csv")
    assert (folder / "groups.csv").read_text().startswith('"year","query.gpa","salary.value"')


def test_a_curve(folder: Path) -> None:
    words = ["salaries.parquet", "--key", "gpa", "--value", "salary", "--bandwidth", "0.1"]
    ask(*words, "--curve", "2, 4, 9", "--by", "field", "--plot", "c.png", "--out", "c.parquet")
    table = pq.read_table("c.parquet")
    assert table["query.gpa"].to_pylist()[:9] == np.linspace(2, 4, 9).tolist()
    assert (folder / "c.png").exists()
    assert len(json.loads(ask(*words, "--curve", "2,4,9", "--json"))["points"]) == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--curve", "2,4"], r"--curve must be FROM,TO,POINTS, such as '2,4,50'; got '2,4'"),
        (["--curve", "2,4,9", "3.5"], "--curve asks keys of its own; leave out other queries"),
        (["3.5", "--decay", "year"], "--decay must be given as column=half-life; got 'year'"),
        (["3.5", "--as-of", "2022"], "--as-of needs --decay, which says what ages"),
        (["3.5", "--by", "field", "--plot", "a.png"], "--plot draws one answer, or with --curve"),
    ],
)
def test_mistakes_with_groups_and_curves(folder: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask("salaries.parquet", "--key", "gpa", "--value", "salary", *words)
