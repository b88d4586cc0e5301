"""The page "Start here": its commands and blocks verbatim, and the answers that it documents."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "start.md"
BLOCKS = re.findall(r"```(none|sh|py|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_gives_the_answers_that_it_documents(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install transformers")
    kind, table = BLOCKS[0]
    assert kind == "none"
    (tmp_path / "flats.csv").write_text(table, encoding="utf-8")
    said, compared = "", 0
    for kind, block in BLOCKS[1:]:
        if kind == "text":
            assert said.split() == block.split()
            compared += 1
            continue
        words = ["-c", block] if kind == "py" else ["-m", *shlex.split(block)]
        result = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        said = result.stdout
    assert compared == 5
    assert (tmp_path / "dog.html").stat().st_size > 10_000
    assert (tmp_path / "layer.html").stat().st_size > 10_000
