"""Who may look at whom. True means *may attend*, everywhere.

A mask is an object, a boolean tensor (True = may attend) or a floating tensor (added to the
scores; −inf = may not attend). They combine with ``&`` (both must allow) and ``|`` (either may):

    Causal() & Lengths([7, 5])          a padded batch of a language model
    Window(128, 128) | Blocks(64)       neighbours, and one's own block

Positions are aligned to the *end*: with n queries and m keys, query i stands at key position
i + (m − n), so a decoder's last query sees every key, however few queries are asked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Tile(NamedTuple):
    """The queries `start` to `stop` of n, against all m keys, for leading axes `batch`."""

    start: int
    stop: int
    n: int
    m: int
    batch: tuple[int, ...]
    device: torch.device

    def positions(self) -> Tensor:
        """Where each query stands among the keys, (stop − start,)."""
        return torch.arange(self.start, self.stop, device=self.device) + (self.m - self.n)

    def distances(self) -> Tensor:
        """Key position minus query position, (stop − start, m)."""
        return torch.arange(self.m, device=self.device) - self.positions().unsqueeze(-1)


class Runs(NamedTuple):
    """Keys that lie in one run for each query: start, start + stride, … below stop."""

    start: Tensor  # (..., n), whole numbers; may lie outside of the keys
    stop: Tensor  # (..., n)
    stride: int = 1

    def share(self, m: int) -> float:
        """The share of all pairs that is in the runs."""
        counts = (self.stop.clamp(max=m) - self.start.clamp(min=0)).clamp(min=0)
        return counts.double().mean().item() / self.stride / m

    def intersect(self, other: Runs) -> Runs | None:
        """The keys in both; None where both have a stride of their own."""
        if self.stride > 1 and other.stride > 1:
            return None
        if other.stride > 1:
            self, other = other, self
        # The later start, moved up to the next key of the run that has a stride.
        late = torch.maximum(self.start, other.start)
        start = late + (self.start - late) % self.stride
        return Runs(start, torch.minimum(self.stop, other.stop), self.stride)


class Parts(NamedTuple):
    """A mask as one run of keys for each query and a boolean tensor; None: no limit."""

    runs: Runs | None
    allowed: Tensor | None


class Mask:
    """The base of all masks: what may be attended to, tile by tile."""

    #: False where all queries may see the same keys.
    per_query = True
    #: True where the choice depends on the scores, not on positions alone.
    needs_scores = False

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        """Raise ValueError unless this mask fits queries (*batch, n) and keys (*batch, m)."""

    def allowed(self, tile: Tile) -> Tensor:
        """What may be attended to, boolean, broadcastable to (*batch, stop − start, m)."""
        raise TypeError(f"{type(self).__name__} must define allowed(tile)")

    def within(self, universe: Tensor | None, tile: Tile, log_scores: Tensor) -> Tensor | None:
        """Narrow `universe` (None: every key) to what this mask allows there."""
        allowed = self.allowed(tile)
        return allowed if universe is None else universe & allowed

    def runs(self, tile: Tile) -> Runs | None:
        """What may be attended to as one run of keys for each query; None where it is none."""
        return None

    def parts(self, tile: Tile) -> Parts | None:
        """What may be attended to as runs and a tensor, whichever it is made of; None where it
        is made of neither."""
        runs = self.runs(tile)
        return None if runs is None else Parts(runs, None)

    def best_of(self) -> tuple[int, Mask | None] | None:
        """(k, rest) where this mask is the k best of what `rest` allows; None where it is not."""
        return None

    def bias(self) -> Tensor | None:
        """What is added to the scores, broadcastable to (*batch, n, m)."""
        return None

    def visible_keys(self, tile: Tile) -> Tensor | None:
        """Keys that some query may see, (*batch, 1, m), where that is known without looking
        at every query; None where it is not."""
        return None if self.per_query else self.allowed(tile)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        """This mask for entries `start` to `stop` of the leading axis `axis` alone."""
        return self

    def tensors(self) -> list[Tensor]:
        """The tensors this mask holds."""
        return []

    def __and__(self, other: MaskLike) -> Mask:
        return And(self, as_mask(other))

    def __rand__(self, other: MaskLike) -> Mask:
        return And(as_mask(other), self)

    def __or__(self, other: MaskLike) -> Mask:
        return Or(self, as_mask(other))

    def __ror__(self, other: MaskLike) -> Mask:
        return Or(as_mask(other), self)


class Causal(Mask):
    """Keys up to the query's own position: j ≤ i + (m − n), aligned to the end."""

    def allowed(self, tile: Tile) -> Tensor:
        return tile.distances() <= 0

    def runs(self, tile: Tile) -> Runs:
        positions = tile.positions()
        return Runs(torch.zeros_like(positions), positions + 1)

    def __repr__(self) -> str:
        return "Causal()"


class Window(Mask):
    """Keys at most `before` positions before and `after` positions after the query."""

    def __init__(self, before: int, after: int) -> None:
        self.before = _whole("before", before, least=0)
        self.after = _whole("after", after, least=0)

    def allowed(self, tile: Tile) -> Tensor:
        distance = tile.distances()
        return (distance >= -self.before) & (distance <= self.after)

    def runs(self, tile: Tile) -> Runs:
        positions = tile.positions()
        return Runs(positions - self.before, positions + self.after + 1)

    def __repr__(self) -> str:
        return f"Window({self.before}, {self.after})"


class Blocks(Mask):
    """Keys in the query's own block of `size` positions."""

    def __init__(self, size: int) -> None:
        self.size = _whole("size", size, least=1)

    def allowed(self, tile: Tile) -> Tensor:
        keys = torch.arange(tile.m, device=tile.device) // self.size
        return keys == (tile.positions() // self.size).unsqueeze(-1)

    def runs(self, tile: Tile) -> Runs:
        first = tile.positions() // self.size * self.size
        return Runs(first, first + self.size)

    def __repr__(self) -> str:
        return f"Blocks({self.size})"


class Dilated(Mask):
    """The query's own position and `window` keys to either side, `stride` positions apart."""

    def __init__(self, window: int, stride: int) -> None:
        self.window = _whole("window", window, least=0)
        self.stride = _whole("stride", stride, least=1)

    def allowed(self, tile: Tile) -> Tensor:
        distance = tile.distances()
        return (distance.abs() <= self.window * self.stride) & (distance % self.stride == 0)

    def runs(self, tile: Tile) -> Runs:
        positions, reach = tile.positions(), self.window * self.stride
        return Runs(positions - reach, positions + reach + 1, self.stride)

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
            size in (1, wanted) for size, wanted in zip(shape, batch, strict=False)
        )
        if not fits:
            raise ValueError(
                f"mask Lengths must match the first leading axes {batch}; got shape {shape}"
            )

    def allowed(self, tile: Tile) -> Tensor:
        keys = torch.arange(tile.m, device=tile.device)
        return keys < self._for_rows(tile).unsqueeze(-1)  # (*batch, 1, m)

    def runs(self, tile: Tile) -> Runs:
        stop = self._for_rows(tile).expand(*tile.batch, tile.stop - tile.start)
        return Runs(torch.zeros_like(stop), stop)

    def _for_rows(self, tile: Tile) -> Tensor:
        missing = len(tile.batch) - self.lengths.ndim
        lengths = self.lengths.reshape(*self.lengths.shape, *([1] * missing), 1)
        return lengths.to(tile.device)  # (*batch, 1)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        if axis < self.lengths.ndim and self.lengths.shape[axis] > 1:
            return Lengths(self.lengths.narrow(axis, start, stop - start))
        return self

    def tensors(self) -> list[Tensor]:
        return [self.lengths]

    def __repr__(self) -> str:
        return f"Lengths({self.lengths.tolist()})"


class TopK(Mask):
    """The `k` best-scoring keys of each query; of equal scores, those that come first.

    Combined with ``&``, it ranks only the keys that the other mask allows.
    """

    needs_scores = True

    def __init__(self, k: int) -> None:
        self.k = _whole("k", k, least=1)

    def allowed(self, tile: Tile) -> Tensor:
        # Before scores are known any key may be among the best.
        return torch.ones(tile.stop - tile.start, tile.m, dtype=torch.bool, device=tile.device)

    def within(self, universe: Tensor | None, tile: Tile, log_scores: Tensor) -> Tensor | None:
        if universe is not None:
            log_scores = log_scores.masked_fill(~universe, -torch.inf)
        # A stable sort, because torch.topk breaks ties as it likes.
        ranking = log_scores.detach().sort(dim=-1, descending=True, stable=True).indices
        best = torch.zeros_like(log_scores, dtype=torch.bool)
        best = best.scatter(-1, ranking[..., : self.k], True)
        return best if universe is None else universe & best

    def best_of(self) -> tuple[int, Mask | None]:
        return self.k, None

    def __repr__(self) -> str:
        return f"TopK({self.k})"


class Allowed(Mask):
    """A boolean tensor that broadcasts to (…, n, m); True = may attend."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = _at_least_2d(tensor)
        self.per_query = self.tensor.shape[-2] != 1

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        _check_broadcast(self.tensor, (*batch, n, m))

    def allowed(self, tile: Tile) -> Tensor:
        return _rows(self.tensor, tile)

    def parts(self, tile: Tile) -> Parts:
        return Parts(None, self.allowed(tile))

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return Allowed(_narrow(self.tensor, axis, start, stop, batch))

    def tensors(self) -> list[Tensor]:
        return [self.tensor]

    def __repr__(self) -> str:
        return f"boolean tensor {tuple(self.tensor.shape)}"


class Bias(Mask):
    """A floating tensor that broadcasts to (…, n, m), added to the scores; −inf = may not attend.

    Where weights are proportional to a kernel, it multiplies the kernel by exp(bias).
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = _at_least_2d(tensor)
        self.per_query = self.tensor.shape[-2] != 1

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        _check_broadcast(self.tensor, (*batch, n, m))

    def allowed(self, tile: Tile) -> Tensor:
        return _rows(self.tensor, tile) != -torch.inf

    def parts(self, tile: Tile) -> Parts:
        return Parts(None, None)  # it limits through what it adds

    def bias(self) -> Tensor | None:
        return self.tensor

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return Bias(_narrow(self.tensor, axis, start, stop, batch))

    def tensors(self) -> list[Tensor]:
        return [self.tensor]

    def __repr__(self) -> str:
        return f"floating tensor {tuple(self.tensor.shape)}"


class _Pair(Mask):
    """Two masks in one."""

    sign = ""

    def __init__(self, left: Mask, right: Mask) -> None:
        self.left, self.right = left, right
        self.per_query = left.per_query or right.per_query
        self.needs_scores = left.needs_scores or right.needs_scores

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        self.left.check(batch, n, m)
        self.right.check(batch, n, m)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return type(self)(
            self.left.narrow(axis, start, stop, batch), self.right.narrow(axis, start, stop, batch)
        )

    def tensors(self) -> list[Tensor]:
        return [*self.left.tensors(), *self.right.tensors()]

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


class And(_Pair):
    """Keys that both masks allow; what is chosen by score is chosen among those of the other."""

    sign = "&"

    def allowed(self, tile: Tile) -> Tensor:
        return self.left.allowed(tile) & self.right.allowed(tile)

    def within(self, universe: Tensor | None, tile: Tile, log_scores: Tensor) -> Tensor | None:
        first, last = self.left, self.right
        if first.needs_scores:
            first, last = last, first
        return last.within(first.within(universe, tile, log_scores), tile, log_scores)

    def runs(self, tile: Tile) -> Runs | None:
        left, right = self.left.runs(tile), self.right.runs(tile)
        return None if left is None or right is None else left.intersect(right)

    def parts(self, tile: Tile) -> Parts | None:
        left, right = self.left.parts(tile), self.right.parts(tile)
        if left is None or right is None:
            return None
        runs = left.runs or right.runs
        if left.runs is not None and right.runs is not None:
            runs = left.runs.intersect(right.runs)
            if runs is None:
                return None
        if left.allowed is None or right.allowed is None:
            return Parts(runs, right.allowed if left.allowed is None else left.allowed)
        return Parts(runs, left.allowed & right.allowed)

    def best_of(self) -> tuple[int, Mask | None] | None:
        for ranking, other in ((self.left, self.right), (self.right, self.left)):
            found = ranking.best_of()
            if found is not None and not other.needs_scores:
                k, rest = found
                return k, other if rest is None else And(rest, other)
        return None

    def bias(self) -> Tensor | None:
        left, right = self.left.bias(), self.right.bias()
        if left is None or right is None:
            return right if left is None else left
        return left + right

    def visible_keys(self, tile: Tile) -> Tensor | None:
        left, right = self.left.visible_keys(tile), self.right.visible_keys(tile)
        if left is None or right is None:
            return right if left is None else left
        return left & right


class Or(_Pair):
    """Keys that either mask allows."""

    sign = "|"

    def __init__(self, left: Mask, right: Mask) -> None:
        super().__init__(left, right)
        for side in (left, right):
            if any(tensor.is_floating_point() for tensor in side.tensors()):
                raise TypeError("a floating mask is added to the scores and combines with & only")

    def allowed(self, tile: Tile) -> Tensor:
        return self.left.allowed(tile) | self.right.allowed(tile)

    def within(self, universe: Tensor | None, tile: Tile, log_scores: Tensor) -> Tensor | None:
        left = self.left.within(universe, tile, log_scores)
        right = self.right.within(universe, tile, log_scores)
        return None if left is None or right is None else left | right


MaskLike: TypeAlias = Mask | Tensor | npt.NDArray[np.bool_] | npt.NDArray[np.floating]


def as_mask(mask: MaskLike) -> Mask:
    """The mask that `mask` stands for: a Mask, or a boolean or floating tensor or array."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, np.ndarray):
        mask = torch.from_numpy(mask)
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"mask must be a qkv.mask object or a boolean or floating tensor; "
            f"got {type(mask).__name__}"
        )
    if mask.dtype == torch.bool:
        return Allowed(mask)
    if mask.is_floating_point():
        return Bias(mask)
    raise TypeError(
        f"mask must be boolean (True = may attend) or floating (added to the scores); "
        f"got {mask.dtype}"
    )


def _at_least_2d(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim > 1 else tensor.reshape(1, -1)


def _rows(tensor: Tensor, tile: Tile) -> Tensor:
    return tensor if tensor.shape[-2] == 1 else tensor[..., tile.start : tile.stop, :]


def _narrow(tensor: Tensor, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Tensor:
    own_axis = tensor.ndim - 2 - len(batch) + axis  # leading axes broadcast from the right
    if own_axis >= 0 and tensor.shape[own_axis] != 1:
        return tensor.narrow(own_axis, start, stop - start)
    return tensor


def _check_broadcast(tensor: Tensor, shape: tuple[int, ...]) -> None:
    own = tuple(tensor.shape)
    fits = len(own) <= len(shape) and all(
        size in (1, wanted) for size, wanted in zip(reversed(own), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(f"mask must broadcast to (..., n, m) = {shape}; got {own}")


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number; got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")
    return int(value)
