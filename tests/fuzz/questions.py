"""Questions to attention, drawn at random: one seed, one question."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fuzz.reference import KINDS, Kind, Question
from torch import Tensor

from qkv import bias, mask

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SIZES = (0, 1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 33, 64, 100, 257)
DIMS = (1, 1, 2, 3, 5, 8, 16, 31, 64)
#: Beyond so many numbers for all pairs a question says no more, and takes long.
MOST_NUMBERS = 300_000
#: Similarities that know tokens without dimensions.
WITHOUT_DIMENSIONS = {"dot", "cosine", "euclidean", "gaussian", "boxcar"}


@dataclass
class Asked:
    """A question as qkv gets it, and spelled out for the reference."""

    query: Tensor
    key: Tensor
    value: Tensor
    similarity: Any
    mask: Any
    bias: Any
    question: Question
    threads: int
    tile_bytes: int | None
    with_numpy: bool
    #: Which of query, key and value hold NaN or infinity, and where: (name, index, number).
    poison: list[tuple[str, tuple[int, ...], float]] = field(default_factory=list)

    def __str__(self) -> str:
        shapes = " ".join(str(tuple(x.shape)) for x in (self.query, self.key, self.value))
        dtype = str(self.query.dtype).removeprefix("torch.")
        return (
            f"{self.question.kind.name} {shapes} {dtype} mask={self.mask!r:.60} "
            f"bias={self.bias!r:.40} threads={self.threads} tiles={self.tile_bytes} "
            f"poison={self.poison}"
        )


def draw(seed: int) -> Asked:
    """The question of a seed."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kind = KINDS[rng.integers(len(KINDS))]
    dtype = DTYPES[rng.choice(4, p=[0.4, 0.36, 0.12, 0.12])]
    n, m, d, e, d_v, batch = _sizes(rng, kind)
    scale, offset = _magnitude(rng, kind, dtype)
    on_grid = kind.name == "equal" or rng.random() < 0.2
    tokens = []
    for name, rows, columns in (("query", n, d), ("key", m, e), ("value", m, d_v)):
        x = rng.normal(size=(*_lead(rng, batch), rows, columns))
        if name != "value":
            x = np.round(2 * x) / 2 * scale if on_grid else x * scale + offset
        tokens.append(_laid_out(rng, torch.tensor(x, dtype=dtype)))
    query, key, value = tokens
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in tokens))
    similarity = kind.make(rng, d, e)
    exact = similarity
    if isinstance(similarity, torch.nn.Module):
        similarity = similarity.to(dtype)
        exact = copy.deepcopy(similarity).double()
    made, allowed, added, top = _mask(rng, tuple(batch), n, m, dtype)
    by_position, of_position = _bias(rng, n, m)
    if of_position is not None:
        added = of_position if added is None else added + of_position
    return Asked(
        query, key, value, similarity, made, by_position,
        Question(kind, exact, allowed.expand(*batch, n, m), added, top),
        threads=int(rng.integers(1, 5)),
        tile_bytes=None if rng.random() < 0.6 else int(rng.choice([1, 300, 5000])),
        with_numpy=bool(rng.random() < 0.3),
        poison=_poison(rng, query, key, value) if rng.random() < 0.25 else [],
    )  # fmt: skip


def _sizes(rng: np.random.Generator, kind: Kind) -> tuple[Any, ...]:
    while True:
        n, m = (int(rng.choice(SIZES)) for _ in range(2))
        if rng.random() < 0.5:
            n = m
        d = e = int(rng.choice(DIMS))
        if kind.own_key_size and rng.random() < 0.5:
            e = int(rng.choice(DIMS))
        if kind.name in WITHOUT_DIMENSIONS and rng.random() < 0.03:
            d = e = 0
        d_v = 0 if rng.random() < 0.02 else d if rng.random() < 0.5 else int(rng.choice(DIMS))
        batch = tuple(rng.integers(1, 4, int(rng.choice([0, 0, 1, 1, 2, 2, 3]))).tolist())
        if math.prod(batch) * n * m * max(1, d, d_v) <= MOST_NUMBERS:
            return n, m, d, e, d_v, batch


def _magnitude(rng: np.random.Generator, kind: Kind, dtype: torch.dtype) -> tuple[float, float]:
    if kind.near:
        return float(rng.choice([0.1, 0.4, 1.0])), float(rng.choice([0.0, 0.0, 3.0]))
    if dtype in (torch.bfloat16, torch.float16):
        return float(rng.choice([0.1, 1.0, 3.0])), 0.0
    scale = float(rng.choice([1e-3, 0.3, 1.0, 1.0, 1.0, 10.0, 1e4]))
    return scale, float(rng.choice([0.0, 0.0, 0.0, 1.0])) * scale


def _lead(rng: np.random.Generator, batch: tuple[int, ...]) -> tuple[int, ...]:
    """The leading axes, of which some are 1 or not there."""
    if rng.random() < 0.6:
        return batch
    lead = [size if rng.random() < 0.6 else 1 for size in batch]
    return tuple(lead[int(rng.integers(0, len(lead) + 1)) :])


def _laid_out(rng: np.random.Generator, x: Tensor) -> Tensor:
    """The same numbers, lying in memory in another way."""
    match int(rng.integers(0, 7)):
        case 0:
            return x.mT.contiguous().mT
        case 1:  # every second row and column of something larger, from some offset on
            wide = torch.full((*x.shape[:-2], 2 * x.shape[-2] + 1, 2 * x.shape[-1] + 1), 9.0)
            wide = wide.to(x.dtype)
            wide[..., 1::2, 1::2] = x
            return wide[..., 1::2, 1::2]
        case 2 if x.ndim > 2:  # axes in another order
            order = rng.permutation(x.ndim).tolist()
            return x.permute(order).contiguous().permute(np.argsort(order).tolist())
        case 3 if x.ndim > 2:  # one entry for all
            return x[:1].expand(x.shape)
        case 4:
            whole = torch.zeros(x.numel() + 3, dtype=x.dtype)
            whole[3:] = x.flatten()
            return whole[3:].view(x.shape)
    return x


def _mask(
    rng: np.random.Generator, batch: tuple[int, ...], n: int, m: int, dtype: torch.dtype
) -> tuple[Any, Tensor, Tensor | None, int | None]:
    """A mask, whom it allows, what it adds, and how many of the best it keeps."""
    here = torch.arange(n).unsqueeze(-1) + (m - n)
    there = torch.arange(m)
    apart = there - here  # (n, m)
    every = torch.ones(n, m, dtype=torch.bool)

    def one(which: int) -> tuple[Any, Tensor, Tensor | None, int | None]:
        if which == 0:
            return mask.Causal(), apart <= 0, None, None
        if which == 1:
            before, after = (int(x) for x in rng.integers(0, 6, 2))
            return mask.Window(before, after), (-before <= apart) & (apart <= after), None, None
        if which == 2:
            size = int(rng.integers(1, 9))
            same = torch.div(here, size, rounding_mode="floor") == there // size
            return mask.Blocks(size), same, None, None
        if which == 3:
            window, stride = (int(x) for x in rng.integers(1, 5, 2))
            seen = (apart.abs() <= window * stride) & (apart % stride == 0)
            return mask.Dilated(window, stride), seen, None, None
        if which == 4:
            lengths = rng.integers(0, m + 1, batch[:1] if batch else ())
            lead = [*batch[:1], *[1] * max(0, len(batch) - 1)]
            limit = torch.as_tensor(lengths).reshape(*lead, 1, 1)
            return mask.Lengths(lengths if batch else int(lengths)), there < limit, None, None
        if which == 5:
            k = int(rng.integers(1, 9))
            return mask.TopK(k), every, None, k
        if which == 6:
            shape = [(n, m), (1, m), (m,), (*batch, n, m), (*batch, 1, m)][rng.integers(5)]
            seen = torch.tensor(rng.random(shape) < rng.choice([0.1, 0.5, 0.9]))
            return (mask.Allowed(seen) if rng.random() < 0.5 else seen), seen, None, None
        shape = [(n, m), (1, m), (*batch, n, m)][rng.integers(3)]
        added = torch.tensor(rng.normal(size=shape)).to(dtype)
        added[torch.tensor(rng.random(shape) < 0.3)] = -torch.inf
        allowed = added != -torch.inf
        return mask.Bias(added), allowed, torch.where(allowed, added, 0).double(), None

    if rng.random() < 0.25:
        return None, every, None, None
    first = one(int(rng.integers(0, 8)))
    if rng.random() < 0.7:
        return first
    other = one(int(rng.choice([0, 1, 2, 3, 4, 6])))
    left, right = (
        x[0] if isinstance(x[0], mask.Mask) else mask.Allowed(x[0]) for x in (first, other)
    )
    if rng.random() < 0.3 and first[2] is None and first[3] is None:
        return left | right, first[1] | other[1], None, None
    return left & right, first[1] & other[1], first[2], first[3]


def _bias(rng: np.random.Generator, n: int, m: int) -> tuple[Any, Tensor | None]:
    """A bias by position for all entries alike, and what it adds, (n, m)."""
    if rng.random() < 0.85:
        return None, None
    here = (torch.arange(n).unsqueeze(-1) + (m - n)).double()
    there = torch.arange(m).double()
    match int(rng.integers(0, 3)):
        case 0:
            slope = float(rng.choice([0.25, 0.5]))
            return bias.Alibi(torch.tensor(slope)), -slope * (there - here).abs()
        case 1:
            table = torch.tensor(rng.normal(size=7), dtype=torch.float32)
            bucket = ((there - here).clamp(-3, 3) + 3).long()
            return bias.Relative(table), table.double()[bucket]
    return (lambda i, j: (i - 2 * j) * 0.125), (here - 2 * there) * 0.125


def _poison(rng: np.random.Generator, *tensors: Tensor) -> list[tuple[str, tuple[int, ...], float]]:
    """Places where NaN or infinity shall stand."""
    found = []
    named = list(zip(("query", "key", "value"), tensors, strict=True))
    for _ in range(int(rng.integers(1, 4))):
        name, tensor = named[rng.integers(3)]
        if tensor.numel():
            place = tuple(int(rng.integers(size)) for size in tensor.shape)
            found.append(
                (name, place, float(rng.choice([math.nan, math.nan, math.inf, -math.inf])))
            )
    return found
