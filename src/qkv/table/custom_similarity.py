"""Comparisons by a user's similarity: a kernel of distance, or any formula of two tokens.

Both are compiled from their formulas; what cannot be compiled is computed by torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch

from qkv.formula import PROGRAMS
from qkv.formula.compiled import tile_function
from qkv.jit.kernels import UnavailableError, warn_once
from qkv.similarity import CompactKernel, Kernel, Similarity
from qkv.table import kernels, tile_scores
from qkv.table.columns import Kind, kind_of, numbers, plain, vectors
from qkv.table.comparison import Comparison, Distance
from qkv.table.derived import derived_kernel, in_logs
from qkv.table.vectors import key_vectors
from qkv.table.where import Condition

#: Numbers that torch holds at once where it computes scores.
_AT_ONCE = 2**22


def described(similarity: Similarity) -> str:
    """The name of a user's similarity."""
    return str(getattr(similarity.formula, "__name__", type(similarity).__name__))


def _not_weights(name: str) -> ValueError:
    return ValueError(f"similarity {name} must give weights that are numbers, never negative")


def custom_kernel(
    column: str, type: pa.DataType, entries: pa.Array, kernel: Kernel, bandwidth: float
) -> Comparison:
    """A kernel of the distance between numbers or times."""
    comparison = CustomKernel(column, type, entries, kernel, bandwidth)
    return comparison if comparison.derived.address else UncompiledKernel(comparison)


class CustomKernel(Distance):
    """A user's kernel, which the inner loop calls by its address."""

    def __init__(
        self, column: str, type: pa.DataType, entries: pa.Array, kernel: Kernel, bandwidth: float
    ) -> None:
        self._kernel = kernel
        super().__init__(column, type, entries, described(kernel), bandwidth)
        self.derived = derived_kernel(kernel, self.inverse)

    def __reduce__(self) -> Any:
        """Where a function was loaded to means nothing to another process, which loads its own."""
        return _revived, ({name: value for name, value in vars(self).items() if name != "derived"},)

    def _code(self) -> int:
        return tile_scores.LOG_FORMULA if in_logs(self._kernel) else tile_scores.FORMULA

    def _is_compact(self) -> bool:
        return isinstance(self._kernel, CompactKernel)

    @property
    def has_reach(self) -> bool:
        return self._is_compact()

    def logs(self, keys: pa.Array) -> np.ndarray:
        with torch.no_grad():
            logs: np.ndarray = self._kernel.log_profile(
                torch.from_numpy(self.squares(keys))
            ).numpy()
        self.check(logs)
        return logs

    def bounds(self, low: pa.Array, high: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        most, least = Comparison.bounds(self, low, high)
        if not self._is_compact():
            return most, least
        with np.errstate(over="ignore"):
            below, above = (self._differences(side) * self.inverse for side in (low, high))
        near = np.maximum(np.maximum(below, -above), 0.0) * (1.0 - 1e-12)  # rounded inwards
        return np.where(near <= 1.0, most, -np.inf), least

    def check(self, total: np.ndarray) -> None:
        if np.isnan(total).any():
            raise _not_weights(self._name)


def _revived(state: dict[str, Any]) -> Comparison:
    kernel = CustomKernel.__new__(CustomKernel)
    vars(kernel).update(state)
    kernel.derived = derived_kernel(kernel._kernel, kernel.inverse)
    return kernel if kernel.derived.address else UncompiledKernel(kernel)


class UncompiledKernel(Comparison):
    """A custom kernel computed by torch, where it cannot be compiled."""

    def __init__(self, kernel: CustomKernel) -> None:
        super().__init__(kernel.column, kernel.description)
        self._kernel = kernel

    def logs(self, keys: pa.Array) -> np.ndarray:
        return self._kernel.logs(keys)

    def window(self) -> Condition | None:
        return self._kernel.window()

    def bounds(self, low: pa.Array, high: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        return self._kernel.bounds(low, high)


class Pairs(Comparison):
    """Any similarity of vectors, or of numbers as vectors of one column."""

    def __init__(
        self, column: str, type: pa.DataType, entries: pa.Array, similarity: Similarity
    ) -> None:
        ending = ""
        if isinstance(similarity, Kernel):
            width = similarity.bandwidth(torch.zeros(1, 1, dtype=torch.float64))
            ending = f", bandwidth {float(width):g}"
        super().__init__(column, described(similarity) + ending)
        self._similarity = similarity
        self._is_vector = kind_of(type) is Kind.VECTOR
        query = vectors(entries, column) if self._is_vector else numbers(plain(entries))[:, None]
        self.query = _tensor(query)  # (n, d)

    def logs(self, keys: pa.Array) -> np.ndarray:
        if self._is_vector:
            tokens = key_vectors(keys, self.column, self.query.shape[1])
        else:
            tokens = numbers(plain(keys))[:, None]
        if len(tokens) == 0:
            return np.empty((len(self.query), 0))
        with torch.no_grad():
            logs = self._compiled(_tensor(tokens))
        if np.isnan(logs).any():
            raise _not_weights(described(self._similarity))
        return logs

    def _compiled(self, key: torch.Tensor) -> np.ndarray:
        form = self._similarity.as_fused(self.query, key)
        program = None if isinstance(form, str) else PROGRAMS.get(form.kind)
        if isinstance(form, str) or program is None:
            return self._by_torch(key)
        try:
            address = tile_function(program, "row_scores").address("float64")
        except UnavailableError as reason:
            warn_once(str(reason))
            return self._by_torch(key)
        scores = np.empty((len(self.query), len(key)))
        kernels.pair_scores(
            address, _array(form.query), _array(form.key), _array(form.parameter), scores.ravel(),
            count=len(key), grain=kernels.TILE,
        )  # fmt: skip
        if not program.proportional:
            return scores
        with np.errstate(divide="ignore"):
            return np.log(scores, out=scores)

    def _by_torch(self, key: torch.Tensor) -> np.ndarray:
        similarity, (n, d) = self._similarity, self.query.shape
        query, key = similarity.prepare(self.query, key)
        rows = max(1, _AT_ONCE // max(1, n * similarity.pair_width(d)))
        return torch.cat([similarity.log_score(query, each) for each in key.split(rows)], 1).numpy()


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Of an array that torch may take, which Arrow's are not."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _array(tensor: torch.Tensor) -> Any:
    return tensor.double().contiguous().numpy()
