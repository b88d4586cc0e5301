"""The command line: what it prints, and what it says to a mistake."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from qkv import benchmarks
from qkv.benchmarks import SUITES, Figure

TREE = Path(__file__).parents[1]


def qkv(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from qkv.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_reads_well() -> None:
    result = qkv("--help")
    assert result.returncode == 0
    words = "query regress sentence translate gallery explain warmup bench"
    for word in words.split():
        assert word in result.stdout


def test_version() -> None:
    assert qkv("--version").stdout.startswith("qkv 0.")


def _piped(*words: str) -> tuple[str, float]:
    """What a command writes into a pipe, and for how many seconds it was silent at most."""
    command = [sys.executable, "-m", "qkv", *words]
    told, longest, last = b"", 0.0, time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "COLUMNS": "80"}
    ) as running:
        assert running.stdout is not None
        while piece := os.read(running.stdout.fileno(), 65536):
            longest = max(longest, time.monotonic() - last)
            last = time.monotonic()
            told += piece
    assert running.returncode == 0
    return told.decode(), longest


def test_long_work_is_told_of_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.cli import gallery

    monkeypatch.setattr(gallery, "_SECONDS", 0.3)
    out = io.StringIO()
    with gallery._telling(Console(file=out, width=80), 5) as tell:
        tell(2, "dates")
        time.sleep(1.5)
    lines = out.getvalue().splitlines()
    assert lines[0] == "[2/5] dates"
    assert lines[1:3] == ["[2/5] dates …"] * 2


def test_gallery_shows_examples_in_eighty_columns_and_says_where_the_page_is(
    tmp_path: Path,
) -> None:
    told, longest = _piped("gallery", "database", "gpa", "tokens", "--out", str(tmp_path))
    assert longest < 6, told  # 3 seconds on a machine that does nothing else
    assert "psychology" in told
    assert "nothing found" in told
    assert "70,648" in told  # the Gaussian's answer to a GPA of 3.5
    assert "▂▅█▅▂" in told  # the weights over the keys, not cut off
    assert "Planned as: sdpa" in told
    assert (tmp_path / "index.html").as_uri() in told
    uncut = [line for line in told.splitlines() if "file://" not in line]
    assert max(map(len, uncut)) <= 80


def test_an_example_whose_package_is_missing_is_skipped_with_the_reason(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None; from qkv.cli import main; "
        f"sys.argv = ['qkv', 'gallery', 'database', 'convex', '--out', {str(tmp_path)!r}]; main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "skipped: " in result.stdout
    assert "1 example in" in result.stdout
    assert "Skipped: " in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        ["gallery", "nope"],
        ["explain", "--similarity", "gausian"],
        ["query", "missing.csv", "--key", "a", "--value", "b", "1"],
        ["regress", "missing.csv", "--x", "a", "--y", "b"],
        ["sentence", "a dog", "--similarity", "gausian"],
        ["view", "a dog", "--model", "missing"],
        ["bench", "nope"],
    ],
)
def test_a_mistake_is_told_before_anything_heavy_is_imported(words: list[str]) -> None:
    program = (
        "import sys; from qkv.cli import main\n"
        f"sys.argv = ['qkv', *{words!r}]\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'torch', 'pyarrow', 'matplotlib'} & {*sys.modules}, 'heavy'"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1, result.stderr


def test_names_that_are_checked_early_are_all_names() -> None:
    from qkv.cli.names import LEARNED, SIMILARITIES
    from qkv.similarity import NAMED, learned

    assert list(SIMILARITIES) == list(NAMED)
    assert all(learned(name, 3, 3, 5) is not None for name in LEARNED)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_signs_gets_the_nearest_ones(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "qkv", "query", "--demo", "--rows", "1"]
    result = subprocess.run(command, capture_output=True, env=environment, check=True)
    told = result.stdout.decode(encoding)
    assert "gpa = 3.5  ->  salary 70,648 " in told
    assert "####" in told


def test_where_no_key_is_equal_the_nearest_are_named(tmp_path: Path) -> None:
    (tmp_path / "flats.csv").write_text("size,rent\n40,800\n50,950\n60,1100\n90,1900\n")
    result = qkv("query", str(tmp_path / "flats.csv"), "--key", "size", "--value", "rent", "55")
    assert "no rent found" in result.stdout
    told = " ".join(result.stdout.split())
    assert "No size is equal to it. The nearest: 50, 60, 40." in told
    assert "--similarity gaussian" in told


def test_every_command_that_writes_a_file_says_so(tmp_path: Path) -> None:
    figure = tmp_path / "fit.png"
    result = qkv("query", "--demo", "--key", "gpa", "--value", "salary", "--similarity", "gaussian",
                 "--plot", str(figure), "3.5")  # fmt: skip
    assert figure.exists()
    assert f"figure: {figure}" in result.stderr


def test_interrupting_early_leaves_no_traceback() -> None:
    program = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from qkv.__main__ import main\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (130, "qkv: interrupted\n")


def test_help_fits_eighty_columns_and_keeps_its_brackets() -> None:
    told = qkv("sentence", "--help").stdout
    assert "[scaled_dot]" in told
    assert "<bool>" not in told
    assert max(map(len, told.splitlines())) <= 80
    plan = qkv("explain", "--similarity", "additive").stdout
    assert max(map(len, plan.splitlines())) <= 80


def test_the_doctor_says_what_is_there_and_what_is_missing() -> None:
    told = qkv("doctor").stdout
    for word in ("torch", "numba", "processor", "kernels", "cache", "plot", "translate"):
        assert word in told
    from qkv.optional_dependencies import EXTRAS, install, missing

    declared = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    ours = {"bench", "bench-translate", "test", "docs"}  # for those who work on qkv itself
    assert {*EXTRAS} == {*declared["optional-dependencies"]} - ours
    assert missing("plot") == []
    assert install("plot") == "pip install 'qkv[plot]'"  # nothing of it is missing


def test_what_an_extra_lacks_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv import optional_dependencies

    monkeypatch.setattr(optional_dependencies, "_installed", lambda name: name == "pyarrow")
    told = optional_dependencies.install("words")
    assert told == "pip install 'safetensors>=0.4' 'tokenizers>=0.20'"


def test_explain() -> None:
    result = qkv("explain", "--similarity", "additive", "--queries", "64", "--causal")
    assert result.returncode == 0
    told = " ".join(result.stdout.split())  # folded to the terminal's width
    assert "64 queries × 4,096 keys" in told
    assert "mask Causal()" in told
    assert "passed over" in told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gallery", "nope"], "qkv: an example must be one of database, gpa, convex"),
        (["explain", "--similarity", "gausian"], "did you mean 'gaussian'?"),
        (
            ["bench", "nope"],
            f"a benchmark must be one of {', '.join(SUITES)}; got",
        ),
        (["explain", "--queries", "0"], "Invalid value for '--queries'"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(words: list[str], text: str) -> None:
    result = qkv(*words)
    assert result.returncode == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_benchmark_is_shown_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from qkv.benchmarks import core

    figures = [
        Figure("quick", 1.0, "×", "≤ 1.05"),
        Figure("slow", 2.0, "×", "≥ 3"),
        Figure("x", 1, "s", ""),
    ]
    monkeypatch.setattr(core, "measure", lambda: iter(figures))
    benchmarks.run("core", Console(width=200), tmp_path / "figures.json")
    printed = capsys.readouterr().out
    assert "met" in printed
    assert "missed" in printed
    written = json.loads((tmp_path / "figures.json").read_text())
    assert [row["met"] for row in written["figures"]] == [True, False, None]


def test_a_benchmark_is_measured_by_parts() -> None:
    from rich.console import Console

    parts = "part of positions must be one of equal, alibi, learned"
    with pytest.raises(ValueError, match=rf"^{parts}; got 'x'$"):
        benchmarks.run("positions", Console(), None, "x")
    with pytest.raises(ValueError, match=r"^core is measured as a whole; got part 'x'$"):
        benchmarks.run("core", Console(), None, "x")
