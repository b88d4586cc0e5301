"""A hard look-up: the key-value database

A database pairs keys with values: a student's name with a major. Asked for a key it knows, it
returns that key's value and ignores all others. Seen as attention, the similarity is 1 where
query and key are equal and 0 elsewhere, so the row of weights is one-hot. A name that is not
there attends to nothing, and the answer is empty. To ask by major, swap keys and values.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

import qkv
from qkv.gallery import print_plan

STUDENTS = {"Ana Ruiz": "physics", "John Doe": "psychology", "Mei Lin": "history"}


def one_hot(names: list[str], vocabulary: list[str]) -> np.ndarray:
    """Each name as a unit vector, (names, vocabulary); an unknown one as zeros."""
    return np.array([[float(name == known) for known in vocabulary] for name in names])


def look_up(query: str, keys: list[str], values: list[str]) -> tuple[np.ndarray, str | None]:
    """The weights over keys, and the value found."""
    vocabulary = sorted({query, *keys})
    asked, known = one_hot([query], vocabulary), one_hot(keys, vocabulary)
    weights = qkv.weights(asked, known, similarity="equal")
    answer = qkv.attend(asked, known, np.eye(len(values)), similarity="equal")
    return weights[0], values[int(answer[0].argmax())] if answer.any() else None


def show(console: Console) -> None:
    names, majors = list(STUDENTS), list(STUDENTS.values())
    table = Table("query", *names, "answer")
    for query in ("John Doe", "Jon Doe"):
        weights, found = look_up(query, names, majors)
        table.add_row(query, *(f"{weight:.0f}" for weight in weights), found or "– none –")
    console.print(table)
    table = Table("query, keys and values swapped", *majors, "answer")
    weights, found = look_up("psychology", majors, names)
    table.add_row("psychology", *(f"{weight:.0f}" for weight in weights), found)
    console.print(table)
    example = one_hot(names, names)
    plan = qkv.explain(example, example, np.eye(3), similarity="equal")
    print_plan(console, plan)
