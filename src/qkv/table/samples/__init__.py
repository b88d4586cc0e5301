"""Two small sample tables. They are synthetic: `make.py` generates them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
STUDENTS = FOLDER / "students.csv"  # name, major, year, joined
SALARIES = FOLDER / "salaries.csv"  # gpa, salary, field, year
