"""Kernel regression is attention: training inputs are keys, targets are values (Eq. 4)."""

from qkv.optional_dependencies import need

need("sklearn", "regress")

from qkv.bandwidth import Undecided as Undecided  # noqa: E402
from qkv.regression.adaptive_bandwidth import Nearest as Nearest  # noqa: E402
from qkv.regression.classifier import NadarayaWatsonClassifier as NadarayaWatsonClassifier  # noqa: E402
from qkv.regression.fallback import NothingNear as NothingNear  # noqa: E402
from qkv.regression.regressor import NadarayaWatsonRegressor as NadarayaWatsonRegressor  # noqa: E402
