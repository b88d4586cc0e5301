"""The page "Start here": its commands and blocks verbatim, and the answers that it documents."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest

from qkv.__main__ import main

PAGE = Path(__file__).parents[1] / "docs" / "start.md"
BLOCKS = re.findall(r"```(none|sh|py|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_gives_the_answers_that_it_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in this process: most of a command's time would be the import of torch."""
    pytest.importorskip("transformers", reason="pip install transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    kind, table = BLOCKS[0]
    assert kind == "none"
    (tmp_path / "flats.csv").write_text(table, encoding="utf-8")
    said, compared = "", 0
    for kind, block in BLOCKS[1:]:
        if kind == "text":
            assert said.split() == block.split()
            compared += 1
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # as they are to a user, not errors
            _run(kind, block, monkeypatch)
        said = capsys.readouterr().out
    assert compared == 5
    assert (tmp_path / "dog.html").stat().st_size > 10_000
    assert (tmp_path / "layer.html").stat().st_size > 10_000


def _run(kind: str, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "py":
        exec(compile(block, str(PAGE), "exec"), {"__name__": "__main__"})
        return
    words = shlex.split(block)
    assert words[0] == "qkv"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
