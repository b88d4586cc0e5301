"""Which operator answers, why, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qkv.memory import TILE_BYTES, readable
from qkv.operators import banded, dense, fused, sdpa, streamed, topk
from qkv.operators.base import Offer, Result
from qkv.problem import Problem

#: Every operator, the most preferred first.
OPERATORS: dict[str, Callable[[Problem], Offer | str]] = {
    "topk": topk.offer,
    "banded": banded.offer,
    "sdpa": sdpa.offer,
    "fused": fused.offer,
    "dense": dense.offer,
    "streamed": streamed.offer,
}


@dataclass(frozen=True)
class Plan:
    """How a question will be answered; print it.

    `flops` and `bytes` are estimates made from shapes: the work, and the memory needed beside the
    arguments and the answer. `rejected` says of every other operator why it was passed over.
    """

    operator: str
    reason: str
    flops: int
    bytes: int
    rejected: dict[str, str]
    dense_bytes: int
    summary: str
    run: Callable[[], Result] = field(repr=False, compare=False)

    def __str__(self) -> str:
        lines = [
            f"attend  {self.summary}",
            f"└─ {self.operator}: {self.reason}",
            f"   work    {_readable_flops(self.flops)}",
            f"   memory  {readable(self.bytes)} beside the arguments and the answer "
            f"(all scores at once: {readable(self.dense_bytes)})",
        ]
        if self.rejected:
            lines.append("   passed over")
            width = max(map(len, self.rejected))
            lines += [f"     {name:<{width}}  {why}" for name, why in self.rejected.items()]
        return "\n".join(lines)


def choose(problem: Problem, operator: str | None = None) -> Offer:
    """The offer of the operator named, or of the one preferred for this problem."""
    if operator is not None:
        return _forced(problem, operator)
    for name, ask in OPERATORS.items():
        offer = ask(problem)
        if not isinstance(offer, str) and _not_preferred(name, offer) is None:
            return offer
    raise AssertionError("streamed serves everything")


def explain(problem: Problem) -> Plan:
    """As :func:`choose`, but asking every operator, so as to tell the whole story."""
    chosen: tuple[str, Offer] | None = None
    rejected: dict[str, str] = {}
    for name, ask in OPERATORS.items():
        offer = ask(problem)
        refusal = offer if isinstance(offer, str) else _not_preferred(name, offer)
        if refusal is not None:
            rejected[name] = refusal
        elif chosen is not None:
            rejected[name] = f"{chosen[0]} is preferred where both can serve"
        else:
            assert not isinstance(offer, str)
            chosen = name, offer
    assert chosen is not None, "streamed serves everything"
    name, offer = chosen
    cost = offer.cost()
    return Plan(
        operator=name,
        reason=cost.reason,
        flops=cost.flops,
        bytes=cost.bytes,
        rejected=rejected,
        dense_bytes=dense.bytes_needed(problem),
        summary=_summary(problem),
        run=offer.run,
    )


def _not_preferred(name: str, offer: Offer) -> str | None:
    """Why an operator that could serve is not preferred."""
    if name == "dense" and (size := offer.cost().bytes) > TILE_BYTES:
        return f"it would hold {readable(size)} at once; tiles are kinder to the caches"
    return None


def _forced(problem: Problem, operator: str) -> Offer:
    if operator not in OPERATORS:
        raise ValueError(f"operator must be one of {', '.join(OPERATORS)}; got {operator!r}")
    offer = OPERATORS[operator](problem)
    if not isinstance(offer, str):
        return offer
    able = explain(problem)
    message = (
        f"operator {operator!r} cannot serve: {offer}; "
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
        type(problem.similarity).__name__,
    ]
    if problem.mask is not None:
        parts.append(f"mask {problem.mask!r}")
    if problem.dropout is not None:
        parts.append(f"dropout {problem.dropout.rate}")
    return ", ".join(parts)


def _readable_flops(flops: float) -> str:
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if flops < 1000 or unit == "TFLOP":
            break
        flops /= 1000
    return f"{flops:.3g} {unit}"
