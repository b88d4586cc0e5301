"""One attention call as it was recorded: its queries and keys, and the weights they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor

from qkv import pooling
from qkv.mask import Mask
from qkv.memory import TILE_BYTES
from qkv.nn.heads import PerHead
from qkv.similarity import Similarity

#: One, a run of them, or several.
Pick: TypeAlias = int | slice | Sequence[int]


class Top(NamedTuple):
    """The heaviest weights of each row, and the keys they fall on; both (batch, heads, n, k)."""

    weights: Tensor
    keys: Tensor


class VersionedTensor(NamedTuple):
    """A tensor, and how often it had been written to when it was kept."""

    what: str
    tensor: Tensor
    version: int | None  # None: torch does not count it

    @classmethod
    def of(cls, what: str, tensor: Tensor) -> VersionedTensor:
        return cls(what, tensor, None if tensor.is_inference() else tensor._version)

    @property
    def changed(self) -> bool:
        return self.version is not None and self.tensor._version != self.version


@dataclass(frozen=True, eq=False)
class Call:
    """What one call of attention was asked: linear in size, until its weights are asked for.

    Weights are computed when asked for, by :func:`qkv.weights` from the very queries, keys and mask
    of the call; they are those before dropout.
    """

    #: The path of the module that asked, as in ``model.named_modules()``.
    name: str
    #: Counted from 0, in the order in which the modules first asked.
    layer: int
    query: Tensor  # (..., n, d_q)
    key: Tensor  # (..., m, d_k); maybe fewer heads than the query
    similarity: Similarity | PerHead
    mask: Mask | None
    #: Which rows and heads are given where none are named.
    rows: Pick | None = None
    heads: Pick | None = None

    def __post_init__(self) -> None:
        for name in ("query", "key"):
            object.__setattr__(self, name, _own(getattr(self, name)))
        self.pick("rows", None, self.n)
        self.pick("heads", None, self.head_count)
        kept = [VersionedTensor.of("query", self.query), VersionedTensor.of("key", self.key)]
        kept += [
            VersionedTensor.of("mask", tensor)
            for tensor in (self.mask.tensors() if self.mask else [])
        ]
        kept += [
            VersionedTensor.of("similarity", tensor) for tensor in self.similarity.parameters()
        ]
        object.__setattr__(self, "_kept", kept)

    @property
    def n(self) -> int:
        """How many queries."""
        return self.query.shape[-2]

    @property
    def m(self) -> int:
        """How many keys."""
        return self.key.shape[-2]

    @property
    def groups(self) -> int:
        """How many heads of queries share one of keys."""
        if min(self.query.ndim, self.key.ndim) < 4 or self.key.shape[-3] == 1:
            return 1
        return self.query.shape[-3] // self.key.shape[-3]

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes of queries and keys, broadcast."""
        lead = list(self.key.shape[:-2])
        if self.groups > 1:
            lead[-1] *= self.groups
        return tuple(torch.broadcast_shapes(self.query.shape[:-2], lead))

    @property
    def head_count(self) -> int:
        """How many heads asked side by side."""
        return self.batch[-1] if len(self.batch) > 1 else 1

    def weights(self, rows: Pick | None = None, heads: Pick | None = None) -> Tensor:
        """The weights, (batch, heads, queries, keys), each row summing to 1 or all 0.

        Args:
            rows: which queries; None: those that the recording was asked for, else all.
            heads: which heads, likewise.
        """
        self._check_unchanged()
        chosen = self.pick("heads", heads, self.head_count)
        parts = [self._weights(run, chosen) for run in _runs(self.pick("rows", rows, self.n))]
        weights = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)
        for _ in range(2 - len(self.batch)):
            weights = weights.unsqueeze(-3)  # one head, and, before it, a batch of one
        return weights

    def top(self, k: int, rows: Pick | None = None, heads: Pick | None = None) -> Top:
        """The `k` heaviest weights of each row, a tile of rows at a time: linear in memory."""
        if not 1 <= k <= self.m:
            raise ValueError(f"k must be between 1 and {self.m}, the number of keys; got {k}")
        wanted = self.pick("rows", rows, self.n)
        chosen = self.pick("heads", heads, self.head_count)
        entries = self.batch[0] if len(self.batch) > 1 else 1
        size = max(1, TILE_BYTES // max(1, 4 * self.m * len(chosen) * entries))
        tiles = [wanted[start : start + size] for start in range(0, len(wanted), size)] or [[]]
        heaviest = [self.weights(tile, chosen).topk(k) for tile in tiles]
        return Top(
            torch.cat([values for values, _ in heaviest], dim=-2),
            torch.cat([keys for _, keys in heaviest], dim=-2),
        )

    @cached_property
    def log_total(self) -> Tensor:
        """The logarithm of each row's total before it was normalised, (batch, heads, queries).

        A weight is exp(log_score − log_total), so with it a single pair can be weighed without
        its row. In linear memory.
        """
        self._check_unchanged()
        everyone = range(self.head_count)
        parts = [
            pooling.attend_partial(query, key, key, similarity=similarity, mask=mask).log_total
            for query, key, similarity, mask in self._parts(list(everyone))
        ]
        log_total = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)
        for _ in range(2 - len(self.batch)):
            log_total = log_total.unsqueeze(-2)
        return log_total

    def pick(self, name: str, chosen: Pick | None, size: int) -> list[int]:
        """The rows or heads that `chosen` names, or else those of the recording."""
        chosen = getattr(self, name) if chosen is None else chosen
        return picked(name, chosen, size)

    @torch.no_grad()
    def _weights(self, rows: slice, heads: list[int]) -> Tensor:
        parts = [
            pooling.weights(query, key, similarity=similarity, mask=mask, rows=rows)
            for query, key, similarity, mask in self._parts(heads)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-3)

    def _parts(self, heads: list[int]) -> Iterator[tuple[Tensor, Tensor, Similarity, Mask | None]]:
        """The question of these heads: at once where it is all of them, else head by head."""
        query, key = self.query, self.key
        everyone = heads == list(range(self.head_count))
        if everyone and not isinstance(self.similarity, PerHead):
            if self.groups > 1:
                key = key.repeat_interleave(self.groups, dim=-3)
            yield query, key, self.similarity, self.mask
            return
        batch, axis = self.batch, len(self.batch) - 1
        for head in heads:
            similarity: Any = self.similarity
            one_each = isinstance(similarity, PerHead)
            similarity = (
                similarity[head] if one_each else similarity.narrow(axis, head, head + 1, batch)
            )
            mask = self.mask and self.mask.narrow(axis, head, head + 1, batch)
            yield _head(query, head), _head(key, head // self.groups), similarity, mask

    def _check_unchanged(self) -> None:
        for kept in self._kept:  # type: ignore[attr-defined]
            if kept.changed:
                raise RuntimeError(
                    f"the weights of {self.name or 'this call'} are lost: its {kept.what} was "
                    "changed in place after the call; ask for them before that"
                )

    def __repr__(self) -> str:
        lead = ", ".join(map(str, self.batch))
        return f"Call({self.name!r}, layer {self.layer}, {lead}: {self.n} queries × {self.m} keys)"


@dataclass(frozen=True, eq=False, repr=False)
class WeighedCall(Call):
    """A call whose formula is not understood: its weights are kept as the model computed them.

    They are `query` and `key` alike, (…, n, m), and take as much memory.
    """

    @property
    def m(self) -> int:
        return self.query.shape[-1]

    @property
    def groups(self) -> int:
        return 1

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.query.shape[:-2])

    @property
    def log_total(self) -> Tensor:
        raise ValueError(
            f"the scores of {self.name or 'this call'} are not known, only its weights"
        )

    def _weights(self, rows: slice, heads: list[int]) -> Tensor:
        weights = self.query[..., rows, :]
        return weights if len(self.batch) < 2 else weights[..., heads, :, :]


class Missed(NamedTuple):
    """Attention that a recording has not: the path of the module, and what gave it away."""

    name: str
    reason: str


class Calls(Sequence[Call]):
    """Attention calls in the order in which they were made, and what was missed."""

    def __init__(self, calls: Sequence[Call] = ()) -> None:
        self._calls = list(calls)
        #: What looked like attention and was not recorded.
        self.missed: list[Missed] = []

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> Calls: ...
    def __getitem__(self, index: int | slice) -> Call | Calls:
        return Calls(self._calls[index]) if isinstance(index, slice) else self._calls[index]

    def __len__(self) -> int:
        return len(self._calls)

    def append(self, call: Call) -> None:
        self._calls.append(call)

    def stacked(self, entry: int = 0) -> Tensor:
        """Weights of one entry of the batch, (layers, heads, queries, keys), as `qkv.view` takes.

        All calls must be of one size.
        """
        if not self._calls:
            raise ValueError("no attention was recorded: did the model run inside `with`?")
        every = [call.weights() for call in self._calls]
        shapes = {tuple(weights.shape[1:]) for weights in every}
        if len(shapes) > 1:
            sizes = ", ".join(map(str, sorted(shapes)))
            raise ValueError(f"only calls of one size can be stacked; got {sizes}")
        return torch.stack([weights[entry] for weights in every])

    def __repr__(self) -> str:
        return "\n".join(["Calls:", *(f"  {call!r}" for call in self._calls)])


def picked(name: str, chosen: Pick | None, size: int) -> list[int]:
    """`chosen` out of `size` as a list; a user's mistake is told by `name`."""
    if chosen is None:
        return list(range(size))
    if isinstance(chosen, slice):
        return list(range(*chosen.indices(size)))
    several = [chosen] if isinstance(chosen, int) else list(chosen)
    for index in several:
        if not -size <= index < size:
            raise ValueError(f"{name} must be between 0 and {size - 1}; got {index}")
    return [index % size for index in several]


def _own(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy where it looks into another.

    That may be larger and would be kept alive, or be a cache of keys that is yet to be written to.
    """
    return tensor.detach().clone() if tensor._is_view() else tensor.detach()


def _head(tensor: Tensor, head: int) -> Tensor:
    """Head `head` of (…, heads, n, d), its axis kept; what has none serves every head."""
    if tensor.ndim < 4 or tensor.shape[-3] == 1:
        return tensor
    return tensor[..., head : head + 1, :, :]


def _runs(indices: list[int]) -> list[slice]:
    """The indices as runs of neighbours, in their order."""
    runs: list[slice] = []
    for index in indices:
        if runs and runs[-1].stop == index:
            runs[-1] = slice(runs[-1].start, index + 1)
        else:
            runs.append(slice(index, index + 1))
    return runs or [slice(0, 0)]
