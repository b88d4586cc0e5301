"""A soft look-up: what does an engineer with a GPA of 3.5 start with?

A hard look-up finds only those who have exactly 3.5. A soft one weights every salary in the table
by how near its GPA is: those from 3.4 to 3.6 count most, those at 3.0 and 4.0 hardly at all. The
bandwidth is the width of the kernel; by default, the one with the lowest leave-one-out error is
used. The salaries are synthetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.gallery.parts import Figure, Part, Result, Table, code_of

SOURCE = "The General Formula for Attention; Eqs. 1 to 3"
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


def ask() -> Any:
    import qkv
    from qkv.table.samples import SALARIES  # or your own "salaries.csv"

    salaries = qkv.Database(SALARIES, key="gpa", value="salary")
    answer = salaries.query(3.5, similarity="gaussian", bandwidth=0.1)
    figure = answer.plot()
    return salaries, answer, figure


def parts() -> Iterator[Part]:
    salaries, answer, figure = ask()
    yield Result(
        f"GPA 3.5 → {answer.value:,.0f} ± {answer.std:,.0f}, from {answer.effective_rows:.0f} "
        "effective rows"
    )
    yield Figure(figure, "Salaries by GPA, darker the more they weigh; the weights below")
    rows = []
    for name, options in SIMILARITIES.items():
        answer = salaries.query(ASKED, **options, top=400)
        rows.append(
            [
                name, _over_keys(answer), f"{answer.value:,.0f}", f"{answer.std:,.0f}",
                f"{answer.effective_rows:.1f}",
            ]
        )  # fmt: skip
    yield Table(["similarity", "GPA 2.0 … 4.0", "salary", "±", "rows"], rows,
                "The weights over the keys; rows: effective rows")  # fmt: skip
    yield code_of(ask)


def _over_keys(answer: Any) -> str:
    """The share of the answer that each stretch of keys has."""
    heavy = [row["gpa"] for row in answer.rows], [row["weight"] for row in answer.rows]
    shares, _ = np.histogram(heavy[0], bins=25, range=(2.0, 4.0), weights=heavy[1])
    return "".join(BARS[round(8 * share / shares.max())] for share in shares)
