"""From tensors to what the drivers take, and to a share of work for each thread."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from qkv.jit.kernels import Bound
from qkv.operators.fused.broadcasting import Layout, drop_expanded, layout
from qkv.operators.fused.inputs import LANES, ROWS, WIDTH, Dropout, Functions, Inputs, Masks
from qkv.operators.fused.registry import functions_of

CHUNK = 512  # most queries that a thread takes at a time
NARROW = 64  # most keys in a tile of rows: they are read as they are, so small tiles cost nothing
SMALL = 200_000  # multiply-adds below which a second thread costs more than it saves
FEW = 64  # queries, below which keys are cut into pieces …
LONG = 2048  # … of at least so many
PIECES = 16  # at most so many
PORTIONS = 8  # of work that each thread draws, if there are so many units
WIDE = 16  # value columns from which on the vector lanes run along them, if gradients are summed up

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


class Call(NamedTuple):
    """What both operators take, in the order of their schemas.

    `parameter` is w for "additive", the inverse bandwidth of each dimension for distances, and
    what `formula/program.py` says for formulas, whose queries and keys may differ in size.
    """

    query: Tensor  # (..., n, d)
    key: Tensor  # (..., m, d)
    value: Tensor  # (..., m, d_v)
    parameter: Tensor
    bias: Tensor | None  # (..., n, m): added to the logits
    start: Tensor | None  # (..., n): the first key that each query may attend to
    stop: Tensor | None  # (..., n): the one behind the last
    mask: Tensor | None  # (..., n, m): True where it may
    row_key: Tensor | None  # (batch, n), int32: seeds dropout at `rate`
    kind: str
    rate: float


BIAS: Final = 4  # where what masks a call begins …
TENSORS: Final = 9  # … and where its tensors end


class Operands(NamedTuple):
    """The tensors of a call as the drivers take them: contiguous, without expanded axes."""

    inputs: Inputs
    masks: Masks
    dropout: Dropout


class Launch:
    """How a call is laid out and cut; all of it depends on shapes, strides and types alone."""

    def __init__(self, call: Call) -> None:
        main = [call.query, call.key, call.value]
        shapes = [tuple(tensor.shape[:-2]) for tensor in main]
        self.batch = shapes[0]
        if not shapes[0] == shapes[1] == shapes[2]:
            # NumPy's: that of torch imports sympy at its first call.
            self.batch = np.broadcast_shapes(*shapes)
        self.n, self.m = call.query.shape[-2], call.key.shape[-2]
        self.d, self.value_depth = call.key.shape[-1], call.value.shape[-1]
        small = [tuple(drop_expanded(tensor, 2).shape[:-2]) for tensor in main]
        # Gradients have the shape of what was passed, expanded axes and all; a bias that is not
        # there is shared by nobody.
        bias = self.batch if call.bias is None else tuple(call.bias.shape[:-2])
        masks: list[tuple[int, ...]] = [(), (), ()]
        if call.start is not None and call.stop is not None:
            masks[0] = np.broadcast_shapes(call.start.shape, call.stop.shape)[:-1]
        for place, tensor in ((1, call.mask), (2, call.bias)):
            if tensor is not None:
                masks[place] = tuple(drop_expanded(tensor, 0).shape[:-2])
        self.layout: Layout = layout(self.batch, *small, *masks, *shapes, bias)
        self.functions = functions_of(call.kind).for_queries(self.n, self.d)
        self.query_depth = self.functions.depth(call.query.shape[-1])
        self.key_depth = self.functions.depth(self.d)
        self.key_rows = self.functions.scores_rows(self.n, self.m, self.d)
        # Keys in a tile: few keys make a narrow one, many make tiles of about one width.
        most = NARROW if self.key_rows else WIDTH
        tiles = max(1, math.ceil(self.m / most))
        self.width = max(1, math.ceil(self.m / tiles / LANES)) * LANES
        self.threads = torch.get_num_threads()
        pairs = self.layout.size * self.n * self.m
        if pairs * (self.functions.cost * self.d + self.value_depth + 8) < SMALL:
            self.threads = 1
        self.value_rows = self.value_depth >= WIDE
        self.contiguous = all(x is None or x.is_contiguous() for x in call[:TENSORS])
        self.masked = any(x is not None for x in call[BIAS:TENSORS])
        self.intervals_match = (
            call.start is None or call.stop is None or call.start.shape == call.stop.shape
        )
        self.groups = max(1, len(self.layout.group_start) - 1)
        self.forward_pieces = self._forward_pieces()
        self.pieces = self._pieces()
        #: Whether the backward pass is loaded.
        self.differentiable = False
        #: The drivers' calls with these shapes, once each was made.
        self.bound: dict[Any, Bound] = {}

    def in_memory(self, call: Call) -> Call:
        """The same call, which has the shapes and strides that this was made for, its tensors as
        they lie in memory."""
        query, key, value, parameter = call[:BIAS]
        bias, start, stop = call.bias, call.start, call.stop
        negated = query.is_neg() or key.is_neg() or value.is_neg()
        negated = negated or (bias is not None and bias.is_neg())
        if self.contiguous and self.intervals_match and not negated:
            return call
        if start is not None and stop is not None and not self.intervals_match:
            start, stop = torch.broadcast_tensors(start, stop)
        return call._replace(
            query=_memory(query, 2),
            key=_memory(key, 2),
            value=_memory(value, 2),
            parameter=_memory(parameter, 1),
            bias=_memory(bias, 0),
            start=None if start is None else start.contiguous(),
            stop=None if stop is None else stop.contiguous(),
            mask=_memory(call.mask, 0),
            row_key=_memory(call.row_key, 2),
        )

    def operands(self, call: Call) -> Operands:
        """What the drivers take of a call in memory."""
        scale = 1 / (1 - call.rate) if call.rate < 1 else 0.0
        return Operands(
            Inputs(*call[:BIAS], self.layout.inputs),
            Masks(call.start, call.stop, call.mask, call.bias, self.layout.masks),
            Dropout(call.row_key, round(call.rate * 2**24), scale),
        )

    def arrays(self, call: Call) -> list[Tensor]:
        """The arrays among :meth:`operands`, in their order."""
        operands = [*call[:BIAS], self.layout.inputs]
        if self.masked:
            masks = (call.start, call.stop, call.mask, call.bias)
            operands += [x for x in masks if x is not None]
        operands.append(self.layout.masks)
        if call.row_key is not None:
            operands.append(call.row_key)
        return operands

    def addresses(self, real: str, backward: bool) -> Functions:
        """The tile functions; compiled, for a second or two, if they were never used before."""
        functions = self.functions
        rows = functions.differentiates_rows(self.d)
        gradient = functions.row_gradient if rows else functions.gradient
        key_rows = self.key_rows
        scores = functions.row_scores if key_rows else functions.scores
        if backward and functions.kept_scores is not None and functions.kept_row_scores is not None:
            scores = functions.kept_row_scores if key_rows else functions.kept_scores
        return Functions(
            0 if functions.transform is None else functions.transform.address(real),
            scores.address(real),
            gradient.address(real) if backward and gradient is not None else 0,
            key_rows,
            rows,
            functions.proportional,
        )

    def chunk(self) -> int:
        """Queries to take at a time: a chunk for every thread at least, in whole blocks."""
        share = min(self.n, self.layout.size * self.n / self.threads)
        return max(ROWS, min(CHUNK, math.ceil(share / ROWS) * ROWS))

    def portion(self, count: int) -> int:
        """How much of the work a thread draws at a time: units beside each other share lines of
        the cache, so no two threads should have them, where there is enough for all."""
        return max(1, count // (PORTIONS * self.threads))

    def _forward_pieces(self) -> tuple[int, int]:
        """The keys in a piece, a multiple of the tile, and the number of pieces.

        Keys are cut where there are too few queries to keep threads busy, and whatever the number
        of threads, so that answers do not depend on it.
        """
        few = self.layout.size * self.n < FEW
        return self._cut(min(PIECES, self.m // LONG) if few else 1)

    def _pieces(self) -> tuple[int, int]:
        """The same for the backward pass.

        As many as give each thread a few units of work; each costs one layer of the queries'
        gradient, so no more than that.
        """
        return self._cut(most_pieces(self.threads, self.groups))

    def _cut(self, wanted: int) -> tuple[int, int]:
        tiles = max(1, math.ceil(self.m / self.width))
        piece = math.ceil(tiles / max(1, min(wanted, tiles))) * self.width
        return piece, max(1, math.ceil(self.m / piece))


def most_pieces(threads: int, groups: int) -> int:
    """Into how many pieces the keys of a group are cut at most on the way back."""
    return math.ceil(4 * threads / groups) if threads > 1 else 1


def query_layers(groups: int, m: int) -> int:
    """How many layers of the queries' gradients there are at most, for so many keys."""
    return min(most_pieces(torch.get_num_threads(), max(1, groups)), math.ceil(m / WIDTH))


#: Of each kind of call; shapes repeat, and working them out takes longer than a small kernel.
LAUNCHES: dict[Any, Launch] = {}
MOST_LAUNCHES = 512


def launch_of(call: Call) -> Launch:
    query, key, value, parameter = call[:BIAS]
    kind = (
        call.kind, call.rate, query.dtype, torch.get_num_threads(),
        query.shape, query.stride(), key.shape, key.stride(), value.shape, value.stride(),
        parameter.shape, parameter.stride(),
        *map(_laid_out, call[BIAS:TENSORS]),
    )  # fmt: skip
    launch = LAUNCHES.get(kind)
    if launch is None:
        if len(LAUNCHES) >= MOST_LAUNCHES:
            LAUNCHES.clear()
        launch = LAUNCHES[kind] = Launch(call)
    return launch


def _laid_out(tensor: Tensor | None) -> Hashable:
    return None if tensor is None else (tensor.shape, tensor.stride())


def _memory(tensor: MaybeTensor, kept: int) -> MaybeTensor:
    """Its numbers as they lie in memory, expanded axes but the last `kept` dropped."""
    if tensor is None:
        return None
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return drop_expanded(tensor, kept).resolve_neg().contiguous()
