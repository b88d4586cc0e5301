"""The table room: samples, own files and what --open names."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from explored import _MAIN, Open, Server, run_command, run_python, served
from playwright.sync_api import expect

import qkv
from qkv.table.samples import SALARIES

HOSTILE = '<img src=x onerror="alert(1)">'


def rows() -> list[tuple[float, float, int]]:
    lines = SALARIES.read_text().splitlines()[1:]
    parts = [line.split(",") for line in lines]
    return [(float(gpa), float(salary), int(year)) for gpa, salary, _, year in parts]


def test_the_answer_is_the_weighted_mean_of_the_rows(server: Server) -> None:
    said = server.answer("table/ask", {"query": "3.5", "bandwidth": 0.1, "where": "year >= 2020"})
    kept = [(gpa, salary) for gpa, salary, year in rows() if year >= 2020]
    weights = [math.exp(-(((gpa - 3.5) / 0.1) ** 2) / 2) for gpa, _ in kept]
    mean = sum(w * salary for w, (_, salary) in zip(weights, kept, strict=True)) / sum(weights)
    assert said["value"] == pytest.approx(mean)
    assert said["effective"] == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
    assert said["interval"][0] < mean < said["interval"][1]
    heaviest = sorted(weights, reverse=True)[:5]
    assert [row["weight"] for row in said["rows"][:5]] == pytest.approx(
        [weight / sum(weights) for weight in heaviest]
    )
    assert "year >= 2020" in said["plan"]


STUDENTS = {"source": "students", "key": "name", "value": "major"}
QUESTIONS = [
    {"query": "3.5", "bandwidth": 0.1},
    {"query": "3.2", "similarity": "epanechnikov", "where": "year >= 2020 and field = 'civil'"},
    {**STUDENTS, "similarity": "fuzzy", "query": "Jon Do"},
    {**STUDENTS, "key": "joined", "value": "year", "query": "2023-01-01", "bandwidth": 90},
    {"query": "3.4", "bandwidth": 0.2, "weight": "year", "decay": "year", "half_life": "1.5"},
    {"query": "3.4", "bandwidth": 0.2, "also": [
        {"key": "field", "query": "civil", "similarity": "fuzzy", "bandwidth": 0.3},
        {"key": "year", "query": "2021", "similarity": "laplacian", "bandwidth": 2}]},
    {**STUDENTS, "similarity": "fuzzy", "query": "Jon, Do", "value": "year", "also": [
        {"key": "major", "query": 'a "b", c', "similarity": "fuzzy", "bandwidth": None}]},
    {**STUDENTS, "key": "year", "value": "year", "query": "2", "bandwidth": 1, "decay": "joined",
     "half_life": "90d", "as_of": "2023-06-01"},
]  # fmt: skip


@pytest.mark.parametrize("body", QUESTIONS)
def test_python_and_command_give_the_same(server: Server, body: dict[str, object]) -> None:
    said = server.answer("table/ask", body)
    answer = run_python(said["python"])["answer"]
    wanted = pytest.approx(said["value"]) if isinstance(said["value"], float) else said["value"]
    assert answer.value == wanted
    assert answer.effective_rows == pytest.approx(said["effective"])
    assert json.loads(run_command(f"{said['command']} --json"))[0]["value"] == wanted


def test_several_keys_multiply_and_rows_age(server: Server) -> None:
    body = {"query": "3.4", "bandwidth": 0.2, "decay": "year", "half_life": "1.5", "also": [
        {"key": "field", "query": "civil", "similarity": "equal", "bandwidth": None}]}  # fmt: skip
    said = server.answer("table/ask", body)
    lines = [line.split(",") for line in SALARIES.read_text().splitlines()[1:]]
    kept = [(float(g), float(v), int(year)) for g, v, field, year in lines if field == "civil"]
    weights = [
        math.exp(-(((g - 3.4) / 0.2) ** 2) / 2) * 2 ** ((y - 2024) / 1.5) for g, _, y in kept
    ]
    mean = sum(w * v for w, (_, v, _) in zip(weights, kept, strict=True)) / sum(weights)
    assert said["value"] == pytest.approx(mean)
    assert said["columns"][:3] == ["gpa", "field", "salary"]


def test_each_group_answers(server: Server) -> None:
    body = {"query": "3.5", "bandwidth": 0.1, "by": "field"}
    said = server.answer("table/ask", body)
    assert said["of"] == len(said["groups"]) == 4
    for group in said["groups"]:
        alone = {**body, "by": "", "where": f"field = '{group['group']}'"}
        assert group["value"] == pytest.approx(server.answer("table/ask", alone)["value"])
    answer = run_python(said["python"])["answer"]
    assert {each["group"]: each["value"] for each in said["groups"]} == pytest.approx(
        {name: each.value for name, each in answer.items()}
    )
    told = json.loads(run_command(f"{said['command']} --json"))[0]["groups"]
    assert {each["group"]["field"] for each in told} == set(answer)
    lines = server.answer("table/curve", {**body, "low": 3.0, "high": 4.0})["lines"]
    assert {line["group"] for line in lines} == set(answer)
    assert lines[0]["value"][50] == pytest.approx(answer[lines[0]["group"]].value)


def test_the_curve_is_the_same_question_along_a_grid(server: Server) -> None:
    curve = server.answer("table/curve", {"low": 3.0, "high": 4.0, "bandwidth": 0.1})
    for place in (0, 37, 100):
        said = server.answer("table/ask", {"query": repr(curve["grid"][place]), "bandwidth": 0.1})
        assert curve["lines"][0]["value"][place] == pytest.approx(said["value"])


@pytest.mark.parametrize(
    ("action", "body", "sentence"),
    [
        ("ask", {"query": "soon"}, "soon"),
        ("ask", {"where": "year >"}, "where"),
        ("ask", {"where": "import os"}, "where"),
        ("ask", {"key": "nothing"}, "nothing"),
        (
            "ask",
            {"source": "../etc/passwd"},
            "that table is no longer here: upload its file again",
        ),
        ("ask", {"source": "open"}, "no table was opened: start with `qkv explore --open FILE`"),
        ("ask", {"also": [{"key": "gpa"}]}, "each key must be another column; got gpa, gpa"),
        ("ask", {"also": [{}] * 4}, "also must be a list of at most 3; got"),
        ("ask", {"decay": "year"}, "the half-life must be a number or such as 90d; there is none"),
        ("ask", {"weight": "field"}, "weight must name a column of numbers; 'field' is string"),
        ("ask", {"by": "nothing"}, "nothing"),
        ("curve", {"also": [{"key": "field"}]}, "a curve goes along one key"),
        ("curve", {"low": 4.0, "high": 3.0}, "the range must go upwards; got 4 to 3"),
        (
            "curve",
            {"similarity": "equal"},
            "a curve needs a kernel: equal keys give no answers in between",
        ),
    ],
)
def test_mistakes_get_one_sentence(
    server: Server, action: str, body: dict[str, object], sentence: str
) -> None:
    status, said = server.ask(f"table/{action}", body)
    assert (status, list(said)) == (400, ["error"])
    assert sentence in said["error"]
    assert "\n" not in said["error"]


def test_uploads_are_found_by_what_they_hold(server: Server) -> None:
    content = b"day;price\n2024-01-01;1,5\n2024-01-02;2,5\n2024-01-03;4,5\n"
    status, said = server.upload(content)
    assert status == 200
    assert server.upload(content) == (200, said)
    columns = server.answer("table/columns", {"source": said["source"]})
    assert [(each["name"], each["kind"]) for each in columns["columns"]] == [
        ("day", "time"), ("price", "number"),
    ]  # fmt: skip
    body = {"source": said["source"], "key": "day", "value": "price", "query": "2024-01-02"}
    assert server.answer("table/ask", {**body, "bandwidth": 1e-3})["value"] == pytest.approx(2.5)


def test_groups_beyond_the_limit_are_refused(server: Server) -> None:
    _, said = server.upload(("k,v\n" + "".join(f"{i},{i}\n" for i in range(2001))).encode())
    body = {"source": said["source"], "key": "v", "value": "v", "query": "5", "by": "k"}
    assert server.ask("table/ask", body) == (
        400, {"error": "by must name a column of at most 2,000 different entries; 'k' has 2,001"},
    )  # fmt: skip


def test_rows_beyond_the_limit_are_refused(server: Server) -> None:
    status, said = server.upload(b"x,y\n" + b"1,2\n" * 200_001)
    assert status == 400
    assert "it has more than the 200,000 rows" in said["error"]


def test_asking_by_hand(open_page: Open) -> None:
    page = open_page("/table")
    facts = page.locator(".facts")
    expect(facts).to_contain_text("salary 70,648")
    ask = page.get_by_label("Ask for")
    ask.fill("3.0")
    ask.press("Enter")
    expect(facts).to_contain_text("gpa 3.0")
    page.get_by_label("Where").fill("year >= 2023")
    page.get_by_label("Where").press("Enter")
    expect(page.get_by_label("The plan")).to_contain_text("year >= 2023")
    page.get_by_label("Similarity", exact=True).select_option("equal")
    ask.fill("3.475")
    ask.press("Enter")
    expect(facts).to_contain_text("no row has weight")
    page.go_back()
    page.go_back()
    expect(facts).to_contain_text("gpa 3.0")
    page.get_by_label("Move the query").focus()
    page.keyboard.press("End")
    expect(facts).to_contain_text("gpa 4")
    page.get_by_label("Choose the bandwidth for me").check()
    expect(page.get_by_label("The plan")).to_contain_text("by leave-one-out")
    page.get_by_role("button", name="nothing at all").click()
    expect(page.locator(".because")).to_contain_text("Yes.")
    page.get_by_role("button", name="Surprise: a name misspelt").click()
    expect(facts).to_contain_text("major psychology")


def test_own_files_with_hostile_names(open_page: Open) -> None:
    page = open_page("/table")
    facts = page.locator(".facts")
    expect(facts).to_contain_text("salary")
    drop = page.locator("input[type=file]")
    quoted = HOSTILE.replace('"', '""')
    rows = [f"{i},{i * i},{HOSTILE.replace(chr(34), '')}" for i in range(40)]
    content = "\n".join([f'"{quoted}",cost,note', *rows])
    drop.set_input_files(
        {"name": f"{HOSTILE}.csv", "mimeType": "text/csv", "buffer": content.encode()}
    )
    expect(page.get_by_label("Key", exact=True)).to_have_value(HOSTILE)
    expect(facts).to_contain_text("cost")
    expect(page.locator("table.data")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("img").count() == 0
    drop.set_input_files({"name": "bad.csv", "mimeType": "text/csv", "buffer": b"\x00\x01"})
    expect(page.locator(".trouble")).to_have_text("The file is neither CSV nor Parquet.")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_label("Key", exact=True)).to_have_value(HOSTILE)
    page.goto(re.sub("source=[0-9a-f]+", "source=0123456789abcdef", address))
    expect(page.locator(".trouble")).to_have_text(
        "That table is no longer here: upload its file again."
    )


def test_a_file_and_a_database_are_opened(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.sql(f"create table pay as from '{SALARIES}'")
    body = {"source": "open", "query": "3.5", "bandwidth": 0.1}
    wanted = qkv.Database(SALARIES, key="gpa", value="salary").query(
        3.5, similarity="gaussian", bandwidth=0.1
    )
    for arguments in ([str(path), "--table", "pay"], [str(SALARIES)]):
        with served("--open", *arguments) as server:
            assert server.send("GET", "/")[2]["location"] == "/table"
            names = [each["name"] for each in server.answer("table/columns", body)["columns"]]
            assert names == ["gpa", "salary", "field", "year"]
            said = server.answer("table/ask", body)
            assert said["value"] == pytest.approx(wanted.value)
            assert run_python(said["python"])["answer"].value == pytest.approx(wanted.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--open", "nowhere.csv"], "--open must name a file or folder that exists"),
        (["--table", "pay"], "--table names a table of the database given with --open"),
        (["--open", "postgresql://localhost/x"], "--open of a database needs --table"),
        (["--open", str(SALARIES), "--table", "x"], "--table is for .duckdb files and"),
        (["--host", "256.0.0.1"], "cannot listen at 256.0.0.1:"),
    ],
)
def test_bad_arguments_end_the_command_with_one_line(arguments: list[str], sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, "explore", "--no-browser", *arguments],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
