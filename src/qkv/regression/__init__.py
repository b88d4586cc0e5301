"""Kernel regression is attention: training inputs are keys, targets are values (Eq. 4)."""

from qkv.optional_dependencies import require

require("sklearn", "regress")

from qkv.bandwidth import BandwidthWarning as BandwidthWarning  # noqa: E402
from qkv.regression.adaptive_bandwidth import Nearest as Nearest  # noqa: E402
from qkv.regression.classifier import NadarayaWatsonClassifier as NadarayaWatsonClassifier  # noqa: E402
from qkv.regression.fallback import NoNeighboursWarning as NoNeighboursWarning  # noqa: E402
from qkv.regression.regressor import NadarayaWatsonRegressor as NadarayaWatsonRegressor  # noqa: E402

# Former names, which existing programs import.
Undecided, NothingNear = BandwidthWarning, NoNeighboursWarning
