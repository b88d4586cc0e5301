"""Generate the sample tables: `python -m qkv.table.samples.make` writes both.

They are synthetic. Names are drawn from two short lists. Salaries rise with the grade point
average, differ by field and scatter: 30,000 + 11,000 · gpa + field + noise of 4,000 a year.
"""

from __future__ import annotations

import csv
import datetime as dt
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from qkv.table.samples import SALARIES, STUDENTS

FIRST = [
    "Ana", "Ben", "Chloe", "David", "Elena", "Femi", "Grace", "Hugo", "Ines", "Jonas", "Kaito",
    "Leila", "Mei", "Noor", "Oscar", "Priya", "Quentin", "Rosa", "Samir", "Tara", "Uma",
    "Viktor", "Wen", "Ximena", "Yusuf", "Zoe",
]  # fmt: skip
LAST = [
    "Adeyemi", "Bauer", "Costa", "Dubois", "Eriksen", "Fischer", "Garcia", "Haddad", "Ivanova",
    "Jensen", "Kim", "Lopez", "Moreau", "Nakamura", "Okafor", "Petrov", "Quist", "Ruiz", "Sato",
    "Thomsen",
]  # fmt: skip
MAJORS = [
    "art", "biology", "chemistry", "economics", "history", "mathematics", "physics",
    "psychology",
]  # fmt: skip
FIELDS = {"civil": -3000, "mechanical": 0, "electrical": 3000, "software": 8000}


def students(count: int = 120) -> Iterable[Sequence[object]]:
    """Rows of students.csv; one of them is John Doe, whose major is psychology."""
    draw = random.Random(1)
    names = sorted({f"{draw.choice(FIRST)} {draw.choice(LAST)}" for _ in range(2 * count)})
    names = [*draw.sample(names, count - 1), "John Doe"]
    draw.shuffle(names)
    yield "name", "major", "year", "joined"
    for name in names:
        major = "psychology" if name == "John Doe" else draw.choice(MAJORS)
        year = draw.randint(1, 4)
        yield name, major, year, dt.date(2026 - year, 9, 1) + dt.timedelta(draw.randint(0, 20))


def salaries(count: int = 400) -> Iterable[Sequence[object]]:
    """Rows of salaries.csv: engineers, and what they started with."""
    draw = random.Random(2)
    yield "gpa", "salary", "field", "year"
    for _ in range(count):
        gpa = round(min(4.0, max(2.0, draw.gauss(3.2, 0.45))), 2)
        field = draw.choice(list(FIELDS))
        salary = 30_000 + 11_000 * gpa + FIELDS[field] + draw.gauss(0, 4000)
        yield gpa, round(salary / 100) * 100, field, draw.randint(2019, 2025)


def write(path: Path, rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    write(STUDENTS, students())
    write(SALARIES, salaries())
