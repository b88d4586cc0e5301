"""What a mask is: who may look at whom, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
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
        return self._lengths(m).double().mean().item() / self.stride / m

    def longest(self, m: int) -> int:
        """The keys from the start to the stop of the longest run."""
        return int(self._lengths(m).amax())

    def _lengths(self, m: int) -> Tensor:
        return (self.stop.clamp(max=m) - self.start.clamp(min=0)).clamp(min=0)

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


class Hidden:
    """What may not be attended to: `pairs` (…, rows or 1, m), and those `queries`
    (…, rows or 1, 1) that may attend to nothing; None: there are none."""

    __slots__ = ("_made", "pairs", "queries")

    def __init__(self, pairs: Tensor, queries: Tensor | None) -> None:
        self.pairs = pairs
        self.queries = queries
        self._made: dict[tuple[float, torch.dtype], Tensor] = {}

    def added(self, dtype: torch.dtype) -> Tensor:
        """What it adds to logarithms of weights: −inf where a key is hidden, else 0."""
        return self._numbers(-torch.inf, 0.0, dtype)

    def factors(self, dtype: torch.dtype) -> Tensor:
        """What it multiplies weights with: 0 where a key is hidden, else 1."""
        return self._numbers(0.0, 1.0, dtype)

    def _numbers(self, hidden: float, seen: float, dtype: torch.dtype) -> Tensor:
        made = self._made.get((hidden, dtype))
        if made is None:
            with torch.inference_mode(False):  # a mask that is kept serves any later call
                made = torch.full(self.pairs.shape, seen, dtype=dtype, device=self.pairs.device)
                self._made[hidden, dtype] = made.masked_fill_(self.pairs, hidden)
        return made

    def spread(self, batch: tuple[int, ...]) -> Hidden:
        """The same with all leading axes as one, those of size 1 left alone."""
        if len(batch) == 1 or self.pairs.ndim == 2:
            return self
        entries = math.prod(batch)

        def as_one(mask: Tensor) -> Tensor:
            return mask.expand(*batch, *mask.shape[-2:]).reshape(entries, *mask.shape[-2:])

        return Hidden(as_one(self.pairs), None if self.queries is None else as_one(self.queries))


class Mask:
    """The base of all masks: what may be attended to, tile by tile."""

    #: False where all queries may see the same keys.
    per_query = True
    #: True where the choice depends on the scores, not on positions alone.
    needs_scores = False
    #: True where it adds to the scores by position, see :mod:`qkv.bias`.
    adds_by_position = False

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        """Raise ValueError unless this mask fits queries (*batch, n) and keys (*batch, m)."""

    def allowed(self, tile: Tile) -> Tensor:
        """What may be attended to, boolean, broadcastable to (*batch, stop − start, m)."""
        raise TypeError(f"{type(self).__name__} must define allowed(tile)")

    def hidden(self, tile: Tile) -> Hidden:
        """What may not be attended to; it reads the mask to know whether some row is empty."""
        pairs = ~self.allowed(tile)
        queries = pairs.all(-1, keepdim=True)
        return Hidden(pairs, queries if bool(queries.any()) else None)

    def allowed_by_score(
        self, universe: Tensor | None, tile: Tile, log_scores: Tensor
    ) -> Tensor | None:
        """Narrow `universe` (None: every key) to what this mask allows there."""
        allowed = self.allowed(tile)
        return allowed if universe is None else universe & allowed

    def as_runs(self, tile: Tile) -> Runs | None:
        """What may be attended to as one run of keys for each query; None where it is none."""
        return None

    def as_parts(self, tile: Tile) -> Parts | None:
        """What may be attended to as runs and a tensor, whichever it is made of; None where it
        is made of neither."""
        runs = self.as_runs(tile)
        return None if runs is None else Parts(runs, None)

    def as_topk(self) -> tuple[int, Mask | None] | None:
        """(k, rest) where this mask is the k best of what `rest` allows; None where it is not."""
        return None

    def bias(self) -> Tensor | None:
        """What is added to the scores, broadcastable to (*batch, n, m)."""
        return None

    def allowed_at(self, distance: Tensor) -> Tensor | None:
        """What may be attended to at each key position − query position; None where more counts."""
        return None

    def without_positions(self) -> tuple[Mask | None, tuple[Mask, ...]]:
        """What limits, and what adds to the scores by position, apart from each other."""
        return self, ()

    def visible_keys(self, tile: Tile) -> Tensor | None:
        """Keys that some query may see, (*batch, 1, m), where that is known without looking
        at every query; None where it is not."""
        return None if self.per_query else self.allowed(tile)

    def common_stop(self, n: int, m: int, batch: tuple[int, ...]) -> int | None:
        """The number of keys where every query may see just the first so many; None: not so."""
        return None

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        """This mask for entries `start` to `stop` of the leading axis `axis` alone."""
        return self

    def for_shared_heads(self, axis: int) -> Mask | None:
        """This mask where the leading axis `axis`, of heads, is split into two, which it treats all
        alike; None where it may tell heads apart."""
        return None

    def tensors(self) -> list[Tensor]:
        """The tensors this mask holds."""
        return []

    def share(self, n: int, m: int) -> float:
        """About which share of all pairs it allows, as far as sizes tell."""
        return 1.0

    def pieces(self) -> int:
        """Into how many groups of queries it falls, of any sizes, that have no key in common."""
        return 1

    def signature(self) -> Hashable | None:
        """All that :meth:`check` and the choice of an operator depend on; None: nobody knows."""
        return None

    def __and__(self, other: MaskLike) -> Mask:
        from qkv.mask.boolean_ops import And, as_mask

        return And(self, as_mask(other))

    def __rand__(self, other: MaskLike) -> Mask:
        from qkv.mask.boolean_ops import And, as_mask

        return And(as_mask(other), self)

    def __or__(self, other: MaskLike) -> Mask:
        from qkv.mask.boolean_ops import Or, as_mask

        return Or(self, as_mask(other))

    def __ror__(self, other: MaskLike) -> Mask:
        from qkv.mask.boolean_ops import Or, as_mask

        return Or(as_mask(other), self)


MaskLike: TypeAlias = (
    Mask | Tensor | npt.NDArray[np.bool_] | npt.NDArray[np.floating] | Callable[..., Tensor]
)
