"""What the fused kernels serve, and how a problem reaches them."""

from __future__ import annotations

import math

from torch import Tensor

from qkv import cost
from qkv.formula import PROGRAMS
from qkv.formula.forms import was_traced
from qkv.mask import Mask, Parts, Runs
from qkv.memory import TILE_BYTES, readable
from qkv.operators import sdpa
from qkv.operators.aten_flash import four_axes
from qkv.operators.base import Cost, Result
from qkv.operators.fused import ops
from qkv.operators.fused.inputs import ROWS
from qkv.operators.fused.launch import Call, query_layers
from qkv.operators.strides import by_residue, runs_of_heads
from qkv.operators.tiles import in_tiles, rows_at_once
from qkv.problem import Problem
from qkv.similarity import Similarity
from qkv.similarity.base import FusedForm, may_be_fused, widen
from qkv.tracing import can_read_values, in_forward_mode, in_transform, is_finite

#: A mask that limits nothing.
UNMASKED = Parts(None, None)


def refusal(problem: Problem) -> str | None:
    """Why no fused kernel supports a problem, as far as sizes and types tell."""
    if not may_be_fused(problem.similarity):
        return f"{type(problem.similarity).__name__} has no fused kernel"
    if problem.query.device.type not in ("cpu", "meta"):
        return "the kernels are compiled for CPUs"
    if problem.pairs * problem.query.shape[-1] * problem.value.shape[-1] == 0:
        return "there is nothing to compare"
    if in_transform() or in_forward_mode():
        return "not supported inside torch.func transforms"
    return None


def _parts(mask: Mask, problem: Problem) -> Parts | str:
    """The mask as the kernels take it: runs of keys, tensors, or both."""
    parts = mask.as_parts(problem.tile(0, problem.n))
    if parts is None:
        return f"{mask!r} is neither one run of keys for each query nor a tensor"
    if parts.runs is not None and parts.runs.stride > 1 and not _only_runs(problem, parts):
        return "strided keys are not supported with a tensor mask or dropout"
    return parts


#: Fewer features of pairs than this are not worth tracing and compiling a formula for.
FEW_FEATURES = 2**17
#: Seconds that it takes to follow a formula through its tokens, as measured for ten operations.
FOLLOW = 85e-6


def estimate(problem: Problem) -> float | str:
    """The seconds it would take; pairs that masks by position leave out are not visited."""
    family = problem.similarity.family
    plain = problem.mask is None or problem.is_plainly_causal
    if family == "dot" and plain and sdpa.refusal(problem) is None:
        return "PyTorch's own kernel serves plain dot products, on every processor alike"
    pairs, more = share(problem), 0.0
    if problem.mask is not None:
        more = cost.seconds(problem, "mask", "fused", pairs)
    if problem.position_bias is not None:  # made for all keys, a tile of queries at a time
        more += cost.seconds(problem, "mask", "dense")
    if family in ("dot", "additive", "gated", "distance", "steps"):
        return more + cost.seconds(problem, "fused", family, pairs)
    if problem.pairs * problem.dim < FEW_FEATURES and not was_traced(problem.similarity.formula):
        return (
            f"a formula is compiled for {FEW_FEATURES:,} features of pairs or more, or once it was"
        )
    return more + FOLLOW + cost.seconds(problem, "fused", "distance", pairs)


def share(problem: Problem) -> float:
    """The share of pairs that is visited: those of the mask, by tiles of a few queries."""
    if problem.mask is None:
        return 1.0
    return min(1.0, problem.mask.share(problem.n, problem.m) + ROWS / (2 * problem.n))


def _only_runs(problem: Problem, parts: Parts) -> bool:
    return parts.allowed is None and not problem.adds_to_scores and problem.dropout is None


def offer(problem: Problem) -> Cost | str:
    """The pairs that are allowed, in tiles."""
    parts = UNMASKED if problem.mask is None else _parts(problem.mask, problem)
    if isinstance(parts, str):
        return parts
    query, key = problem.query, problem.key
    if problem.similarity.family in ("additive", "gated"):  # one token of each is projected
        query, key = query[..., :1, :], key[..., :1, :]
    form = problem.similarity.as_fused(query, key)
    if isinstance(form, str):
        return form
    failure = ops.failure(form.kind, form.query.dtype, problem.needs_grad)
    if failure is not None:
        return failure
    name = type(problem.similarity).__name__
    size = bytes_held(problem, form)
    if problem.position_bias is not None:
        size += min(10 * TILE_BYTES, 4 * problem.pairs)
    reason = f"{name} has a fused kernel, which is more cache-friendly"
    if problem.similarity.family == "any":
        formula = problem.similarity.formula
        name = getattr(formula, "__name__", type(formula).__name__)
        if form.kind == "additive":
            reason = f"{name} is a sum of tanh or sigmoid, which has a factorised kernel"
        else:
            reason = f"a kernel was derived from {name}: {PROGRAMS[form.kind].summary}"
    share = 1.0
    if parts.runs is not None and problem.query.device.type != "meta":
        share = parts.runs.share(problem.m)
        reason += f"; {share:.2%} of the pairs are allowed, and only those are computed"
    return Cost(int(problem.flops * share), size, f"{reason} ({readable(size)})")


def bytes_held(problem: Problem, form: FusedForm) -> int:
    """The tiles of all threads, tokens that are projected, and what gradients are summed up in."""
    entries, columns = math.prod(problem.batch), form.query.shape[-1]
    queries, keys = entries * problem.n * columns, entries * problem.m * form.key.shape[-1]
    prepared = 0
    if columns != problem.query.shape[-1] or problem.similarity.family == "any":
        prepared = (queries + keys) * form.query.element_size()
    if not problem.needs_grad or problem.similarity.has_steps:
        return TILE_BYTES + prepared
    return TILE_BYTES + 2 * prepared + query_layers(entries, problem.m) * queries * 8


def leakproof(problem: Problem) -> Result | str:
    """The answer, if nothing that is masked leaks into it or its gradients.

    The kernels hide it themselves, forward and backward. But what is made of tokens before, by
    projections say, torch differentiates, and 0 times NaN is NaN there.
    """
    similarity, tokens = problem.similarity, (problem.query, problem.key)
    prepares = similarity.family == "any" or type(similarity).prepare is not Similarity.prepare
    if prepares and problem.needs_grad and not (can_read_values(*tokens) and is_finite(*tokens)):
        return "something may hold NaN or inf"
    return answer(problem)


def answer(problem: Problem) -> Result | str:
    """The kernel's answer, in the shape and type of the problem."""
    parts = UNMASKED if problem.mask is None else _parts(problem.mask, problem)
    if isinstance(parts, str):
        return parts
    form = problem.similarity.as_fused(problem.query, problem.key)
    if isinstance(form, str):
        return form
    value = widen(problem.value)
    if not problem.is_eager:  # what is traced now cannot turn to another operator when it runs
        failure = ops.failure(form.kind, form.query.dtype, problem.needs_grad)
        if failure is not None:
            return failure
    if parts.runs is not None and parts.runs.stride > 1:
        out, log_total = _with_stride(problem, form, value, parts.runs)
    elif problem.position_bias is not None:
        out, log_total = _with_positions(problem, form, value)
    else:
        row_key = None if problem.dropout is None else problem.dropout.row_keys
        bias = None if problem.bias is None else problem.bias.to(value.dtype)
        out, log_total = ops.attend(_call(problem, form, value, parts, bias, row_key))
    if out.dtype != problem.value.dtype:
        out = out.to(problem.value.dtype)
    if log_total.shape[:-1] == problem.batch:
        return out, log_total
    return (
        out.expand(*problem.batch, *out.shape[-2:]),
        log_total.expand(*problem.batch, problem.n),
    )


def _call(
    problem: Problem,
    form: FusedForm,
    value: Tensor,
    parts: Parts,
    bias: Tensor | None,
    row_key: Tensor | None,
) -> Call:
    return Call(
        form.query,
        form.key,
        value,
        form.parameter,
        bias=bias,
        start=None if parts.runs is None else parts.runs.start,
        stop=None if parts.runs is None else parts.runs.stop,
        mask=parts.allowed,
        row_key=row_key,
        kind=form.kind,
        rate=0.0 if problem.dropout is None else problem.dropout.rate,
    )


def _with_positions(problem: Problem, form: FusedForm, value: Tensor) -> tuple[Tensor, Tensor]:
    """A tile of queries at a time, whose bias is made by torch and never held for all."""
    bias, masked, dropout = problem.position_bias, problem.bias, problem.dropout
    assert bias is not None
    in_rows = masked is not None and masked.shape[-2] != 1

    def rows(start: int, query: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        key, value, parameter = others[1:] if in_rows else others[:3]
        tile = problem.tile(start, start + query.shape[-2])
        added = bias.scores(tile).to(value.dtype)
        if masked is not None:
            added = added + others[0 if in_rows else 3].to(value.dtype)
        parts = Parts(None, None) if problem.mask is None else problem.mask.as_parts(tile)
        assert parts is not None, "the offer was made for parts"
        row_key = None if dropout is None else dropout.row_keys[..., tile.start : tile.stop]
        tile_form = form._replace(query=query, key=key, parameter=parameter)
        out, log_total = ops.attend(_call(problem, tile_form, value, parts, added, row_key))
        return out, log_total.unsqueeze(-1)

    sliced, whole = [form.query], [form.key, value, form.parameter]
    if masked is not None:
        (sliced if in_rows else whole).append(masked)
    row = value.element_size() * problem.m * math.prod(problem.batch)
    out, log_total = in_tiles(rows, sliced, whole, max(ROWS, rows_at_once(TILE_BYTES, row)))
    return out, log_total.squeeze(-1)


def _with_stride(
    problem: Problem, form: FusedForm, value: Tensor, runs: Runs
) -> tuple[Tensor, Tensor]:
    query, key, value = (
        four_axes(x, problem.batch, x.shape[-1]) for x in (form.query, form.key, value)
    )

    def attend(
        query: Tensor, key: Tensor, value: Tensor, start: Tensor, stop: Tensor
    ) -> tuple[Tensor, Tensor]:
        return ops.attend(
            Call(query, key, value, form.parameter, None, start, stop, None, None, form.kind, 0.0)
        )

    runs = runs_of_heads(runs, problem.batch, query)
    out, log_total = by_residue(query, key, value, runs, attend)
    batch, n = problem.batch, problem.n
    return out.reshape(*batch, n, out.shape[-1]), log_total.reshape(*batch, n)
