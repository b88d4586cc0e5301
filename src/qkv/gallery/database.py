"""The key-value database: a look-up that is hard, and one that forgives

A database pairs keys with values: a student's name with a major. For a key that exists, it
returns that key's value and ignores all others: the similarity is 1 where query and key are equal
and 0 elsewhere, so the row of weights is one-hot. A name that is not there attends to nothing, and
the answer is empty; a similarity that tolerates misspellings finds it softly. To query by major,
keys and values must be swapped. The students are synthetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.parts import Code, Figure, Part, Result, Table, code_of
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "Queries, Keys, and Values; Eq. 1"


def look_up() -> Any:
    import qkv
    from qkv.table.samples import STUDENTS  # or "students.csv", a DataFrame, postgresql://…

    students = qkv.Database(STUDENTS, key="name", value="major")
    hit = students.query("John Doe")
    miss = students.query("Jon Doe")
    soft = students.query("Jon Doe", similarity="fuzzy")
    swapped = students.swap().query("psychology", top=3)
    return hit, miss, soft, swapped


def parts() -> Iterator[Part]:
    answers = look_up()
    hit, miss, soft, _ = answers
    yield Result(
        f"John Doe: {hit.value}. Jon Doe: {miss.value or 'nothing'}; forgiving: {soft.value}"
    )
    labels = ["a key that is there", "a key that is not", "the same, fuzzy", "swapped: by major"]
    yield Table(
        ["asked", "query", "answer", "heaviest rows, with their weights"],
        [
            [
                label,
                *map(str, answer.query.values()),
                str(answer.value or "nothing found"),
                _rows(answer),
            ]
            for label, answer in zip(labels, answers, strict=True)
        ],
    )
    yield Figure(_draw(hit, soft), "Weights over the names nearest to the query: one-hot, and soft")
    yield code_of(look_up)
    yield Code(
        '# the same in a shell:\n# qkv query students.csv --key name --value major "John Doe"'
    )


def _rows(answer: Any) -> str:
    return ", ".join(f"{row['name']} {row['weight']:.2f}" for row in answer.rows[:2]) or "–"


def _draw(hard: Any, soft: Any) -> Any:
    figure = plot.canvas.new(5.2, 2.3)
    names = [row["name"] for row in soft.rows[:5]]
    for axes, answer, title in zip(
        figure.subplots(1, 2, sharey=True), (hard, soft), ("“John Doe”, equal", "“Jon Doe”, fuzzy"),
        strict=True,
    ):  # fmt: skip
        weights = {row["name"]: row["weight"] for row in answer.rows}
        shares = [weights.get(name, 0.0) for name in names]
        bars = plot.canvas.tidy(axes).barh(names, shares, color=palette.WEIGHT, height=0.62)
        axes.bar_label(bars, [f"{share:.2f}" for share in shares], padding=3, fontsize=9)
        axes.set_xlim(0, 1.2)
        axes.set_xticks([0, 0.5, 1])
        axes.set_title(title, fontsize=10, color=palette.QUERY, loc="left")
        axes.set_xlabel("weight", fontsize=9)
        axes.tick_params(axis="y", length=0, labelcolor=palette.KEY)
    axes.invert_yaxis()
    return figure
