"""Draw the pictures of the README into docs/images: the hero and one for each door.

Run it again when a figure changes: `python tools/pictures.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch

import qkv
from qkv.gallery.own_similarity import city_block
from qkv.table.samples import SALARIES
from qkv.visualization import plot
from qkv.visualization.plot import palette
from qkv.words.sentence import by_minilm

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SENTENCE = "When he saw his owner, the dog was happy, so he wagged his tail"
DOTS = 120


def hero() -> None:
    """The query plot beside the view's matrix, as one picture."""
    figure = plot.canvas.new(10.4, 4.1)
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.05])
    above, below = left.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    answer = qkv.Database(SALARIES, key="gpa", value="salary").query(
        3.5, similarity="gaussian", bandwidth=0.1, top=400
    )
    gpa = torch.tensor([row["gpa"] for row in answer.rows])
    salary = torch.tensor([row["salary"] / 1000 for row in answer.rows])
    weight = torch.tensor([row["weight"] for row in answer.rows])
    strength = (weight / weight.max()).sqrt()
    above.scatter(gpa, salary, s=7, color=palette.MUTED, alpha=0.35, lw=0)
    above.scatter(gpa, salary, s=6 + 34 * strength, color=palette.KEY, alpha=strength * 0.9, lw=0)
    above.axhline(answer.value / 1000, color=palette.ANSWER, lw=1.2)
    above.plot([3.5], [answer.value / 1000], "o", color=palette.ANSWER, ms=9)
    above.annotate(f"answer {answer.value:,.0f}", (2.0, answer.value / 1000), (0, 5),
                   textcoords="offset points", color=palette.ANSWER, fontsize=11)  # fmt: skip
    above.set_ylabel("salary, thousands", fontsize=10)
    order = gpa.argsort()
    below.fill_between(gpa[order], (weight / weight.max())[order], color=palette.WEIGHT, alpha=0.35,
                       lw=0)  # fmt: skip
    below.set(ylim=(0, 1.1), yticks=[], xlabel="GPA")
    below.set_ylabel("weight", fontsize=10)
    for axes in (above, below):
        axes.axvline(3.5, color=palette.QUERY, lw=1.2, ls=":")
        plot.canvas.tidy(axes)
    above.set_title("Ask a table: GPA 3.5 → salary?", fontsize=12, loc="left", color=palette.INK)
    looking = by_minilm(SENTENCE, layer=5, head=11)
    axes = right.subplots()
    axes.imshow(looking.weights, cmap=palette.weights_map(), vmin=0, aspect="auto")
    axes.set_xticks(range(len(looking.words)), looking.words, rotation=55, ha="right", fontsize=10)
    axes.set_yticks(range(len(looking.words)), looking.words, fontsize=10)
    row = looking.of("happy")[0]
    axes.get_yticklabels()[row].set_color(palette.QUERY)
    axes.axhspan(row - 0.5, row + 0.5, fill=False, color=palette.QUERY, lw=1.4)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("See a model: what does “happy” look at?", fontsize=12, loc="left")
    _save(figure, "hero")


def doors() -> None:
    """One small picture each: ask a table, see your model, write a similarity."""
    salaries = qkv.Database(SALARIES, key="gpa", value="salary")
    curve = salaries.curve([2 + step / 20 for step in range(41)], similarity="gaussian")
    figure = curve.plot()
    figure.set_size_inches(4.2, 2.6)
    _save(figure, "ask")
    looking = by_minilm(SENTENCE, layer=5)
    figure = plot.canvas.new(4.2, 2.6)
    for axes, weights in zip(figure.subplots(3, 4).flat, looking.every[0], strict=True):
        axes.imshow(weights, cmap=palette.weights_map(), vmin=0, aspect="auto")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(palette.LINE)
    _save(figure, "see")
    centre = torch.zeros(1, 2)
    side = torch.linspace(-2, 2, DOTS)
    points = torch.cartesian_prod(side, side)
    shapes = {
        "dot": 0.8 * qkv.Dot() + qkv.Euclidean(),
        "Gaussian": qkv.Gaussian(0.7),
        "your city block": city_block,
    }
    figure = plot.canvas.new(4.2, 1.75)
    for axes, (name, similarity) in zip(figure.subplots(1, 3), shapes.items(), strict=True):
        if name == "dot":
            centre, similarity = torch.tensor([[0.8, 0.5]]), qkv.Dot()
        else:
            centre = torch.zeros(1, 2)
        weights = qkv.weights(centre, points, similarity=similarity)[0].reshape(DOTS, DOTS)
        axes.imshow(weights.T.detach(), cmap=palette.weights_map(), origin="lower", vmin=0)
        axes.plot(*(DOTS / 2 + centre[0] * DOTS / 4), "o", color=palette.QUERY, ms=5)
        axes.set_title(name, fontsize=10)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    _save(figure, "write")


def _save(figure: object, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / f"{name}.png", dpi=110, pil_kwargs={"optimize": True})  # type: ignore[attr-defined]


if __name__ == "__main__":
    hero()
    doors()
