"""qkv: an attention engine. Attention(q, D) = Σᵢ α(q, kᵢ) vᵢ, for any similarity α."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from qkv import bias as bias
    from qkv import cluster as cluster
    from qkv import mask as mask
    from qkv import nn as nn
    from qkv import plot as plot
    from qkv import recording as recording
    from qkv import regression as regression
    from qkv import similarity as similarity
    from qkv import summary as summary
    from qkv import table as table
    from qkv import translate as translate
    from qkv import words as words
    from qkv.partial import Partial as Partial
    from qkv.plan import Plan as Plan
    from qkv.pooling import attend as attend
    from qkv.pooling import attend_partial as attend_partial
    from qkv.pooling import explain as explain
    from qkv.pooling import weights as weights
    from qkv.recording import record as record
    from qkv.regression import NadarayaWatsonClassifier as NadarayaWatsonClassifier
    from qkv.regression import NadarayaWatsonRegressor as NadarayaWatsonRegressor
    from qkv.similarity import Additive as Additive
    from qkv.similarity import Bilinear as Bilinear
    from qkv.similarity import Biweight as Biweight
    from qkv.similarity import Boxcar as Boxcar
    from qkv.similarity import Cosine as Cosine
    from qkv.similarity import Dot as Dot
    from qkv.similarity import Epanechnikov as Epanechnikov
    from qkv.similarity import Equal as Equal
    from qkv.similarity import Euclidean as Euclidean
    from qkv.similarity import Gated as Gated
    from qkv.similarity import Gaussian as Gaussian
    from qkv.similarity import Laplacian as Laplacian
    from qkv.similarity import ScaledDot as ScaledDot
    from qkv.similarity import Similarity as Similarity
    from qkv.similarity import Triangular as Triangular
    from qkv.similarity import Tricube as Tricube
    from qkv.table import Answer as Answer
    from qkv.table import Database as Database
    from qkv.visualization.viewer import View as View
    from qkv.visualization.viewer import view as view

# Names are fetched on first use, so that `qkv --help` need not wait for torch.
_HOMES = {
    "qkv.partial": ["Partial"],
    "qkv.plan": ["Plan"],
    "qkv.pooling": ["attend", "attend_partial", "explain", "weights"],
    "qkv.recording": ["record"],
    "qkv.regression": ["NadarayaWatsonClassifier", "NadarayaWatsonRegressor"],
    "qkv.similarity": [
        "Additive",
        "Bilinear",
        "Biweight",
        "Boxcar",
        "Cosine",
        "Dot",
        "Epanechnikov",
        "Equal",
        "Euclidean",
        "Gated",
        "Gaussian",
        "Laplacian",
        "ScaledDot",
        "Similarity",
        "Triangular",
        "Tricube",
    ],
    "qkv.visualization.viewer": ["View", "view"],
    "qkv.table": ["Answer", "Database"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

_MODULES = [
    "bias", "cluster", "mask", "nn", "plot", "recording", "regression", "similarity", "summary",
    "table", "translate", "words",
]  # fmt: skip

__all__ = [*_MODULES, *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"qkv.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
