"""Which operator answers, why, and what it costs."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace

from qkv.jit.kernels import UnavailableError, warn_once
from qkv.memory import readable
from qkv.operators import banded, dense, fused, lookup, sdpa, sorted, streamed, topk
from qkv.operators.arithmetic import settled
from qkv.operators.base import Cost, Operator, Result
from qkv.problem import Problem
from qkv.tracing import is_for_onnx, sizes_are_known

#: Every operator; of two that take equally long the first is preferred.
OPERATORS: dict[str, Operator] = {
    "topk": Operator(topk.refusal, topk.answer, topk.offer, topk.estimate),
    "lookup": Operator(lookup.refusal, lookup.answer, lookup.offer, lookup.estimate),
    "sorted": Operator(sorted.refusal, sorted.answer, sorted.offer, sorted.estimate),
    "banded": Operator(banded.refusal, banded.answer, banded.offer, banded.estimate),
    "sdpa": Operator(sdpa.refusal, sdpa.answer, sdpa.offer, sdpa.estimate, is_arithmetic=True),
    "fused": Operator(
        fused.refusal,
        fused.answer,
        fused.offer,
        fused.estimate,
        leakproof=fused.leakproof,
        is_arithmetic=True,
    ),
    "dense": Operator(
        dense.refusal, dense.answer, dense.offer, dense.estimate, leakproof=dense.leakproof
    ),
    "streamed": Operator(streamed.refusal, streamed.answer, streamed.offer, streamed.estimate),
}

#: Operators that call kernels of our own.
OWN_KERNELS = ("lookup", "sorted", "banded", "fused")


@dataclass(frozen=True)
class Plan:
    """How a question will be answered; print it.

    `flops`, `bytes` and `seconds` are estimates made from shapes: the work, the memory needed
    beyond inputs, output and their gradients, and the time, see :mod:`qkv.cost`. Memory is right
    within a factor of two, beside some megabytes that libraries keep to work in.
    `rejected` says of every other operator why it was passed over.
    """

    operator: str
    reason: str
    flops: int
    bytes: int
    seconds: float
    rejected: dict[str, str]
    dense_bytes: int
    summary: str

    def times(self, count: int) -> Plan:
        """The same for `count` such questions, one after the other."""
        if count == 1:
            return self
        return replace(
            self,
            flops=count * self.flops,
            seconds=count * self.seconds,
            dense_bytes=count * self.dense_bytes,
            summary=f"{count} groups of heads, each {self.summary}",
        )

    def __str__(self) -> str:
        lines = [
            f"attend  {self.summary}",
            f"└─ {self.operator}: {self.reason}",
            f"   work    {readable_flops(self.flops)}, about {readable_seconds(self.seconds)}",
            f"   memory  {readable(self.bytes)} beyond inputs and output "
            f"(all scores at once: {readable(self.dense_bytes)})",
        ]
        if self.rejected:
            lines.append("   passed over")
            width = max(map(len, self.rejected))
            lines += [f"     {name:<{width}}  {why}" for name, why in self.rejected.items()]
        return "\n".join(lines)


def answer(problem: Problem, operator: str | None = None) -> Result:
    """The answer of the operator named, or of the quickest that can serve.

    Whether a kernel can be compiled shows when it is first needed. If it cannot, the next operator
    answers.
    """
    if operator is not None:
        return _forced(problem, operator)
    for name in _order(problem):
        try:
            answered = OPERATORS[name].answer(problem)
        except UnavailableError as reason:
            warn_once(str(reason))
            continue
        if not isinstance(answered, str):
            # Under a mask whoever asks looks at the answer in any case.
            is_exact = problem.mask is not None or OPERATORS[name].is_arithmetic
            return answered if is_exact else settled(problem, answered)
    raise AssertionError("streamed serves everything")


def leakproof_answer(problem: Problem) -> Result | None:
    """The answer of the quickest operator, if nothing that is masked leaks into it."""
    leakproof = OPERATORS[_order(problem)[0]].leakproof
    if leakproof is None:
        return None
    try:
        answered = leakproof(problem)
    except UnavailableError:
        return None  # whoever asks next will be told
    return None if isinstance(answered, str) else answered


def _order(problem: Problem) -> tuple[str, ...]:
    """The operators worth asking, the quickest first; whether they can serve, they say.

    It is the same for all problems of a signature, so it is found once for each.
    """
    checked = problem.checked
    if checked is not None and checked.order is not None:
        return checked.order
    if is_for_onnx() or not sizes_are_known(*problem.batch, problem.n, problem.m):
        return _by_capability(problem)
    seconds: dict[str, float] = {}
    for name, operator in OPERATORS.items():
        if operator.refusal(problem) is None:
            estimate = operator.estimate(problem)
            if not isinstance(estimate, str):
                seconds[name] = estimate
    order = tuple(builtins.sorted(seconds, key=seconds.__getitem__))
    if checked is not None:
        checked.order = order
    return order


def _by_capability(problem: Problem) -> tuple[str, ...]:
    """The operators that can serve, whatever the sizes: those for special cases first.

    Where sizes are symbols, times are unknown, and comparing them would tie the graph to some.
    """
    able = [name for name, operator in OPERATORS.items() if operator.refusal(problem) is None]
    if is_for_onnx():
        able = [name for name in able if name not in OWN_KERNELS]
    if problem.is_plainly_causal and "banded" in able:
        able.remove("banded")  # the kernel's own causal mode skips as much
    return tuple(able)


def explain(problem: Problem) -> Plan:
    """As :func:`answer`, but asking every operator, so as to tell the whole story."""
    able: dict[str, Cost] = {}
    seconds: dict[str, float] = {}
    rejected: dict[str, str] = {}
    for name, operator in OPERATORS.items():
        refusal = operator.refusal(problem)
        if refusal is not None:  # there may be nothing to estimate, such as no pairs at all
            rejected[name] = refusal
            continue
        estimate = operator.estimate(problem)  # first: an offer may compile a formula
        offered = operator.offer(problem)
        if isinstance(offered, str):
            rejected[name] = offered
        elif isinstance(estimate, str):
            rejected[name] = estimate
        else:
            able[name], seconds[name] = offered, estimate
    chosen = next(name for name in _order(problem) if name in able)
    least = readable_seconds(seconds[chosen])
    for name in able.keys() - {chosen}:
        rejected[name] = f"takes about {readable_seconds(seconds[name])}, {chosen} {least}"
    cost = able[chosen]
    return Plan(
        operator=chosen,
        reason=cost.reason,
        flops=cost.flops,
        bytes=cost.bytes,
        seconds=seconds[chosen],
        rejected={name: rejected[name] for name in OPERATORS if name in rejected},
        dense_bytes=dense.bytes_needed(problem),
        summary=_summary(problem),
    )


def _forced(problem: Problem, operator: str) -> Result:
    if operator not in OPERATORS:
        raise ValueError(f"operator must be one of {', '.join(OPERATORS)}; got {operator!r}")
    asked = OPERATORS[operator]
    try:
        answered = asked.refusal(problem) or asked.answer(problem)
    except UnavailableError as reason:
        answered = str(reason)
    if not isinstance(answered, str):
        is_exact = problem.mask is not None or asked.is_arithmetic
        return answered if is_exact else settled(problem, answered)
    able = explain(problem)
    message = (
        f"operator {operator!r} does not support this input: {answered}; "
        f"{able.operator!r} can, in {readable(able.bytes)}"
    )
    raise MemoryError(message) if operator == "dense" else ValueError(message)


def _summary(problem: Problem) -> str:
    batch = f" × batch {'·'.join(map(str, problem.batch))}" if problem.batch else ""
    parts = [
        f"{problem.n:,} queries × {problem.m:,} keys{batch}",
        f"d_q {problem.query.shape[-1]}, d_k {problem.key.shape[-1]}, "
        f"d_v {problem.value.shape[-1]}",
        str(problem.query.dtype).removeprefix("torch."),
        problem.similarity.describe(),
    ]
    if problem.mask is not None:
        parts.append(f"mask {problem.mask!r}")
    if problem.position_bias is not None:
        parts.append(f"bias {problem.position_bias!r}")
    if problem.dropout is not None:
        parts.append(f"dropout {problem.dropout.rate}")
    return ", ".join(parts)


def readable_flops(flops: float) -> str:
    """Work as a person says it: 8.6 GFLOP."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if flops < 1000 or unit == "TFLOP":
            break
        flops /= 1000
    return f"{flops:.3g} {unit}"


def readable_seconds(seconds: float) -> str:
    """Time as a person says it: 2.1 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
