"""Kernel regression: the answer is the mean of what is near

100 samples of y = 2 sin x + x + noise, x uniform between 0 and 4. Each kernel of Eq. 5, and
Epanechnikov's own, at bandwidth 1 as printed and at the one that leave-one-out finds; then the
Gaussian at several widths: narrow ones follow the noise, wide ones flatten the curve. The error
is that against the noiseless curve. The figure shows each fit above its attention weights.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import qkv
from qkv import plot

KERNELS = ("gaussian", "boxcar", "triangular", "epanechnikov")
WIDTHS = (0.1, 0.2, 0.5, 1.0)
QUERY = np.linspace(0, 4, 101)
BARS = "▁▂▃▄▅▆▇█"


def samples() -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    x = np.sort(random.uniform(0, 4, 100))
    return x, truth(x) + random.standard_normal(100)


def truth(x: Any) -> Any:
    return 2 * np.sin(x) + x


def show(console: Console) -> None:
    x, y = samples()
    table = Table("kernel", "bandwidth", "error", "LOO R²", "neighbours", "answers, 0 to 4")
    panels = []
    for kernel, bandwidth in [
        *((kernel, 1.0) for kernel in KERNELS),
        *((kernel, "loo") for kernel in KERNELS),
        *(("gaussian", width) for width in WIDTHS),
    ]:
        model = qkv.NadarayaWatsonRegressor(kernel, bandwidth).fit(x[:, None], y)
        answer = model.predict(QUERY[:, None])
        error = np.sqrt(np.mean((answer - truth(QUERY)) ** 2))
        near = model.effective_neighbours(QUERY[:, None]).mean()
        searched = " (loo)" if bandwidth == "loo" else ""
        name = f"{model.bandwidth_[0]:.2f}{searched}"
        table.add_row(
            kernel, name, f"{error:.2f}", f"{model.loo_score():.2f}", f"{near:.0f}", _line(answer)
        )
        panels.append(plot.Fitted(f"{kernel} {name}", answer, model.weights(QUERY[:, None])))
    console.print(table)
    for title, chosen in (("kernels", panels[:4]), ("widths", panels[8:])):
        path = Path(tempfile.gettempdir()) / f"qkv-regression-{title}.png"
        plot.save(plot.fits(x, y, QUERY, chosen, truth(QUERY)), path)
        console.print(f"figure: {path}", style="dim", highlight=False, soft_wrap=True)


def _line(answer: Any) -> str:
    """A curve as a row of bars."""
    some = answer[::7]
    low, high = truth(QUERY).min(), truth(QUERY).max()
    height = np.clip((some - low) / (high - low), 0, 1) * (len(BARS) - 1)
    return "".join(BARS[round(place)] for place in height)
