"""Figures: what they show, what they are labelled with, and that any size and text is readable."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

import qkv
from qkv.visualization.plot import labels


def some(*shape: int) -> torch.Tensor:
    return torch.rand(*shape).softmax(dim=-1)


def names(count: int, prefix: str = "t") -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def texts(found: list[Text]) -> list[str]:
    return [text.get_text() for text in found]


def drawn(figure: Figure) -> Figure:
    figure.draw_without_rendering()
    return figure


def test_a_matrix_shows_the_weights_and_names_rows_and_columns() -> None:
    weights = some(3, 5)
    figure = drawn(qkv.plot.matrix(weights, names(3, "q"), names(5, "k"), title="here"))
    axes, bar = figure.axes
    (image,) = axes.get_images()
    np.testing.assert_allclose(image.get_array(), weights)
    assert image.get_clim() == (0, weights.max().item())
    assert texts(axes.get_yticklabels()) == ["q0", "q1", "q2"]
    assert texts(axes.get_xticklabels()) == names(5, "k")
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("here", "key", "query")
    assert bar.get_ylabel() == "weight"
    numbers = [f"{weight:.2f}".removeprefix("0") for weight in weights.flatten().tolist()]
    assert texts(list(axes.texts)) == numbers


def test_without_names_tokens_are_numbered() -> None:
    axes = drawn(qkv.plot.matrix(some(40, 50))).axes[0]
    assert len(axes.texts) == 0  # no room for numbers
    assert all(float(tick).is_integer() for tick in [*axes.get_xticks(), *axes.get_yticks()])


@pytest.mark.parametrize(("n", "m"), [(3, 3), (3, 200), (200, 3), (60, 61), (200, 200), (1, 1)])
def test_labels_of_any_number_of_tokens_neither_overlap_nor_leave_the_page(n: int, m: int) -> None:
    figure = drawn(qkv.plot.matrix(some(n, m), names(n, "query"), names(m, "a longer key ")))
    assert all(2 < side < 20 for side in figure.get_size_inches() + 0.2)
    page = figure.bbox
    for ticks, side in (
        (figure.axes[0].get_yticklabels(), "y"), (figure.axes[0].get_xticklabels(), "x"),
    ):  # fmt: skip
        assert len(ticks) >= min(n if side == "y" else m, 90)
        boxes = [tick.get_window_extent() for tick in ticks]
        ends = sorted((getattr(box, f"{side}0"), getattr(box, f"{side}1")) for box in boxes)
        assert all(next_start >= stop - 1.5 for (_, stop), (next_start, _) in pairwise(ends))
        assert all(
            page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
            for box in boxes
        )
        assert all(tick.get_fontsize() >= 6 for tick in ticks)


def test_any_text_is_a_label_as_it_stands() -> None:
    tokens = ["$x^", "$\\frac{$", "a\nb\tc", "\x00", "", "x" * 100, "שלום", "_^{}"]
    axes = drawn(qkv.plot.matrix(some(8, 8), tokens, tokens, title="$\\no{such}$")).axes[0]
    shown = texts(axes.get_yticklabels())
    assert shown[:2] == tokens[:2]
    assert shown[2:5] == ["a↵b⇥c", "\ufffd", ""]
    assert shown[5] == "x" * 14 + "…" + "x" * 13
    assert axes.get_title() == "$\\no{such}$"


def test_fonts_that_are_installed_help_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["Noto Sans CJK JP", "Other"])
    labels._installed.cache_clear()
    assert labels.text_style(8)["fontfamily"] == ["sans-serif", "Noto Sans CJK JP"]
    labels._installed.cache_clear()


def test_numbers_stand_out_from_their_cells() -> None:
    def light(colour: tuple[float, ...]) -> float:  # WCAG 2
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    weights = np.linspace(0, 1, 256).reshape(16, 16)
    axes = qkv.plot.matrix(weights).axes[0]
    colours = axes.get_images()[0].to_rgba(weights).reshape(-1, 4)
    for text, colour in zip(axes.texts, colours, strict=True):
        bright, dim = sorted([light(to_rgb(text.get_color())), light(colour)], reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5


def test_nan_is_shown_as_such() -> None:
    weights = some(2, 3)
    weights[1] = torch.nan
    axes = drawn(qkv.plot.matrix(weights)).axes[0]
    (image,) = axes.get_images()
    colours = image.to_rgba(image.get_array())
    assert colours[..., 3].tolist() == [[1] * 3, [0] * 3]  # grey paper shows through
    assert axes.get_facecolor() == pytest.approx((0.827, 0.827, 0.827, 1), abs=1e-3)


def test_heads_share_their_colours() -> None:
    weights = some(7, 5, 3)
    figure = drawn(qkv.plot.heads(weights, names(5), names(3), titles=list("abcdefg")))
    *panels, _ = figure.axes
    assert [panel.get_title() for panel in panels] == list("abcdefg")
    for panel, head in zip(panels, weights, strict=True):
        (image,) = panel.get_images()
        np.testing.assert_allclose(image.get_array(), head)
        assert image.get_clim() == (0, weights.max().item())
    visible = [
        any(label.get_visible() and label.get_text() for label in panel.get_xticklabels())
        for panel in panels
    ]
    assert visible == [False] * 4 + [True] * 3  # 3 + 3 + 1: the lowest of each column


def test_a_row_is_bars_from_the_first_key_down() -> None:
    weights = some(5)
    axes = drawn(qkv.plot.row(weights, names(5), query="dog")).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(weights.tolist())
    assert texts(axes.get_yticklabels()) == names(5)
    assert axes.yaxis_inverted()
    assert axes.get_title() == "what dog looks at"
    assert texts(list(axes.texts)) == [f"{weight:.3f}" for weight in weights.tolist()]


def test_a_row_of_200_keys_fits() -> None:
    figure = drawn(qkv.plot.row(some(200), names(200)))
    assert figure.get_size_inches()[1] < 20
    assert len(figure.axes[0].patches) == 200


def test_an_alignment_has_the_source_on_top_and_frames_the_strongest() -> None:
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.0, 0.0, 0.0], [0.3, 0.5, 0.2]])
    source, target = ["the", "dog", "sleeps"], ["le", "chien", "…", "dort"]
    axes = drawn(qkv.plot.alignment(weights, source, target)).axes[0]
    assert texts(axes.get_xticklabels()) == source
    assert texts(axes.get_yticklabels()) == target
    assert axes.xaxis.get_label_position() == "top"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")
    centres = [(frame.get_x() + 0.5, frame.get_y() + 0.5) for frame in axes.patches]
    assert centres == [(0, 0), (2, 1), (1, 3)]  # nothing where nothing was looked at


def test_kernels_have_their_shapes() -> None:
    formulas = {
        "Gaussian": lambda u: np.exp(-u * u / 2),
        "Laplacian": lambda u: np.exp(-u),
        "Boxcar": lambda u: (u <= 1).astype(float),
        "Triangular": lambda u: np.maximum(0, 1 - u),
        "Epanechnikov": lambda u: np.maximum(0, 1 - u * u),
    }
    for axes, (name, formula) in zip(qkv.plot.kernels().axes, formulas.items(), strict=True):
        (line,) = axes.get_lines()
        distance, height = map(np.asarray, line.get_data())
        assert axes.get_title().startswith(name)
        np.testing.assert_allclose(height, formula(np.abs(distance)), atol=1e-12)


def test_a_plan_tells_its_cost_and_every_operator() -> None:
    x = torch.randn(2, 2048, 64)
    plan = qkv.explain(x, x, x, similarity="laplacian", mask=qkv.mask.Causal())
    figure = drawn(qkv.plot.plan(plan))
    memory, story = figure.axes
    assert [bar.get_width() for bar in memory.patches] == [plan.bytes, plan.dense_bytes]
    told = texts(list(story.texts))
    assert {plan.operator, *plan.rejected} <= set(told)
    assert " ".join(told).count(plan.rejected["topk"]) == 1
    assert "2,048 queries" in memory.get_title(loc="left")


def test_a_plan_that_needs_no_memory_is_drawn_too() -> None:
    x = torch.randn(8, 2048, 64)
    plan = qkv.explain(x, x, x)
    assert plan.bytes == 0
    memory, _ = drawn(qkv.plot.plan(plan)).axes
    assert memory.texts[0].get_text() == "0 B"


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_figures_are_saved(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"matrix{suffix}"
    qkv.plot.save(qkv.plot.matrix(some(2, 3), ["<a>", "&"], names(3)), path)
    start = path.read_bytes()[:5]
    assert start == {".png": b"\x89PNG\r", ".pdf": b"%PDF-", ".svg": b"<?xml"}[suffix]
    assert list(tmp_path.iterdir()) == [path]


def test_figures_leave_no_global_state() -> None:
    code = (
        "import sys, qkv; qkv.plot.heads([[[1.0]]]); qkv.plot.kernels(); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda: qkv.plot.matrix(some(2, 3, 4)), r"weights must have shape \(queries, keys\)"),
        (lambda: qkv.plot.matrix(some(2, 3), names(3)), "queries must name 2 tokens"),
        (lambda: qkv.plot.matrix(some(2, 3), None, names(2)), "keys must name 3 tokens"),
        (lambda: qkv.plot.heads(some(2, 3)), r"weights must have shape \(heads, queries, keys\)"),
        (lambda: qkv.plot.heads(some(2, 3, 4), titles=["a"]), "titles must name 2 heads"),
        (lambda: qkv.plot.row(some(2, 3), names(3)), r"weights must have shape \(keys\)"),
        (lambda: qkv.plot.alignment(some(2, 3), names(2), names(3)), "target must name 2 tokens"),
        (lambda: qkv.plot.row([0.5, 2.0], names(2)), "weights must lie between 0 and 1; got 2"),
    ],
)
def test_a_mistake_is_named(draw: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        draw()


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    qkv.plot.save(qkv.plot.matrix(some(2, 3)), str(tmp_path / "m.png"))
    assert (tmp_path / "m.png").exists()


def test_one_colour_stands_for_one_thing_here_and_in_the_explorer() -> None:
    from qkv.gallery.page import STATIC
    from qkv.visualization.plot import palette

    for style in (Path(qkv.__file__).parent / "explore/static/explore.css", STATIC / "gallery.css"):
        light = style.read_text(encoding="utf-8").split("dark")[0]
        for name in ("query", "key", "weight", "answer", "ink", "muted", "line", "ground"):
            assert f"--{name}: {getattr(palette, name.upper())};" in light
