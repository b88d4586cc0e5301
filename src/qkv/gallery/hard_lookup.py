"""A hard look-up: the key-value database

A database pairs keys with values: a student's name with a major. Asked for a key it knows, it
returns that key's value and ignores all others: the similarity is 1 where query and key are equal
and 0 elsewhere, so the row of weights is one-hot. A name that is not there attends to nothing, and
the answer is empty; a similarity that forgives misspellings finds it softly. To ask by major, keys
and values must be swapped. The students are made up.
"""

from __future__ import annotations

from rich.console import Console

import qkv
from qkv.table.samples import STUDENTS


def show(console: Console) -> None:
    students = qkv.Database(STUDENTS, key="name", value="major")
    for query, similarity in (("John Doe", "equal"), ("Jon Doe", "equal"), ("Jon Doe", "fuzzy")):
        answer = students.query(query, similarity=similarity, top=3)
        console.print(answer)
        console.print()
    console.print("[dim]keys and values swapped[/]")
    swapped = students.swap().query("psychology", top=3)
    console.print(swapped)
    console.print()
    console.print(str(swapped.plan), markup=False, highlight=False)
