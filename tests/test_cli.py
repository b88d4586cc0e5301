"""The command line: what it prints, and what it says to a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qkv import benchmarks
from qkv.benchmarks import SUITES, Figure
from qkv.gallery import EXAMPLES


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


def test_gallery_shows_every_example_and_its_operator() -> None:
    result = qkv("gallery")
    assert result.returncode == 0, result.stderr
    for name in EXAMPLES:
        assert f"({name})" in result.stdout
    assert "psychology" in result.stdout
    assert "no major found" in result.stdout
    assert "70,648" in result.stdout  # the Gaussian's answer to a GPA of 3.5
    assert "└─ sdpa" in result.stdout
    assert "MiniLM, layer 5, head 11" in result.stdout


def test_explain() -> None:
    result = qkv("explain", "--similarity", "additive", "--queries", "64", "--causal")
    assert result.returncode == 0
    assert "64 queries × 4,096 keys" in result.stdout
    assert "mask Causal()" in result.stdout
    assert "passed over" in result.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gallery", "nope"], "qkv: an example must be one of hard_lookup, gpa, regression"),
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
