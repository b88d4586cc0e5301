"""Masks by position: neighbours, blocks, the past, what is no padding."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.mask.base import Hidden, Mask, Parts, Runs, Tile
from qkv.tracing import can_read_values, is_eager

#: Lengths are read while they are few.
MOST_READ = 256

#: Masks of up to so many entries are kept: making one anew takes longer than a short sequence.
MOST_KEPT = 2**18


class Causal(Mask):
    """Keys up to the query's own position: j ≤ i + (m − n), aligned to the end."""

    def allowed(self, tile: Tile) -> Tensor:
        return torch.arange(tile.m, device=tile.device) <= tile.positions().unsqueeze(-1)

    def hidden(self, tile: Tile) -> Hidden:
        if tile.n > tile.m or not _is_kept(tile, tile.n * tile.m):
            return super().hidden(tile)
        if tile.stop - tile.start < tile.n:
            return Hidden(_ahead(tile.n, tile.m).pairs[tile.start : tile.stop], None)
        return _ahead(tile.n, tile.m)

    def as_runs(self, tile: Tile) -> Runs:
        if _is_kept(tile, tile.n):
            start, stop = _up_to_each(tile.n, tile.m)
            return Runs(start[tile.start : tile.stop], stop[tile.start : tile.stop])
        positions = tile.positions()
        return Runs(torch.zeros_like(positions), positions + 1)

    def allowed_at(self, distance: Tensor) -> Tensor:
        return distance <= 0

    def common_stop(self, n: int, m: int, batch: tuple[int, ...]) -> int | None:
        return m if n == 1 else None

    def for_shared_heads(self, axis: int) -> Mask:
        return self

    def share(self, n: int, m: int) -> float:
        return 1 - (min(n, m) - 1) / (2 * m) if m else 1.0

    def signature(self) -> Hashable:
        return Causal

    def __repr__(self) -> str:
        return "Causal()"


class CausalFromStart(Mask):
    """Keys up to the query's own number, j ≤ i: what torch's kernel calls causal."""

    def allowed(self, tile: Tile) -> Tensor:
        return tile.distances() <= tile.n - tile.m

    def __repr__(self) -> str:
        return "CausalFromStart()"


class Window(Mask):
    """Keys at most `before` positions before and `after` positions after the query."""

    def __init__(self, before: int, after: int) -> None:
        self.before = whole_number("before", before, least=0)
        self.after = whole_number("after", after, least=0)

    def allowed(self, tile: Tile) -> Tensor:
        return self.allowed_at(tile.distances())

    def allowed_at(self, distance: Tensor) -> Tensor:
        return (distance >= -self.before) & (distance <= self.after)

    def as_runs(self, tile: Tile) -> Runs:
        positions = tile.positions()
        return Runs(positions - self.before, positions + self.after + 1)

    def for_shared_heads(self, axis: int) -> Mask:
        return self

    def share(self, n: int, m: int) -> float:
        return min(1.0, (self.before + self.after + 1) / m) if m else 1.0

    def signature(self) -> Hashable:
        return Window, self.before, self.after

    def __repr__(self) -> str:
        return f"Window({self.before}, {self.after})"


class ExceptSelf(Mask):
    """Every key but the one at the query's own position: leave-one-out, where queries are keys."""

    def allowed(self, tile: Tile) -> Tensor:
        return self.allowed_at(tile.distances())

    def allowed_at(self, distance: Tensor) -> Tensor:
        return distance != 0

    def share(self, n: int, m: int) -> float:
        return 1 - 1 / m if m else 1.0

    def signature(self) -> Hashable:
        return ExceptSelf

    def __repr__(self) -> str:
        return "ExceptSelf()"


class Blocks(Mask):
    """Keys in the query's own block of `size` positions."""

    def __init__(self, size: int) -> None:
        self.size = whole_number("size", size, least=1)

    def allowed(self, tile: Tile) -> Tensor:
        keys = torch.arange(tile.m, device=tile.device) // self.size
        return keys == (tile.positions() // self.size).unsqueeze(-1)

    def as_runs(self, tile: Tile) -> Runs:
        first = tile.positions() // self.size * self.size
        return Runs(first, first + self.size)

    def for_shared_heads(self, axis: int) -> Mask:
        return self

    def share(self, n: int, m: int) -> float:
        return min(1.0, self.size / m) if m else 1.0

    def signature(self) -> Hashable:
        return Blocks, self.size

    def __repr__(self) -> str:
        return f"Blocks({self.size})"


class Dilated(Mask):
    """The query's own position and `window` keys to either side, `stride` positions apart."""

    def __init__(self, window: int, stride: int) -> None:
        self.window = whole_number("window", window, least=0)
        self.stride = whole_number("stride", stride, least=1)

    def allowed(self, tile: Tile) -> Tensor:
        return self.allowed_at(tile.distances())

    def allowed_at(self, distance: Tensor) -> Tensor:
        return (distance.abs() <= self.window * self.stride) & (distance % self.stride == 0)

    def as_runs(self, tile: Tile) -> Runs:
        positions, reach = tile.positions(), self.window * self.stride
        return Runs(positions - reach, positions + reach + 1, self.stride)

    def for_shared_heads(self, axis: int) -> Mask:
        return self

    def share(self, n: int, m: int) -> float:
        return min(1.0, (2 * self.window + 1) / m) if m else 1.0

    def signature(self) -> Hashable:
        return Dilated, self.window, self.stride

    def __repr__(self) -> str:
        return f"Dilated({self.window}, {self.stride})"


class Lengths(Mask):
    """The first `lengths` keys of each batch entry; the rest is padding.

    The axes of `lengths` are the *first* leading axes of the query: a length for each sentence,
    shape (batch,), serves queries of shape (batch, n, d) and (batch, heads, n, d) alike.
    """

    per_query = False

    def __init__(self, lengths: Sequence[int] | npt.NDArray[np.integer] | Tensor | int) -> None:
        self.lengths = torch.as_tensor(lengths)
        if self.lengths.dtype == torch.bool or self.lengths.is_floating_point():
            raise TypeError(f"lengths must be whole numbers; got {self.lengths.dtype}")

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        shape = tuple(self.lengths.shape)
        fits = len(shape) <= len(batch) and all(
            size == 1 or size == wanted for size, wanted in zip(shape, batch, strict=False)
        )
        if not fits:
            raise ValueError(
                f"mask Lengths must match the first leading axes {batch}; got shape {shape}"
            )

    def allowed(self, tile: Tile) -> Tensor:
        keys = torch.arange(tile.m, device=tile.device)
        return keys < self._for_rows(tile).unsqueeze(-1)  # (*batch, 1, m)

    def hidden(self, tile: Tile) -> Hidden:
        read = self._read()
        if read is None or not _is_kept(tile, tile.m * self.lengths.numel()):
            return super().hidden(tile)
        return _behind(read, self._shape(tile), tile.m)

    def as_runs(self, tile: Tile) -> Runs:
        stop = self._for_rows(tile).expand(*tile.batch, tile.stop - tile.start)
        return Runs(torch.zeros_like(stop), stop)

    def as_parts(self, tile: Tile) -> Parts:
        read = self._read()
        if read is None or not _is_kept(tile, self.lengths.numel()):
            return super().as_parts(tile) or Parts(None, None)
        return Parts(Runs(*_up_to_lengths(read, self._shape(tile))), None)

    def common_stop(self, n: int, m: int, batch: tuple[int, ...]) -> int | None:
        read = self._read()
        alike = None if read is None else _all_alike(read)
        return None if alike is None else max(0, min(alike, m))

    def _read(self) -> Numbers | None:
        """The lengths, where they are few and may be looked at."""
        lengths = self.lengths
        if lengths.is_cpu and is_eager(lengths) and 0 < lengths.numel() <= MOST_READ:
            numbers = lengths.numpy()
            return Numbers(numbers.tobytes(), numbers.dtype.str)
        return None

    def _shape(self, tile: Tile) -> tuple[int, ...]:
        return (*self.lengths.shape, *([1] * (len(tile.batch) - self.lengths.ndim)), 1)

    def _for_rows(self, tile: Tile) -> Tensor:
        return self.lengths.reshape(self._shape(tile)).to(tile.device)  # (*batch, 1)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        if axis < self.lengths.ndim and self.lengths.shape[axis] > 1:
            return Lengths(self.lengths.narrow(axis, start, stop - start))
        return self

    def for_shared_heads(self, axis: int) -> Mask | None:
        return self if self.lengths.ndim <= axis else None

    def tensors(self) -> list[Tensor]:
        return [self.lengths]

    def signature(self) -> Hashable:
        return Lengths, self.lengths.shape, self.lengths.device

    def __repr__(self) -> str:
        return f"Lengths({self.lengths.tolist()})"


# Masks that are kept are made outside of inference mode, so that any later call may use them.


def _is_kept(tile: Tile, size: int) -> bool:
    """Whether a mask of so many entries may be kept, and nobody traces what is made of it."""
    return can_read_values() and size <= MOST_KEPT and tile.device.type == "cpu"


@lru_cache(maxsize=8)
def _ahead(n: int, m: int) -> Hidden:
    """Keys ahead of each query, (n, m)."""
    with torch.inference_mode(False):
        return Hidden(torch.ones(n, m, dtype=torch.bool).triu_(m - n + 1), None)


@lru_cache(maxsize=8)
def _up_to_each(n: int, m: int) -> tuple[Tensor, Tensor]:
    """Where the keys up to each query's own position start and stop, (n,)."""
    with torch.inference_mode(False):
        stop = torch.arange(m - n + 1, m + 1)
        return torch.zeros_like(stop), stop


class Numbers(NamedTuple):
    """Whole numbers as they lie in memory, which is quickly read and looked up."""

    held: bytes
    dtype: str

    def tensor(self) -> Tensor:
        return torch.tensor(np.frombuffer(self.held, self.dtype).astype(np.int64))


@lru_cache(maxsize=32)
def _all_alike(lengths: Numbers) -> int | None:
    """The length that all of them are; None where they differ."""
    first, *others = set(lengths.tensor().tolist())
    return None if others else int(first)


@lru_cache(maxsize=32)
def _behind(lengths: Numbers, shape: tuple[int, ...], m: int) -> Hidden:
    """Which of m keys lie behind each of the lengths, (*shape, m)."""
    with torch.inference_mode(False):
        read = lengths.tensor().view(*shape, 1)
        nothing = read < 1  # the first key is hidden, and all others
        return Hidden(torch.arange(m) >= read, nothing if bool(nothing.any()) else None)


@lru_cache(maxsize=32)
def _up_to_lengths(lengths: Numbers, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Where the keys up to each of the lengths start and stop, (*shape)."""
    with torch.inference_mode(False):
        stop = lengths.tensor().view(shape)
        return torch.zeros_like(stop), stop


def whole_number(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number; got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")
    return int(value)
