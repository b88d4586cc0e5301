"""Bars of the page "Performance" say what its tables say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "performance.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def charts():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("charts", DOCS / "charts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["charts"] = module
    spec.loader.exec_module(module)
    return module


def test_bars_are_the_ratios_of_their_table(charts) -> None:  # type: ignore[no-untyped-def]
    page = (
        "| `qkv bench other`, a CPU, 2026-01-02 | |\n|---|---|\n| no | 9× faster |\n\n"
        "| `qkv bench this`, a CPU, 2026-01-02 | |\n|---|---|\n"
        "| sums, of many, against `a` / `b` | 62× / 16× faster, error 1e-8 |\n"
        "| … of few | 2.5× its time; 8× as much memory |\n"
        "| twice as many | 1.9× the time |\n| memory | 3 MB |\n"
    )
    assert charts.ratios(page, "qkv bench this") == [
        ("sums, of many, against a / b", 62.0),
        ("sums, of many, against a / b", 16.0),
        ("sums: of few", 0.4),
    ]


def test_every_table_has_its_command_processor_day_and_bars(charts) -> None:  # type: ignore[no-untyped-def]
    heads = re.findall(r"^\| `(qkv bench \w+)`(.*) \| \|$", PAGE, re.MULTILINE)
    assert len(heads) >= 7
    for command, more in heads:
        assert re.search(r"(AMD EPYC|Intel Xeon).*, 2\d{3}-\d\d-\d\d", more), command
    drawn = re.findall(r"^```\{chart\} (qkv bench \w+)$", PAGE, re.MULTILINE)
    assert len(drawn) >= 6
    for command in drawn:
        assert len(charts.ratios(PAGE, command)) >= 2
