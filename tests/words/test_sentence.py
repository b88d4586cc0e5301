"""A sentence's words, each the query in turn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import qkv
from qkv.cli import app
from qkv.words import WordVectors
from qkv.words.pretrained import minilm, minilm_tokenizer
from qkv.words.sentence import by_minilm, by_vectors, words_of

SENTENCE = "When he saw his owner, the dog was happy, so he wagged his tail"
WORDS = [
    "When",
    "he",
    "saw",
    "his",
    "owner",
    "the",
    "dog",
    "was",
    "happy",
    "so",
    "he",
    "wagged",
    "his",
    "tail",
]


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    known = sorted({word.lower() for word in WORDS})
    return WordVectors(known, np.random.default_rng(0).normal(size=(len(known), 7)))


def test_words_are_what_stands_between_punctuation() -> None:
    assert [word.text for word in words_of("Don't — the well-known naïve dog's 3.5!")] == [
        "Don't", "the", "well-known", "naïve", "dog's", "3", "5",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"sentence must hold at least one word; got '\?!'"):
        words_of("?!")


SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "scaled_dot": lambda q, k: q @ k / 7**0.5,
    "cosine": lambda q, k: q @ k / np.linalg.norm(q) / np.linalg.norm(k),
    "euclidean": lambda q, k: -((q - k) ** 2).sum(),
    "gaussian": lambda q, k: -((q - k) ** 2).sum() / 2,
}


@pytest.mark.parametrize("similarity", SCORES)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 5.0])
def test_by_vectors_equals_a_loop(
    vectors: WordVectors, similarity: str, temperature: float
) -> None:
    looking = by_vectors(SENTENCE, similarity, temperature, vectors)
    assert looking.words == WORDS
    x = [vectors[word] for word in WORDS]
    scores = np.array([[SCORES[similarity](q, k) / temperature for k in x] for q in x])
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(looking.weights, expected, atol=1e-12)


def test_a_word_without_a_vector_is_left_out_and_told(vectors: WordVectors) -> None:
    looking = by_vectors("the xyzzy dog", vectors=vectors)
    assert looking.words == ["the", "dog"]
    assert looking.notes[1] == "left out, for lack of a vector: xyzzy"
    with pytest.raises(ValueError, match="must hold a word that has a vector; got 'xyzzy'"):
        by_vectors("xyzzy", vectors=vectors)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"temperature must be above 0; got {wrong}"):
            by_vectors(SENTENCE, temperature=wrong, vectors=vectors)


def test_kernels_that_vanish_at_a_temperature(vectors: WordVectors) -> None:
    looking = by_vectors(SENTENCE, "boxcar", 0.5, vectors)
    np.testing.assert_allclose(looking.weights.sum(-1), 1)  # each at least meets itself


@pytest.fixture(scope="module")
def _needs_minilm() -> None:
    try:
        minilm_tokenizer()
    except ImportError as missing:
        pytest.skip(str(missing))


@pytest.mark.usefixtures("_needs_minilm")
def test_by_minilm_equals_a_loop_over_its_weights() -> None:
    encoding = minilm_tokenizer().encode(SENTENCE)
    with torch.no_grad():
        layers = minilm().weights(torch.tensor([encoding.ids]))
    tokens = layers[5][0, 11].double().numpy()
    spans = [match.span() for match in re.finditer(r"\w+", SENTENCE)]
    pieces = [
        [t for t, (a, b) in enumerate(encoding.offsets) if b > a and start <= a and b <= stop]
        for start, stop in spans
    ]
    assert [len(piece) for piece in pieces].count(2) == 1  # wa ##gged
    looking = by_minilm(SENTENCE, 5, 11)
    assert looking.words == WORDS
    for query, row in zip(pieces, looking.weights, strict=True):
        each = []
        for token in query:
            got = np.array([tokens[token][key].sum() for key in pieces])
            each.append(got / got.sum())
        np.testing.assert_allclose(row, np.mean(each, axis=0), atol=1e-6)
    inside = [token for piece in pieces for token in piece]
    hidden = 1 - tokens[inside][:, inside].sum(-1).mean()
    assert f"hidden, {hidden:.0%} of the attention" in looking.notes[1]


@pytest.mark.usefixtures("_needs_minilm")
def test_layers_and_heads() -> None:
    whole = by_minilm(SENTENCE)
    assert whole.every.shape == (6, 12, 14, 14)
    np.testing.assert_allclose(whole.weights, whole.every[5].mean(0))
    np.testing.assert_allclose(by_minilm(SENTENCE, head=3).weights, whole.every[5, 3], atol=1e-6)
    np.testing.assert_allclose(by_minilm(SENTENCE, 2, 7).every, whole.every, atol=1e-6)
    happy = whole.every[5, 11][whole.of("happy")[0]]
    assert [WORDS[key] for key in np.argsort(-happy)[:3]] == ["tail", "wagged", "dog"]
    for options, text in (
        ({"layer": 6}, "layer must be between 0 and 5; got 6"),
        ({"head": -1}, "head must be between 0 and 11; got -1"),
    ):
        with pytest.raises(ValueError, match=text):
            by_minilm(SENTENCE, **options)
    with pytest.raises(ValueError, match="at most 512 pieces of words; it has more"):
        by_minilm("dog " * 600)


# --- the command


def qkv_sentence(*words: str) -> str:
    result = CliRunner().invoke(app, ["sentence", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def _small_vectors(vectors: WordVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.words.sentence.glove", lambda: vectors)


@pytest.mark.usefixtures("_small_vectors")
def test_the_matrix_in_the_terminal(vectors: WordVectors) -> None:
    out = qkv_sentence(SENTENCE, "--similarity", "cosine", "--temperature", "0.2")
    lines = out.splitlines()
    assert lines[0].split() == WORDS
    assert [line.split()[0] for line in lines[1:15]] == WORDS
    expected = by_vectors(SENTENCE, "cosine", 0.2, vectors).weights
    assert lines[9].split()[1:] == [f"{w:.2f}"[1:] for w in expected[8]]
    assert lines[15] == "Cosine of word vectors (7 dimensions), temperature 0.2"


@pytest.mark.usefixtures("_small_vectors")
def test_one_query_as_bars_and_both_where_it_is_there_twice() -> None:
    out = qkv_sentence(SENTENCE, "--query", "Happy")
    assert "what happy, word 9, looks at:" in out
    assert out.count("█") > 20
    assert qkv_sentence(SENTENCE, "--query", "his").count("looks at:") == 2


@pytest.mark.usefixtures("_small_vectors")
def test_words_are_not_markup() -> None:
    assert "what dog, word 1" in qkv_sentence("dog [bold]was[/]", "--query", "dog")


@pytest.mark.usefixtures("_needs_minilm")
def test_a_head_of_minilm_in_the_terminal() -> None:
    out = qkv_sentence(SENTENCE, "--model", "minilm", "--layer", "5", "--head", "11")
    assert "MiniLM, layer 5, head 11" in out
    assert "marks and punctuation hidden" in out


@pytest.mark.usefixtures("_small_vectors")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--layer", "5"], "--layer belongs to --model"),
        (["--model", "bert"], "--model must be minilm or a folder; got 'bert'"),
        (["--model", "minilm", "--similarity", "dot"], "--similarity belongs to word vectors, not"),
        (["--query", "cat"], "query must be one of When, he, saw, his"),
        (["--similarity", "cosin"], "did you mean 'cosine'"),
        (["--temperature", "0"], "temperature must be above 0; got 0.0"),
    ],
)
def test_mistakes(options: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        qkv_sentence(SENTENCE, *options)


@pytest.mark.usefixtures("_small_vectors")
@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
@pytest.mark.parametrize("query", [[], ["--query", "happy"]])
def test_a_plot_is_drawn(ending: str, query: list[str], tmp_path: Path) -> None:
    path = tmp_path / f"matrix{ending}"
    qkv_sentence(SENTENCE, *query, "--plot", str(path))
    assert path.stat().st_size > 1000
    if ending == ".svg":
        assert path.read_text(encoding="utf-8").count("<path") > 20


@pytest.mark.usefixtures("_small_vectors")
def test_a_page_is_written(tmp_path: Path) -> None:
    path = tmp_path / "matrix.html"
    qkv_sentence(SENTENCE, "--html", str(path))
    page = path.read_text(encoding="utf-8")
    assert "wagged" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.usefixtures("_needs_minilm")
def test_a_page_of_every_layer_and_head(tmp_path: Path) -> None:
    path = tmp_path / "matrix.html"
    minilm = (SENTENCE, "--model", "minilm", "--html", str(path))
    said = qkv_sentence(*minilm)
    assert path.stat().st_size > qkv.words.sentence.LAYERS * qkv.words.sentence.HEADS * 14 * 14
    layer, head = qkv.summary.most_telling(by_minilm(SENTENCE).every)
    assert f"matrix.html, opens on layer {layer}, head {head}, the most informative" in said
    assert _opens_on(path) == (6, 12, {"layer": str(layer), "head": str(head)})
    for options, start in (
        (("--layer", "3", "--head", "7"), {"layer": "3", "head": "7"}),
        (("--layer", "3", "--pieces"), {"layer": "3", "head": "mean"}),
        (("--head", "0"), {"layer": "5", "head": "0"}),
    ):
        assert qkv_sentence(*minilm, *options).strip().endswith("matrix.html")
        assert _opens_on(path) == (6, 12, start)
    qkv_sentence(*minilm, "--pieces", "--rollout")
    assert _opens_on(path)[:2] == (1, 1)


def _opens_on(path: Path) -> tuple[int, int, object]:
    """How many layers and heads a page holds, and where it opens."""
    page = path.read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    return len(data["layers"]), len(data["heads"]), data["start"]
