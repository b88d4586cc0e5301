"""Two small tables to ask. They are synthetic: `make.py` makes them up, nobody in them exists."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
STUDENTS = FOLDER / "students.csv"  # name, major, year, joined
SALARIES = FOLDER / "salaries.csv"  # gpa, salary, field, year
