"""Real data that statsmodels and scikit-learn bring along, and one table of R's."""

from __future__ import annotations

import numpy as np
import statsmodels.api as sm
from sklearn.datasets import load_diabetes, load_iris

#: Speeds of cars and distances to stop, Ezekiel (1930); R's `cars`.
_SPEED = (
    "4 4 7 7 8 9 10 10 10 11 11 12 12 12 12 13 13 13 13 14 14 14 14 15 15 15 16 16 17 17 17 18 18 "
    "18 18 19 19 19 20 20 20 20 20 22 23 24 24 24 24 25"
)
_DISTANCE = (
    "2 10 4 22 16 10 18 26 34 17 28 14 20 24 28 26 34 34 46 26 36 60 80 20 26 54 32 40 32 40 50 42 "
    "56 76 84 36 46 68 32 48 52 56 64 66 54 70 92 93 120 85"
)


def _of_statsmodels(name: str, x: list[str], y: str):
    table = getattr(sm.datasets, name).load_pandas().data
    return table[x].to_numpy(float), table[y].to_numpy(float)


def _cars():
    return np.array(_SPEED.split(), float)[:, None], np.array(_DISTANCE.split(), float)


def _diabetes(columns: list[int]):
    x, y = load_diabetes(return_X_y=True)
    return x[:, columns], y


def _iris():
    table = load_iris().data
    return table[:, [2]], table[:, 3]


#: Keys (n, d) and targets (n,) by name. engel has outliers, sunspots and nile even keys, diabetes
#: ties and much noise, iris ties and little, longley and stackloss few rows.
SETS = {
    "engel": lambda: _of_statsmodels("engel", ["income"], "foodexp"),
    "sunspots": lambda: _of_statsmodels("sunspots", ["YEAR"], "SUNACTIVITY"),
    "nile": lambda: _of_statsmodels("nile", ["year"], "volume"),
    "longley": lambda: _of_statsmodels("longley", ["GNP"], "TOTEMP"),
    "stackloss": lambda: _of_statsmodels("stackloss", ["AIRFLOW"], "STACKLOSS"),
    "cars": _cars,
    "iris": _iris,
    "diabetes": lambda: _diabetes([2]),
}
SEVERAL = {
    "diabetes": lambda: _diabetes([2, 3, 8]),
    "stackloss": lambda: _of_statsmodels("stackloss", ["AIRFLOW", "WATERTEMP"], "STACKLOSS"),
}
