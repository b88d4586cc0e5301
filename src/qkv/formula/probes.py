"""A formula is met for the first time: traced on probes, and its program checked.

The program must give what the formula gives, values and gradients, and a score must not depend on
more than its pair.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from qkv.formula import PROGRAMS
from qkv.formula.gather import Formula, Trace, follow
from qkv.formula.record import Recorder
from qkv.formula.rewrite import additive
from qkv.formula.traced import RefusedError

#: Candidates for the numbers of the probes' queries and keys.
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
#: Leading axes of more entries than this are shortened for the probes, where the formula allows it.
MANY_ENTRIES = 16
#: How far a program may be from the formula on the probes.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-3}

Lead = tuple[int, ...]


def trace_on_probes(formula: Formula, query: Tensor, key: Tensor, proportional: bool) -> Trace:
    """The trace of a formula, checked; RefusedError where there is none."""
    leads: list[tuple[Lead, Lead]] = [(tuple(query.shape[:-2]), tuple(key.shape[:-2]))]
    if max(math.prod(lead) for lead in leads[0]) > MANY_ENTRIES:
        leads.insert(0, _shortened(*leads[0]))
    for last, lead in enumerate(leads, 1):
        try:
            return _trace(formula, query, key, lead, proportional)
        except RefusedError:
            if last == len(leads):
                raise
    raise AssertionError("the last one is raised")


def _shortened(query: Lead, key: Lead) -> tuple[Lead, Lead]:
    """Leading axes of few entries, in the same places."""

    def short(lead: Lead) -> Lead:
        return tuple(1 if size == 1 else 2 + (len(lead) - i) % 2 for i, size in enumerate(lead))

    return short(query), short(key)


def _trace(formula: Formula, query: Tensor, key: Tensor, lead: Any, proportional: bool) -> Trace:
    taken = [*lead[0], *lead[1], query.shape[-1], key.shape[-1]]
    alike: set[tuple[int, int]] | None = None
    for _ in range(4):
        n, m = [p for p in PRIMES if all(size % p for size in taken if size)][:2]
        probes = _probes(query, key, lead, n, m)
        session, refused = Recorder(*probes), None
        try:
            result = _record(formula, session)
        except RefusedError as error:
            refused = error
        # A tensor that the formula brings may be as large as the probes: then others are due. If
        # it then is as large as these, it is of the formula's making, as that of positions.
        before, alike = (
            alike,
            {
                (i, axis)
                for i, tensor in enumerate(session.kept)
                for axis, size in enumerate(tensor.shape)
                if size and not (size % n and size % m)
            },
        )
        if not alike or alike == before:
            break
        taken += (size for tensor in session.kept for size in tensor.shape)
    else:
        refused = RefusedError("its tensors are of too many sizes to tell their axes apart")
    if refused is not None:
        raise refused
    batch = max(len(each) for each in lead)
    drawn = session.finish(result, batch)
    trace = Trace(
        session.steps, session.results, drawn, proportional,
        (tuple(probes[0].shape), tuple(probes[1].shape)), result.number,
        None if proportional else additive(drawn),
    )  # fmt: skip
    _check(trace, formula, *probes)
    return trace


def _record(formula: Formula, session: Recorder) -> Any:
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            return _run(formula, session.query, session.key)
    finally:
        if not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            raise RefusedError("it draws random numbers")


def _probes(query: Tensor, key: Tensor, lead: Any, n: int, m: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n * m)

    def probe(lead: Any, rows: int, d: int) -> Tensor:
        """Small enough to lie within the unit ball, where some formulas live."""
        numbers = torch.rand(*lead, rows, d, generator=generator, dtype=torch.float64)
        found: Tensor = (numbers * 1.8 - 0.9) * max(1, d) ** -0.5
        return found.to(query.dtype)

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
    tokens = query.detach().requires_grad_(), key.detach().requires_grad_()
    with torch.enable_grad():
        plain = _run(formula, *tokens)
        found = follow(trace, formula, *tokens, rewritten=False)
        if found is None or not isinstance(plain, Tensor):
            raise RefusedError("it does not do the same twice")
        scores = PROGRAMS[found.kind].scores(found.query, found.key, found.parameter)
        scores = scores.expand_as(plain)
        _compare(scores, plain, tolerance, "its scores are not those of its program")
        own, expected = (_slopes(each, tokens) for each in (scores, plain))
    for a, b in zip(own, expected, strict=True):
        _compare(a, b, tolerance, "its gradient is not that of its formula")
    for which, others in enumerate(("queries", "keys")):
        moved = [x.detach().clone() for x in tokens]
        moved[which][..., 0, :] = moved[which][..., 0, :] * 0.5 + 0.01
        with torch.no_grad():
            other = _run(formula, *moved)
        axis = which - 2
        before, after = (x.detach().narrow(axis, 1, x.shape[axis] - 1) for x in (plain, other))
        _compare(after, before, tolerance, f"a score of a pair depends on other {others}")


def _slopes(scores: Tensor, tokens: tuple[Tensor, Tensor]) -> list[Tensor]:
    """The gradients of the tokens, given one of the scores that is another for each."""
    weights = torch.linspace(0.5, 1.5, scores.numel(), dtype=scores.dtype).view(scores.shape)
    total = (scores * weights).nan_to_num(0.0, 0.0, 0.0).sum()
    if not total.requires_grad:
        return [torch.zeros_like(token) for token in tokens]
    return list(torch.autograd.grad(total, tokens, materialize_grads=True))


def _compare(own: Tensor, expected: Tensor, tolerance: float, reason: str) -> None:
    own, expected = own.detach().double(), expected.detach().double()
    size = expected.nan_to_num(0.0, 0.0, 0.0).abs().max() if expected.numel() else 1.0
    if not torch.allclose(
        own, expected, tolerance, tolerance * float(size) + 1e-30, equal_nan=True
    ):
        raise RefusedError(reason)
