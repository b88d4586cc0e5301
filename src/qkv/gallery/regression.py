"""Nadaraya-Watson regression: the answer is a weighted mean of nearby samples

100 samples of y = 2 sin x + x + noise, x uniform between 0 and 4. The query is x, the keys are the
samples' x and the values their y. Each kernel of Eq. 5 has bandwidth 1, as printed; beneath it,
its weights: a row is a query, a column a sample. The slides call max(0, 1 − u) Epanechnikov; it is
the triangular kernel, and Epanechnikov's own is 1 − u². Errors are against the curve without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.gallery.parts import Figure, Part, Result, Step, Table, code_of
from qkv.visualization import plot

SOURCE = "Nadaraya-Watson Regression; Eqs. 4 and 5"
KERNELS = ("gaussian", "boxcar", "triangular", "epanechnikov")
QUERY = np.linspace(0, 4, 101)
BARS = "▁▂▃▄▅▆▇█"


def samples() -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    x = np.sort(random.uniform(0, 4, 100))
    return x, truth(x) + random.standard_normal(100)


def truth(x: Any) -> Any:
    return 2 * np.sin(x) + x


def fit() -> Any:
    import numpy as np

    import qkv
    from qkv.gallery.regression import samples

    x, y = samples()  # 100 of each
    model = qkv.NadarayaWatsonRegressor("gaussian", bandwidth="loo").fit(x[:, None], y)
    query = np.array([[2.5]])
    answer, (low, high) = model.predict(query)[0], model.predict_interval(query, 0.9)[0]
    return model, answer, low, high


def parts() -> Iterator[Part]:
    yield Step("the regressor's kernels compile at their first use")
    model, answer, low, high = fit()
    x, y = samples()
    rows, panels = [], []
    for bandwidth in (1.0, "loo"):
        for kernel in KERNELS:
            yield Step(f"{kernel}, bandwidth {bandwidth}")
            row, panel = fitted(kernel, bandwidth, x, y)
            rows.append(row)
            panels.append(panel)
    yield Result(
        f"x = 2.5 → {answer:.2f} (true {truth(2.5):.2f}), 90% interval {low:.1f} to {high:.1f}; "
        f"bandwidth {model.bandwidth_[0]:.2f}"
    )
    drawn = [panels[place]._replace(name=name) for place, name in enumerate(KERNELS)]
    yield Figure(
        plot.fits(x, y, QUERY, drawn, truth(QUERY)),
        "Fits by the kernels of Eq. 5 and Epanechnikov's own, and beneath each its weights",
    )
    yield Table(["kernel", "bandwidth", "error", "LOO R²", "neighbours", "answers, 0 to 4"], rows,
                "loo: the bandwidth with the lowest leave-one-out error")  # fmt: skip
    yield code_of(fit)


def fitted(kernel: str, bandwidth: Any, x: Any, y: Any) -> tuple[list[str], plot.Fitted]:
    """A row of the table, and a panel of the figure."""
    import qkv

    model = qkv.NadarayaWatsonRegressor(kernel, bandwidth).fit(x[:, None], y)
    answer = model.predict(QUERY[:, None])
    error = np.sqrt(np.mean((answer - truth(QUERY)) ** 2))
    near = model.effective_neighbours(QUERY[:, None]).mean()
    name = f"{model.bandwidth_[0]:.2f}{' loo' if bandwidth == 'loo' else ''}"
    row = [kernel, name, f"{error:.2f}", f"{model.loo_score():.2f}", f"{near:.0f}", _line(answer)]
    return row, plot.Fitted(f"{kernel}, {name}", answer, model.weights(QUERY[:, None]))


def _line(answer: Any) -> str:
    """A curve as a row of bars."""
    some = answer[::7]
    low, high = truth(QUERY).min(), truth(QUERY).max()
    height = np.clip((some - low) / (high - low), 0, 1) * (len(BARS) - 1)
    return "".join(BARS[round(place)] for place in height)
