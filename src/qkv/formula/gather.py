"""A formula that was traced runs on its tokens, and what its program needs is gathered.

The run does what belongs to one query or one key, by torch; so nothing that was traced can become
stale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.formula import PROGRAMS
from qkv.formula.follow import Follower
from qkv.formula.program import Program
from qkv.formula.record import Drawn, Source, Step
from qkv.formula.rewrite import Additive, factorised
from qkv.formula.traced import Traced

Formula = Callable[[Tensor, Tensor], Tensor]


class Form(NamedTuple):
    """What a fused kernel takes, see :class:`qkv.similarity.base.FusedForm`."""

    kind: str
    query: Tensor
    key: Tensor
    parameter: Tensor


@dataclass(eq=False)
class Trace:
    """What a formula did on probes, and the program that it makes."""

    steps: list[Step]
    results: list[int]
    drawn: Drawn
    proportional: bool
    probe: tuple[tuple[int, ...], tuple[int, ...]]
    result: int
    additive: Additive | None
    kinds: dict[tuple[bool, ...], str] = field(default_factory=dict)

    def kind(self, wanted: tuple[bool, ...]) -> str:
        """The name of the program whose parameters' gradients are wanted or not."""
        known = self.kinds.get(wanted)
        if known is None:
            slots = tuple(
                slot._replace(wanted=want)
                for slot, want in zip(self.drawn.slots, wanted, strict=True)
            )
            program = Program(slots, self.drawn.axes, self.drawn.root, self.proportional)
            known = self.kinds[wanted] = f"formula:{program.digest}"
            PROGRAMS.setdefault(known, program)
        return known


def follow(
    trace: Trace, formula: Formula, query: Tensor, key: Tensor, rewritten: bool = True
) -> Form | None:
    """The form of these tokens; None where the formula takes other steps than the trace."""
    sizes = {
        probe: size
        for before, now in zip(trace.probe, (query.shape, key.shape), strict=True)
        for probe, size in zip(before[:-1], now[:-1], strict=True)
        if probe > 1
    }
    session = Follower(query, key, trace.steps, trace.results, sizes)
    try:
        result = formula(session.query, session.key)
    except Exception:  # another trace, or another operator, will show what it is about
        return None
    finally:
        session.close()
    if not session.is_done() or not isinstance(result, Traced) or result.number != trace.result:
        return None
    held: list[Any] = [None] * len(trace.drawn.slots)
    for place, operand in zip(trace.drawn.uses, session.brought, strict=True):
        held[place] = operand
    counts = {"query": query.shape[-2], "key": key.shape[-2]}
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    for place, x in enumerate(held):
        if not isinstance(x, Tensor):
            held[place] = float(x)
        elif x.dtype != dtype:
            held[place] = x.to(dtype)
    if trace.additive is not None and rewritten:
        return _as_additive(trace, trace.additive, held, counts)
    return _gather(trace, held, counts, dtype)


def _as_additive(trace: Trace, pattern: Additive, held: list[Any], counts: dict[str, int]) -> Form:
    columns, entries, size = {}, {}, 1
    for i, (slot, source, x) in enumerate(
        zip(trace.drawn.slots, trace.drawn.sources, held, strict=True)
    ):
        if source.kind in counts:
            columns[i] = _column(x, source, counts[source.kind])
        else:
            entries[i] = x.reshape(-1) if isinstance(x, Tensor) else x
        if slot.axis is not None:
            size = x.shape[source.feature]
    return Form("additive", *factorised(pattern, columns, entries, size))


def _gather(trace: Trace, held: list[Any], counts: dict[str, int], dtype: torch.dtype) -> Form:
    """The columns and the parameter of what the formula brought."""
    grad = torch.is_grad_enabled()
    wanted = tuple(
        source.kind in ("query", "key") or (isinstance(x, Tensor) and grad and x.requires_grad)
        for source, x in zip(trace.drawn.sources, held, strict=True)
    )
    columns: dict[str, list[tuple[bool, Tensor]]] = {"query": [], "key": []}
    numbers: list[Any] = []
    runs: list[Tensor] = []
    sizes = [0.0] * trace.drawn.axes
    for slot, source, x in zip(trace.drawn.slots, trace.drawn.sources, held, strict=True):
        if source.kind == "constant":
            numbers.append(x)
            continue
        if slot.axis is not None:
            sizes[slot.axis] = float(x.shape[source.feature])
        if source.kind == "parameter":
            (numbers if slot.axis is None else runs).append(x.reshape(-1))
        else:
            column = _column(x, source, counts[source.kind])
            columns[source.kind].append((slot.axis is not None, column))
    kind = trace.kind(wanted)
    parameter = _joined([*sizes[: PROGRAMS[kind].sizes_held], *numbers, *runs], dtype)
    return Form(
        kind,
        _side_by_side(columns["query"]),
        _side_by_side(columns["key"]),
        parameter,
    )


def _column(x: Tensor, source: Source, count: int) -> Tensor:
    """A tensor as columns (lead…, count, features or 1)."""
    axes = (*source.lead, source.token, source.feature)
    shape = [1 if axis is None else x.shape[axis] for axis in axes]
    order = _order(source, x.dim())
    x = (x if order is None else x.permute(order)).reshape(shape)
    return x if x.shape[-2] == count else x.expand(*x.shape[:-2], count, x.shape[-1])


@lru_cache(maxsize=1024)
def _order(source: Source, dims: int) -> tuple[int, ...] | None:
    """The axes of a tensor in the order of columns, those of size 1 last; None: as they are, since
    an axis of size 1 stands anywhere."""
    axes = (*source.lead, source.token, source.feature)
    order = [axis for axis in axes if axis is not None]
    if order == sorted(order):
        return None
    return *order, *(axis for axis in range(dims) if axis not in order)


def _side_by_side(columns: list[tuple[bool, Tensor]]) -> Tensor:
    """Numbers first, then runs, as the program has them."""
    tensors = [x for is_run, x in columns if not is_run] + [x for is_run, x in columns if is_run]
    if len(tensors) == 1:
        return tensors[0]
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in tensors))
    return torch.cat([x.expand(*lead, *x.shape[-2:]) for x in tensors], dim=-1)


def _joined(parts: list[Any], dtype: torch.dtype) -> Tensor:
    """Numbers and tensors in one."""
    tensors: list[Tensor] = []
    numbers: list[float] = []
    for part in [*(parts or [0.0]), None]:
        if isinstance(part, float):
            numbers.append(part)
            continue
        if numbers:
            tensors.append(_of_numbers(tuple(numbers), dtype))
            numbers = []
        if part is not None:
            tensors.append(part)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


@lru_cache(maxsize=1024)
def _of_numbers(numbers: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """Constants, mostly the same from call to call; they are only read."""
    return torch.tensor(numbers, dtype=dtype)
