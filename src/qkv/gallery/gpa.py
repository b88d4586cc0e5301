"""A soft look-up: what does a student with a GPA of 3.5 earn?

Nobody in the table has exactly 3.5, and a hard look-up finds nothing. A soft one weights every
salary by how near its GPA is: 3.4 to 3.6 count most, 3.0 and 4.0 a little. The salaries are made
up. The Gaussian's bandwidth says how far a student looks.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

import qkv

GPA = np.array([2.8, 3.0, 3.2, 3.4, 3.45, 3.55, 3.6, 3.8, 4.0])
SALARY = np.array([58.0, 61.0, 64.0, 68.0, 69.5, 70.5, 71.0, 76.0, 80.0])  # thousands a year
ASKED = 3.5


SIMILARITIES = {
    "equal": qkv.Equal(),
    "Gaussian 0.1": qkv.Gaussian(bandwidth=0.1),
    "Gaussian 0.3": qkv.Gaussian(bandwidth=0.3),
    "triangular 0.2": qkv.Triangular(bandwidth=0.2),
    "boxcar 0.2": qkv.Boxcar(bandwidth=0.2),
}


def show(console: Console) -> None:
    query, key, value = np.array([[ASKED]]), GPA[:, None], SALARY[:, None]
    columns, answers, operators = [], [], []
    for similarity in SIMILARITIES.values():
        columns.append(qkv.weights(query, key, similarity=similarity)[0])
        answers.append(qkv.attend(query, key, value, similarity=similarity).item())
        operators.append(qkv.explain(query, key, value, similarity=similarity).operator)
    table = Table("GPA", "salary", *SIMILARITIES, title=f"who counts for a GPA of {ASKED}")
    for gpa, salary, *weights in zip(GPA, SALARY, *columns, strict=True):
        table.add_row(f"{gpa:g}", f"{salary:g}", *(_shaded(weight) for weight in weights))
    table.add_section()
    found = [weights.any() for weights in columns]
    cells = (f"{a:.1f}" if f else "none" for a, f in zip(answers, found, strict=True))
    table.add_row("answer", "", *cells, style="bold")
    table.add_row("operator", "", *operators, style="dim")
    console.print(table)


def _shaded(weight: float) -> str:
    style = "dim" if weight < 0.005 else "bold green" if weight > 0.15 else "green"
    return f"[{style}]{weight:.2f}[/]"
