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
from qkv.formula.traced import RefusedError, current_line, line_of, name_of

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
            with torch.inference_mode(False):
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
        session.close()
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
        tokens: Tensor = (numbers * 1.8 - 0.9) * max(1, d) ** -0.5
        return tokens.to(query.dtype)

    return probe(lead[0], n, query.shape[-1]), probe(lead[1], m, key.shape[-1])


def _run(formula: Formula, query: Tensor, key: Tensor) -> Any:
    try:
        return formula(query, key)
    except RefusedError:
        raise
    except Exception as error:  # whatever a formula may come up with
        said = " ".join(str(error).split())[:200]
        raise RefusedError(
            f"it cannot be traced: {type(error).__name__}: {said}{line_of(error)}"
        ) from error


def _check(trace: Trace, formula: Formula, query: Tensor, key: Tensor) -> None:
    """The program gives what the formula gives, and a score depends on its pair alone."""
    tolerance = TOLERANCES.get(query.dtype, 0.1)
    tokens = query.detach().requires_grad_(), key.detach().requires_grad_()
    with torch.enable_grad():
        plain = _run(formula, *tokens)
        form = follow(trace, formula, *tokens, rewritten=False)
        if form is None or not isinstance(plain, Tensor):
            raise RefusedError("it does not do the same twice")
        program = PROGRAMS[form.kind]
        scores = program.scores(form.query, form.key, form.parameter).expand_as(plain)
        _compare(scores, plain, tolerance, "its scores are not those of its program")
        derived, expected = (_slopes(each, tokens) for each in (scores, plain))
    for a, b in zip(derived, expected, strict=True):
        _compare(a, b, tolerance, "its gradient is not that of its formula")
    for which, others in enumerate(("queries", "keys")):
        moved = [x.detach().clone() for x in tokens]
        moved[which][..., 0, :] = moved[which][..., 0, :] * 0.5 + 0.01
        with torch.no_grad():
            other = _run(formula, *moved)
        axis = which - 2
        before, after = (x.detach().narrow(axis, 1, x.shape[axis] - 1) for x in (plain, other))
        if not _are_close(after, before, tolerance):
            cause = _mixing_step(formula, tokens, moved, which)
            raise RefusedError(f"{cause} makes a score depend on other {others}")


def _slopes(scores: Tensor, tokens: tuple[Tensor, Tensor]) -> list[Tensor]:
    """The gradients of the tokens, given one of the scores that is another for each."""
    weights = torch.linspace(0.5, 1.5, scores.numel(), dtype=scores.dtype).view(scores.shape)
    total = (scores * weights).nan_to_num(0.0, 0.0, 0.0).sum()
    if not total.requires_grad:
        return [torch.zeros_like(token) for token in tokens]
    return list(torch.autograd.grad(total, tokens, materialize_grads=True))


class _TokenSteps(Recorder):
    """Keeps the result of each step that a formula takes on tokens, and the line of it."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.taken: list[tuple[str, Tensor]] = []
        super().__init__(query, key)

    def token_call(self, func: Any, args: Any, kwargs: Any, result: Tensor, part: int) -> int:
        number = super().token_call(func, args, kwargs, result, part)
        self.taken.append((f"{name_of(func).strip('_')}{current_line()}", result.detach()))
        return number


def _mixing_step(formula: Formula, tokens: Any, moved: Any, which: int) -> str:
    """The first step in which a token changes although only the first one was moved."""
    runs = []
    for probes in (tokens, moved):
        session = _TokenSteps(*(x.detach() for x in probes))
        _record(formula, session)
        session.close()
        runs.append(session.taken)
    count = tokens[which].shape[-2]
    step: str
    for (step, before), (_, after) in zip(*runs, strict=True):
        for axis in (axis for axis, size in enumerate(before.shape) if size == count):
            others = (x.narrow(axis, 1, count - 1) for x in (before, after))
            if not torch.equal(*others):
                return step
    return "something"


def _are_close(derived: Tensor, expected: Tensor, tolerance: float) -> bool:
    derived, expected = derived.detach().double(), expected.detach().double()
    size = expected.nan_to_num(0.0, 0.0, 0.0).abs().max() if expected.numel() else 1.0
    slack = tolerance * float(size) + 1e-30
    return torch.allclose(derived, expected, tolerance, slack, equal_nan=True)


def _compare(derived: Tensor, expected: Tensor, tolerance: float, reason: str) -> None:
    if not _are_close(derived, expected, tolerance):
        raise RefusedError(reason)
