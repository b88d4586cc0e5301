"""A soft look-up: what does an engineer with a GPA of 3.5 start with?

A hard look-up knows only those who have exactly 3.5. A soft one weights every salary in the table
by how near its GPA is: those from 3.4 to 3.6 count most, those at 3.0 and 4.0 hardly at all. The
bandwidth says how far to look; where nobody says it, the one is taken that best foretells each
row from the others. The salaries are made up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import qkv
from qkv.table.samples import SALARIES

ASKED = 3.5
BARS = " ▁▂▃▄▅▆▇█"
SIMILARITIES: dict[str, dict[str, Any]] = {
    "equal": {"similarity": "equal"},
    "Gaussian, 0.1": {"similarity": "gaussian", "bandwidth": 0.1},
    "Gaussian, 0.3": {"similarity": "gaussian", "bandwidth": 0.3},
    "triangular, 0.2": {"similarity": "triangular", "bandwidth": 0.2},
    "boxcar, 0.1": {"similarity": "boxcar", "bandwidth": 0.1},
    "Gaussian, chosen": {"similarity": "gaussian"},
}


def show(console: Console) -> None:
    salaries = qkv.Database(SALARIES, key="gpa", value="salary")
    table = Table("similarity", "weights over GPA 2.0 … 4.0", "salary", "±", "effective rows")
    for name, how in SIMILARITIES.items():
        answer = salaries.query(ASKED, **how, top=400)
        table.add_row(
            name, _over_keys(answer), f"{answer.value:,.0f}", f"{answer.std:,.0f}",
            f"{answer.effective_rows:.1f}",
        )  # fmt: skip
    console.print(table)
    answer = salaries.query(ASKED, similarity="gaussian")
    console.print(answer)
    console.print(str(answer.plan), markup=False, highlight=False)


def _over_keys(answer: qkv.Answer) -> str:
    """The share of the answer that each stretch of keys has."""
    heavy = [row["gpa"] for row in answer.rows], [row["weight"] for row in answer.rows]
    shares, _ = np.histogram(heavy[0], bins=40, range=(2.0, 4.0), weights=heavy[1])
    return "".join(BARS[round(8 * share / shares.max())] for share in shares)
