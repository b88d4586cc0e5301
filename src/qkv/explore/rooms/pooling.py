"""Pooling: the answer to a query is the weighted mean of the points near it (Eqs. 4 and 5)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import qkv
from qkv.explore.desk import Desk
from qkv.explore.encoding import doubles, finite, floats
from qkv.explore.fields import Fields
from qkv.explore.points import Array, Points
from qkv.explore.workers import Ticket

KERNELS = {
    "gaussian": qkv.Gaussian,
    "boxcar": qkv.Boxcar,
    "triangular": qkv.Triangular,
    "epanechnikov": qkv.Epanechnikov,
    "laplacian": qkv.Laplacian,
    "biweight": qkv.Biweight,
    "tricube": qkv.Tricube,
}
GRID, SMALL_GRID = 201, 101  # places at which curves are asked
SHOWN = 4  # points in the formula


class Fit(NamedTuple):
    """A kernel, a bandwidth and a degree, fitted to some points."""

    points: Points
    kernel: str
    bandwidth: float
    degree: int
    level: float

    @classmethod
    def of(cls, fields: Fields) -> Fit:
        return cls(
            Points.of(fields),
            fields.choice("kernel", "gaussian", KERNELS),
            fields.number("bandwidth", 0.3, 1e-9, 1e12),
            fields.integer("degree", 0, 0, 1),
            fields.number("level", 0.9, 0.01, 0.99),
        )

    def model(self, desk: Desk) -> Any:
        """The regressor, fitted once for many questions."""
        return desk.once(("fit", self), lambda: self._fitted(desk))

    def _fitted(self, desk: Desk) -> Any:
        x, y = self.points.arrays(desk)
        model = qkv.NadarayaWatsonRegressor(
            self.kernel, self.bandwidth, self.degree, empty="nearest"
        )
        return model.fit(x[:, None], y)


def points(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """Where all points lie."""
    x, y = Points.of(fields).arrays(desk)
    return {"x": doubles(x), "y": doubles(y)}


def curve(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """The answers along the axis, and the interval about them."""
    fit = Fit.of(fields)
    model = fit.model(desk)
    grid = _grid(fit.points.arrays(desk)[0], GRID)
    answer = model.predict(grid[:, None])
    ticket.check()
    bounds = model.predict_interval(grid[:, None], fit.level)
    truth = 2 * np.sin(grid) + grid if not fields.text("source", "", 16) else grid * np.nan
    return {
        "grid": doubles(grid),
        "answer": doubles(answer),
        "low": doubles(bounds[:, 0]),
        "high": doubles(bounds[:, 1]),
        "truth": doubles(truth),
    }


def ask(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """The answer to one query, each point's weight, and the formula's largest terms."""
    fit = Fit.of(fields)
    query = fields.number("query", 2.5, -1e12, 1e12)
    model = fit.model(desk)
    x, y = fit.points.arrays(desk)
    weights = model.weights([[query]])[0]
    answer = float(model.predict([[query]])[0])
    low, high = model.predict_interval([[query]], fit.level)[0]
    squares = float((weights**2).sum())
    heaviest = np.argsort(-weights, kind="stable")[:SHOWN]
    return {
        "query": query,
        "answer": finite(answer),
        "low": finite(low),
        "high": finite(high),
        "neighbours": 1 / squares if squares > 0 else 0.0,
        "weights": floats(weights),
        "terms": [
            {"place": int(i), "x": float(x[i]), "y": float(y[i]), "weight": float(weights[i])}
            for i in heaviest
            if weights[i] > 0
        ],
        "python": as_python(fit, query),
        "command": as_command(fit, query),
    }


def choose(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """The leave-one-out error of many bandwidths, and the best."""
    fit = Fit.of(fields)
    key = ("choose", fit._replace(bandwidth=0.0, level=0.0))
    return desk.once(key, lambda: _chosen(fit, desk, ticket))


def _chosen(fit: Fit, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    x, y = fit.points.arrays(desk)
    if len(x) < 2 or np.ptp(x) == 0:
        raise ValueError("leave-one-out needs two points or more, at different places")
    model = qkv.NadarayaWatsonRegressor(fit.kernel, "loo", fit.degree, empty="nearest")
    model.fit(x[:, None], y)
    ticket.check()
    tried = model.cv_curve_[np.isfinite(model.cv_curve_).all(axis=1)]
    return {
        "bandwidths": tried[:, 0].tolist(),
        "errors": np.sqrt(tried[:, 1]).tolist(),
        "choice": float(model.bandwidth_[0]),
    }


def kernels(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """All kernels side by side: their shape about the query, their curve and their answer."""
    fit = Fit.of(fields)
    query = fields.number("query", 2.5, -1e12, 1e12)
    grid = _grid(fit.points.arrays(desk)[0], SMALL_GRID)
    options = []
    for name, kernel in KERNELS.items():
        ticket.check()
        model = fit._replace(kernel=name).model(desk)
        shape = kernel(fit.bandwidth)(_column([query]), _column(grid))[0]
        options.append(
            {
                "name": name,
                "shape": floats(shape.numpy()),
                "curve": doubles(model.predict(grid[:, None])),
                "answer": finite(model.predict([[query]])[0]),
                "neighbours": float(model.effective_neighbours([[query]])[0]),
            }
        )
    return {"grid": doubles(grid), "kernels": options}


def columns(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """The columns of numbers of an uploaded table."""
    import pyarrow as pa

    table = desk.uploads.get(fields.text("source", "", 16))
    kinds = [(field.name, field.type) for field in table.schema]
    names = [n for n, t in kinds if pa.types.is_integer(t) or pa.types.is_floating(t)]
    if len(names) < 2:
        raise ValueError("the file must have two columns of numbers, x and y, to be pooled")
    return {"columns": names}


ACTIONS = {
    "points": points,
    "curve": curve,
    "ask": ask,
    "choose": choose,
    "kernels": kernels,
    "columns": columns,
}


def as_python(fit: Fit, query: float) -> str:
    """Lines that give the same answer, interval and weights."""
    return "\n".join(
        [
            "import numpy as np, qkv",
            "",
            *fit.points.as_python(),
            "model = qkv.NadarayaWatsonRegressor(",
            f'    "{fit.kernel}", bandwidth={fit.bandwidth!r}, degree={fit.degree}, '
            'empty="nearest"',
            ").fit(x[:, None], y)",
            f"answer = model.predict([[{query!r}]])[0]",
            f"low, high = model.predict_interval([[{query!r}]], {fit.level!r})[0]",
            f"weights = model.weights([[{query!r}]])[0]",
            "print(answer, low, high)",
        ]
    )


def as_command(fit: Fit, query: float) -> str:
    """The same for the points as they are exported."""
    return (
        f"qkv regress points.csv --x x --y y --at={query!r} --kernel {fit.kernel} "
        f"--bandwidth {fit.bandwidth!r} --degree {fit.degree} --level {fit.level!r}"
    )


def _grid(x: Array, count: int) -> Array:
    low, high = float(x.min()), float(x.max())
    margin = 0.04 * (high - low) or 1.0
    grid: Array = np.linspace(low - margin, high + margin, count)
    return grid


def _column(places: Any) -> Any:
    import torch

    return torch.as_tensor(np.asarray(places, dtype=np.float64)[:, None])
