"""Working on tiles of queries: bounded memory forwards, recomputation backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.autograd_leaves import leaves_behind
from qkv.memory import keep_freed_pages
from qkv.tracing import in_forward_mode, in_transform, sizes_are_known

#: (start, *rows, *whole) -> outputs whose axis -2 is that of the rows.
TileFunction: TypeAlias = Callable[..., tuple[Tensor, ...]]

#: A compiled graph holds every tile, so it is given at most so many.
MOST_COMPILED_TILES = 16


class Job(NamedTuple):
    """A function to run on `step` rows at a time of its first `sliced` tensors (axis -2)."""

    function: TileFunction
    sliced: int
    step: int

    def spans(self, tensors: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
        return spans(tensors[0].shape[-2], self.step)

    def arguments(self, tensors: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
        rows = [tensor[..., start:stop, :] for tensor in tensors[: self.sliced]]
        return [*rows, *tensors[self.sliced :]]


def in_tiles(
    function: TileFunction, rows: Sequence[Tensor], whole: Sequence[Tensor], step: int
) -> tuple[Tensor, ...]:
    """function(0, *rows, *whole), on `step` rows at a time, keeping nothing for the way back.

    `function` must give the same result each time; any randomness in it is keyed, not drawn.
    Tensors that it uses without being handed them get their gradients all the same.
    """
    tensors = [*rows, *whole]
    if not sizes_are_known(tensors[0].shape[-2]):
        return function(0, *tensors)  # how many tiles there are is part of a graph
    if torch.compiler.is_compiling():
        step = max(step, -(-tensors[0].shape[-2] // MOST_COMPILED_TILES))
    job = Job(function, len(rows), step)
    if step >= tensors[0].shape[-2]:
        # One tile is the whole; keeping it costs less than making it twice.
        return function(0, *tensors)
    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        return _joined(job, tensors, _checkpointed)
    if torch.compiler.is_compiling() or in_transform() or in_forward_mode():
        # Function transforms allow no recomputation; there the tiles are kept.
        return _joined(job, tensors, _called)
    keep_freed_pages()
    hidden = _hidden_leaves(job, tensors) if torch.is_grad_enabled() else []
    return _Recomputed.apply(job, len(tensors), *tensors, *hidden)  # type: ignore[no-any-return,no-untyped-call]


def rows_at_once(limit: int, row: int) -> int:
    """How many rows of `row` bytes stay within `limit`, and one at least."""
    if not sizes_are_known(row):
        return 1  # nothing is cut whose size is unknown
    return max(1, limit // max(1, row))


def spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    """0 to `length` in steps: (0, step), (step, 2·step), …"""
    for start in range(0, length, step):
        yield start, min(start + step, length)


def _called(function: TileFunction, *args: Any) -> tuple[Tensor, ...]:
    return function(*args)


def _checkpointed(function: TileFunction, *args: Any) -> tuple[Tensor, ...]:
    return checkpoint(  # type: ignore[no-any-return]
        function, *args, use_reentrant=False, preserve_rng_state=False
    )


def _joined(
    job: Job, tensors: Sequence[Tensor], call: Callable[..., tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    parts = [
        call(job.function, start, *job.arguments(tensors, start, stop))
        for start, stop in job.spans(tensors)
    ]
    return tuple(torch.cat(column, dim=-2) for column in zip(*parts, strict=True))


class _Recomputed(torch.autograd.Function):
    """All tiles, each computed again when its gradient is wanted."""

    @staticmethod
    def forward(ctx: Any, job: Job, given: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.job, ctx.given = job, given
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(True)
        n = tensors[0].shape[-2]
        wholes: tuple[Tensor, ...] = ()
        for start, stop in job.spans(tensors):
            outputs = job.function(start, *job.arguments(tensors[:given], start, stop))
            if not wholes:
                # Written into one place: many small results would leave the heap full of holes.
                wholes = tuple(out.new_empty(*out.shape[:-2], n, out.shape[-1]) for out in outputs)
            for whole, out in zip(wholes, outputs, strict=True):
                whole[..., start:stop, :] = out
        return wholes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        job, given = ctx.job, ctx.given
        tensors = ctx.saved_tensors
        wanted = [index for index, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        if torch.is_grad_enabled():
            # Differentiated once more: the plain computation, its graph kept.
            outputs = _joined(job, tensors[:given], _called)
            inputs = [tensors[index] for index in wanted]
            live = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out.grad_fn]
            second = torch.autograd.grad(
                [out for out, _ in live], inputs, [grad for _, grad in live],
                create_graph=True, allow_unused=True,
            )  # fmt: skip
            return None, None, *_spread(len(tensors), wanted, second)
        totals = [torch.zeros_like(tensors[index]) for index in wanted]
        for start, stop in job.spans(tensors):
            with torch.enable_grad():
                # Stand-ins cut the tile's graph off from what came before; leaves that the
                # function reaches by itself stay themselves.
                stand_ins = [
                    tensor.detach().requires_grad_(index in wanted)
                    for index, tensor in enumerate(job.arguments(tensors[:given], start, stop))
                ]
                outputs = job.function(start, *stand_ins)
            inputs = [stand_ins[index] if index < given else tensors[index] for index in wanted]
            live = [
                (out, grad[..., start:stop, :])
                for out, grad in zip(outputs, grads, strict=True)
                if out.requires_grad
            ]
            of_tile = torch.autograd.grad(
                [out for out, _ in live],
                inputs,
                [grad for _, grad in live],
                retain_graph=len(tensors) > given,  # the graph of a hidden tensor is not ours
                allow_unused=True,
            )
            for index, total, grad in zip(wanted, totals, of_tile, strict=True):
                if grad is not None:
                    (total[..., start:stop, :] if index < job.sliced else total).add_(grad)
        return None, None, *_spread(len(tensors), wanted, totals)


def _spread(length: int, places: list[int], values: Sequence[Tensor | None]) -> list[Tensor | None]:
    spread: list[Tensor | None] = [None] * length
    for place, value in zip(places, values, strict=True):
        spread[place] = value
    return spread


def _hidden_leaves(job: Job, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Leaves that the function's result depends on though it was not handed them.

    Parameters of a similarity, and tensors that a callable closes over, are found by following
    the graph of a single row.
    """
    with torch.enable_grad():
        detached = [tensor.detach() for tensor in tensors]
        outputs = job.function(0, *job.arguments(detached, 0, 1))
    return leaves_behind(outputs)
