"""What an operator is: a function from a problem to its answer, or to the reason why not.

Every operator gives the same answer; they differ in what they can serve and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor

from qkv.problem import Problem

#: The answer (…, n, d_v), and the log of the total weight (…, n) where the problem wants it.
Result: TypeAlias = tuple[Tensor, Tensor | None]


class Cost(NamedTuple):
    flops: int
    bytes: int  # memory needed beyond inputs and output
    reason: str  # one clause: what makes this operator a good choice here


class Operator(NamedTuple):
    """One way to compute the answer: whether it can, and how long it would take."""

    #: One clause saying why problems of these sizes, types and kinds cannot be served; None: it may
    #: be able to. The numbers are not looked at, so that the planner need not ask again.
    refusal: Callable[[Problem], str | None]
    #: The answer to a problem that is not refused, or one clause saying why its numbers allow none.
    answer: Callable[[Problem], Result | str]
    #: What that would cost, or why its numbers allow no answer; nothing is computed.
    offer: Callable[[Problem], Cost | str]
    #: Seconds that it would take, were it able to serve, or one clause saying why it is never
    #: preferred for this problem.
    estimate: Callable[[Problem], float | str]
    #: The answer under a mask, if NaN and inf in what is masked reach neither it nor its gradients,
    #: or one clause saying why that is not sure. No function: it never is.
    leakproof: Callable[[Problem], Result | str] | None = None
    #: Whether infinity in answers without a mask is that of the formula; see `arithmetic.py`.
    is_arithmetic: bool = False

    def ask(self, problem: Problem) -> Cost | str:
        """What it would cost to answer a problem, or why it cannot."""
        return self.refusal(problem) or self.offer(problem)
