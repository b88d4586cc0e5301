"""Reading pairs: what is used, what is left out, and what is said of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from qkv.translate.data.sources import Sources, held_out
from qkv.translate.data.text import (
    Corpus,
    Pair,
    SkippedLines,
    normalized,
    read_pairs,
    read_parallel,
)


def write(path: Path, *lines: bytes) -> Path:
    content = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["fra.txt", "fra.txt.gz"])
def test_pairs_are_read_and_bad_lines_are_named(tmp_path: Path, name: str) -> None:
    path = write(
        tmp_path / name,
        b"\xef\xbb\xbfGo.\tVa\xe2\x80\xaf!",  # a mark of order, a narrow no-break space
        b"Hi.\tSalut !\tCC-BY 2.0 (France)",
        b"no tab",
        b"Run!\t ",
        b"caf\xe9\tcafe",
        b"x" * 10_001 + b"\ty",
        b"Stop!\tArr\xc3\xaate !\r",
    )
    corpus = read_pairs(path)
    assert corpus.pairs == [Pair("Go.", "Va !"), Pair("Hi.", "Salut !"), Pair("Stop!", "Arrête !")]
    assert corpus.lines == [1, 2, 7]
    assert len(corpus.skipped) == 4
    assert str(corpus.skipped) == (
        "1 without a tab (line 3); 1 with an empty side (line 4); 1 not UTF-8 (line 5); "
        "1 of more than 10,000 characters (line 6)"
    )


def test_many_bad_lines_are_counted_and_the_first_named() -> None:
    skipped = SkippedLines({"without a tab": list(range(3, 1203))})
    assert str(skipped) == "1,200 without a tab (lines 3, 4, 5, 6, 7, …)"


def test_parallel_files(tmp_path: Path) -> None:
    source = write(tmp_path / "a.en.gz", b"one", b"", b"three")
    target = write(tmp_path / "a.de", b"eins", b"zwei", b"drei")
    corpus = read_parallel(source, target)
    assert corpus.pairs == [Pair("one", "eins"), Pair("three", "drei")]
    assert corpus.skipped.lines == {"with an empty side": [2]}


@pytest.mark.parametrize("more", ["source", "target"])
def test_files_of_different_lengths_are_an_error(tmp_path: Path, more: str) -> None:
    longer, shorter = write(tmp_path / "l", b"a", b"b"), write(tmp_path / "s", b"a")
    files = (longer, shorter) if more == "source" else (shorter, longer)
    with pytest.raises(ValueError, match=r"must have as many lines; s ends after 1 and l does not"):
        read_parallel(*files)


def test_a_file_without_a_pair_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at least one pair of sentences; got none: 1 without"):
        read_pairs(write(tmp_path / "x", b"nothing"))


def test_forms_of_normalisation() -> None:
    assert normalized("ﬁ e\u0301", "nfc") == "ﬁ é"
    assert normalized("ﬁ e\u0301", "nfkc") == "fi é"
    assert normalized("e\u0301  x", "none") == "e\u0301 x"
    with pytest.raises(ValueError, match=r"normalization must be one of nfc, nfkc, none"):
        normalized("x", "nfd")  # type: ignore[arg-type]


def test_no_source_sentence_stands_on_both_sides_of_the_split() -> None:
    pairs = [Pair(f"s{i % 40}", f"t{i}") for i in range(100)]
    training, valid = held_out(Corpus(pairs, list(range(1, 101)), SkippedLines()), share=0.1)
    assert len({pair.source for pair in valid}) == 4
    assert not {pair.source for pair in valid} & {pair.source for pair in training.pairs}
    assert len(training.pairs) + len(valid) == 100
    assert all(pairs[line - 1] == pair for line, pair in zip(*training[1::-1], strict=True))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "training needs source and target, or pairs, or demo, and one of them; got none"),
        ({"pairs": "a", "demo": "dates"}, "one of them; got pairs and demo"),
        ({"source": "a"}, "source and target must be given together"),
        ({"pairs": "a", "valid_source": "b"}, "valid_source and valid_target must be given"),
        ({"demo": "times"}, "demo must be dates; got 'times'"),
    ],
)
def test_sources_that_do_not_fit_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Sources(**options)  # type: ignore[arg-type]
