"""From a formula and its tokens to a program and its columns.

The first time a formula is met it runs on probes (`record.py`), and its program is checked: against the
formula itself, its values and its gradients, and for scores that depend on more than their pair. Each
time it is used it runs once more on the tokens (`follow.py`), which does what belongs to one query or
one key and gathers what the program needs. So nothing that was traced can become stale.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.formula import PROGRAMS
from qkv.formula.follow import Follower, StrayedError
from qkv.formula.program import Program
from qkv.formula.record import Drawn, Recorder, Source, Step
from qkv.formula.traced import RefusedError, Traced

Formula = Callable[[Tensor, Tensor], Tensor]

#: Candidates for the numbers of the probes' queries and keys.
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
#: Leading axes of more entries than this are shortened for the probes, where the formula allows it.
MANY_ENTRIES = 16
#: How far a program may be from the formula on the probes.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-3}


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


class _Refused(NamedTuple):
    reason: str
    owner: Any  # a weak reference to the formula that was refused, or None: any of its kind


_TRACES: dict[Hashable, list[Trace] | _Refused] = {}
MOST_TRACES = 512  # of kinds of calls; beyond it all are forgotten
MOST_VARIANTS = 8  # of what a formula does, depending on what it finds


def form(
    formula: Formula, owner: Any, query: Tensor, key: Tensor, proportional: bool
) -> Form | str:
    """The formula as a fused kernel takes it, or one clause saying why it has none.

    `owner` is the callable or similarity that the formula is of.
    """
    kind = _kind(owner), _shape_class(query), _shape_class(key), query.dtype, proportional
    known = _TRACES.get(kind)
    if isinstance(known, _Refused):
        if known.owner is None or known.owner() is owner:
            return known.reason
        known = None
    for trace in known or []:
        found = _follow(trace, formula, query, key)
        if found is not None:
            return found
    try:
        trace = _trace(formula, query, key, proportional)
    except RefusedError as refused:
        if not known:
            _remember(kind, _Refused(str(refused), _reference(owner)))
        return str(refused)
    _remember(kind, [trace, *(known or [])][:MOST_VARIANTS])
    found = _follow(trace, formula, query, key)
    return "it does something else than it did on probes" if found is None else found


def _remember(kind: Hashable, what: list[Trace] | _Refused) -> None:
    if len(_TRACES) >= MOST_TRACES:
        _TRACES.clear()
    _TRACES[kind] = what


def _kind(owner: Any) -> Hashable:
    if isinstance(owner, (FunctionType, MethodType)):
        return owner.__code__
    return type(owner)


def _reference(owner: Any) -> Any:
    return None if isinstance(owner, FunctionType) else weakref.ref(owner)


def _shape_class(tensor: Tensor) -> tuple[Any, ...]:
    return (*(size > 1 for size in tensor.shape[:-2]), tensor.shape[-1])


# Following


def _follow(trace: Trace, formula: Formula, query: Tensor, key: Tensor) -> Form | None:
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
    except (StrayedError, RefusedError):
        return None
    if not session.is_done() or not isinstance(result, Traced) or result.number != trace.result:
        return None
    held: list[Any] = [None] * len(trace.drawn.slots)
    for place, operand in zip(trace.drawn.uses, session.brought, strict=True):
        held[place] = operand
    return _gather(trace, held, query, key)


def _gather(trace: Trace, held: list[Any], query: Tensor, key: Tensor) -> Form | None:
    """The columns and the parameter of what the formula brought."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    grad = torch.is_grad_enabled()
    wanted = tuple(
        source.kind in ("query", "key")
        or (isinstance(x, Tensor) and grad and x.requires_grad)
        for source, x in zip(trace.drawn.sources, held, strict=True)
    )
    columns: dict[str, list[tuple[bool, Tensor]]] = {"query": [], "key": []}
    numbers: list[Any] = []
    runs: list[Tensor] = []
    sizes = [0.0] * trace.drawn.axes
    for slot, source, x in zip(trace.drawn.slots, trace.drawn.sources, held, strict=True):
        if source.kind == "constant":
            numbers.append(float(x))
            continue
        x = x.to(dtype)
        if slot.axis is not None:
            sizes[slot.axis] = float(x.shape[source.feature])
        if source.kind == "parameter":
            (numbers if slot.axis is None else runs).append(x.reshape(-1))
        else:
            count = query.shape[-2] if source.kind == "query" else key.shape[-2]
            columns[source.kind].append((slot.axis is not None, _column(x, source, count)))
    parameter = _joined([*sizes, *numbers, *runs], dtype)
    return Form(
        trace.kind(wanted), _side_by_side(columns["query"]), _side_by_side(columns["key"]), parameter
    )


def _column(x: Tensor, source: Source, count: int) -> Tensor:
    """A tensor as columns (lead…, count, features or 1)."""
    order = [axis for axis in (*source.lead, source.token, source.feature) if axis is not None]
    rest = [axis for axis in range(x.dim()) if axis not in order]  # of size 1
    if order + rest != list(range(x.dim())):
        x = x.permute(*order, *rest)
    kept = iter(x.shape[: len(order)])
    shape = [1 if axis is None else next(kept) for axis in (*source.lead, source.token, source.feature)]
    x = x.reshape(shape)
    return x if x.shape[-2] == count else x.expand(*x.shape[:-2], count, x.shape[-1])


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
    for part in [*parts, None]:
        if isinstance(part, float):
            numbers.append(part)
            continue
        if numbers:
            tensors.append(torch.tensor(numbers, dtype=dtype))
            numbers = []
        if part is not None:
            tensors.append(part)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


# Tracing


def _trace(formula: Formula, query: Tensor, key: Tensor, proportional: bool) -> Trace:
    """The trace of a formula, checked; RefusedError where there is none."""
    leads = [(query.shape[:-2], key.shape[:-2])]
    if max(math.prod(lead) for lead in leads[0]) > MANY_ENTRIES:
        leads.insert(0, _shortened(*leads[0]))
    for last, lead in enumerate(leads, 1):
        try:
            return _trace_on_probes(formula, query, key, lead, proportional)
        except RefusedError:
            if last == len(leads):
                raise
    raise AssertionError("the last one is raised")


def _shortened(query: Any, key: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leading axes of few entries, in the same places."""

    def short(lead: Any) -> tuple[int, ...]:
        return tuple(1 if size == 1 else 2 + (len(lead) - i) % 2 for i, size in enumerate(lead))

    return short(query), short(key)


def _trace_on_probes(
    formula: Formula, query: Tensor, key: Tensor, lead: Any, proportional: bool
) -> Trace:
    taken = [*lead[0], *lead[1], query.shape[-1], key.shape[-1]]
    for _ in range(4):
        n, m = [p for p in PRIMES if all(size % p for size in taken if size)][:2]
        probes = _probes(query, key, lead, n, m)
        state = torch.get_rng_state()
        session = Recorder(*probes)
        with torch.no_grad():
            result = _run(formula, session.query, session.key)
        if not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            raise RefusedError("it draws random numbers")
        brought = [size for tensor in session.kept for size in tensor.shape]
        if all(size % n and size % m for size in brought if size):
            break
        taken += brought
    else:
        raise RefusedError("its tensors are of too many sizes to tell their axes apart")
    batch = max(len(each) for each in lead)
    trace = Trace(
        session.steps, session.results, session.finish(result, batch), proportional,
        (tuple(probes[0].shape), tuple(probes[1].shape)), result.number,
    )  # fmt: skip
    _check(trace, formula, *probes)
    return trace


def _probes(query: Tensor, key: Tensor, lead: Any, n: int, m: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n * m)

    def probe(lead: Any, rows: int, d: int) -> Tensor:
        """Small enough to lie within the unit ball, where some formulas live."""
        numbers = torch.rand(*lead, rows, d, generator=generator, dtype=torch.float64)
        return ((numbers * 1.8 - 0.9) * max(1, d) ** -0.5).to(query.dtype)

    return probe(lead[0], n, query.shape[-1]), probe(lead[1], m, key.shape[-1])


def _run(formula: Formula, query: Tensor, key: Tensor) -> Any:
    try:
        return formula(query, key)
    except RefusedError:
        raise
    except Exception as error:  # whatever a formula may come up with
        raise RefusedError(
            f"it cannot be traced: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error


def _check(trace: Trace, formula: Formula, query: Tensor, key: Tensor) -> None:
    """The program gives what the formula gives, and a score depends on its pair alone."""
    tolerance = TOLERANCES.get(query.dtype, 0.1)
    tokens = [x.detach().requires_grad_() for x in (query, key)]
    with torch.enable_grad():
        plain = _run(formula, *tokens)
        found = _follow(trace, formula, *tokens)
        if found is None or not isinstance(plain, Tensor):
            raise RefusedError("it does not do the same twice")
        program = PROGRAMS[found.kind]
        scores = program.scores(found.query, found.key, found.parameter)
        if plain.shape != scores.shape:
            scores = scores.expand_as(plain)
        _compare(scores, plain, tolerance, "its scores are not those of its program")
        slopes = []
        for each in (scores, plain):
            weights = torch.linspace(0.5, 1.5, each.numel()).view(each.shape)
            total = (each * weights.to(each.dtype)).nan_to_num(0.0, 0.0, 0.0).sum()
            if total.requires_grad:
                grads = torch.autograd.grad(total, tokens, allow_unused=True)
            else:
                grads = (None, None)
            slopes.append([torch.zeros_like(x) if g is None else g for x, g in zip(tokens, grads, strict=True)])
    for own, expected in zip(*slopes, strict=True):
        _compare(own, expected, tolerance, "its gradient is not that of its formula")
    for which in range(2):
        moved = [x.detach().clone() for x in tokens]
        moved[which][..., 0, :] = moved[which][..., 0, :] * 0.5 + 0.01
        with torch.no_grad():
            other = _run(formula, *moved)
        axis = -2 + which
        before, after = (x.detach().narrow(axis, 1, x.shape[axis] - 1) for x in (plain, other))
        what = "queries" if which == 0 else "keys"
        _compare(after, before, tolerance, f"a score of a pair depends on other {what}")


def _compare(own: Tensor, expected: Tensor, tolerance: float, reason: str) -> None:
    own, expected = own.detach().double(), expected.detach().double()
    size = expected.nan_to_num(0.0, 0.0, 0.0).abs().max() if expected.numel() else 1.0
    if not torch.allclose(own, expected, tolerance, tolerance * float(size) + 1e-30, equal_nan=True):
        raise RefusedError(reason)
