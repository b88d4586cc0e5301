"""Which operator answers, why, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qkv.memory import TILE_BYTES, readable
from qkv.operators import banded, dense, fused, sdpa, sorted, streamed, topk
from qkv.operators.base import Offer, Result
from qkv.problem import Problem
from qkv.similarity import Euclidean, Kernel

#: Every operator, the most preferred first.
OPERATORS: dict[str, Callable[[Problem], Offer | str]] = {
    "topk": topk.offer,
    "sorted": sorted.offer,
    "banded": banded.offer,
    "sdpa": sdpa.offer,
    "fused": fused.offer,
    "dense": dense.offer,
    "streamed": streamed.offer,
}


def _work(problem: Problem) -> int:
    return problem.pairs * (problem.dim + problem.value.shape[-1])


def _is_distance(problem: Problem) -> bool:
    return isinstance(problem.similarity, (Kernel, Euclidean))


#: Where an operator that can serve is also the better choice, and why not elsewhere.
#: `qkv bench fused` measures both sides of each crossover.
CROSSOVERS: dict[str, list[tuple[Callable[[Problem], bool], str]]] = {
    "topk": [
        (
            lambda problem: problem.n * problem.m >= 2**14,
            "for fewer than 16,384 pairs ranking all scores at once is quicker",
        )
    ],
    "sorted": [
        (
            lambda problem: problem.n * problem.m >= 2**16,
            "for fewer than 65,536 pairs sorting is not worth it",
        )
    ],
    "banded": [
        (
            lambda problem: problem.n >= 512,
            "for fewer than 512 queries one call with a mask is quicker",
        ),
        (
            lambda problem: not sdpa.is_plainly_causal(problem),
            "PyTorch's kernel skips what lies ahead by itself",
        ),
    ],
    "sdpa": [
        (
            lambda problem: (
                not _is_distance(problem)
                or problem.dim >= 8
                or problem.n * problem.m < 2**20
                or problem.query.device.type != "cpu"
            ),
            "in fewer than 8 dimensions the fused kernel of a distance is quicker",
        )
    ],
    "fused": [
        (
            lambda problem: _work(problem) >= 2**16,
            "for so little work a kernel is not worth loading",
        )
    ],
    "dense": [
        (
            lambda problem: dense.bytes_needed(problem) <= TILE_BYTES,
            f"more than {readable(TILE_BYTES)} at once; tiles are kinder to the caches",
        )
    ],
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
            f"   work    {readable_flops(self.flops)}",
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
        if _not_preferred(name, problem) is None:
            offer = ask(problem)
            if not isinstance(offer, str):
                return offer
    raise AssertionError("streamed serves everything")


def explain(problem: Problem) -> Plan:
    """As :func:`choose`, but asking every operator, so as to tell the whole story."""
    chosen: tuple[str, Offer] | None = None
    rejected: dict[str, str] = {}
    for name, ask in OPERATORS.items():
        offer = ask(problem)
        refusal = offer if isinstance(offer, str) else _not_preferred(name, problem)
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


def _not_preferred(name: str, problem: Problem) -> str | None:
    """Why an operator, if it can serve, is not the better choice."""
    for favours, otherwise in CROSSOVERS.get(name, ()):
        if not favours(problem):
            return otherwise
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


def readable_flops(flops: float) -> str:
    """Work as a person says it: 8.6 GFLOP."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if flops < 1000 or unit == "TFLOP":
            break
        flops /= 1000
    return f"{flops:.3g} {unit}"
