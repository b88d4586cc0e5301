from __future__ import annotations

import numpy as np
import pytest
from rich.cells import cell_len

from qkv.visualization import terminal

WORDS = ["When", "he", "saw", "犬", "wagged"]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(5), size=5)


def test_a_wide_terminal_names_the_columns() -> None:
    lines = terminal.matrix(WEIGHTS, WORDS, WORDS, 80).plain.splitlines()
    assert lines[0].split() == WORDS
    assert len(lines) == 6
    assert lines[5].split() == ["wagged", *(f"{w:.2f}"[1:] for w in WEIGHTS[4])]
    assert len({cell_len(line) for line in lines}) == 1  # columns stand below each other


@pytest.mark.parametrize("width", [12, 20, 31, 80])
@pytest.mark.parametrize("words", [3, 5, 40, 200])
def test_no_line_is_wider_than_the_terminal(width: int, words: int) -> None:
    names = [f"word{i}" for i in range(words)]
    weights = np.full((2, words), 1 / words)
    table = terminal.matrix(weights, names[:2], names, width).plain
    assert all(cell_len(line) <= max(width, 12) for line in table.splitlines()[:-1])


def test_a_narrow_terminal_shows_every_cell_in_parts() -> None:
    lines = terminal.matrix(WEIGHTS, WORDS, WORDS, 20).plain.splitlines()
    assert lines[-1] == "in per cent"
    numbers = [cell for line in lines[:-1] for cell in line.split() if cell.isdigit()]
    heads = len(WORDS)
    rows = len([line for line in lines[:-1] if "wagged" in line]) * len(WORDS)
    assert len(numbers) == heads + rows + WEIGHTS.size
    assert f"{100 * WEIGHTS[4, 4]:.0f}" in numbers


def test_other_keys_are_told_by_their_numbers() -> None:
    table = terminal.matrix(np.ones((1, 2)) / 2, ["a"], ["first" * 3, "second" * 3], 20).plain
    assert table.splitlines()[-1].startswith("in per cent; keys: 1 firstfirst")


def test_bars_are_as_long_as_their_weights() -> None:
    lines = terminal.bars(np.array([0.5, 0.25, 0.0]), ["a", "bb", "c"], 30).plain.splitlines()
    assert [line[:2].strip() for line in lines] == ["a", "bb", "c"]
    counts = [line.count("█") for line in lines]
    assert counts == [22, 11, 0]
    assert all(cell_len(line) <= 30 for line in lines)


def test_nothing_to_show_is_shown() -> None:
    assert terminal.bars(np.zeros(2), ["a", "b"], 30).plain.count("█") == 0
    assert terminal.matrix(np.zeros((1, 1)), ["a"], ["b"], 30).plain.splitlines()[1] == "a .00"


def test_markup_in_words_is_text() -> None:
    assert "[red]" in terminal.matrix(np.ones((1, 1)), ["[red]"], ["[red]"], 80).plain


def test_next_to_nothing_has_no_ground_in_any_terminal() -> None:
    from qkv.visualization.terminal import shade

    assert shade(0.0) == shade(float("nan")) == "dim"
    assert shade(1.0).startswith("white on rgb(")
