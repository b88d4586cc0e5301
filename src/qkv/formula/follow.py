"""Later runs of a formula: the same steps again, now on the tokens themselves.

Constants and tensors that the formula brings are taken as they are in this run. Should it do
anything else than it did on the probes, its program does not serve.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qkv.formula.record import Step, describe, describe_operand
from qkv.formula.traced import Session, Traced, broadcast, sizes_of


class StrayedError(Exception):
    """The formula did something else than before."""


class Follower(Session):
    """Compares each step with the one that was recorded, and gathers what enters the program."""

    def __init__(
        self, query: Tensor, key: Tensor, steps: list[Step], numbers: list[int],
        sizes: dict[int, int],
    ) -> None:  # fmt: skip
        self._steps, self._at = steps, 0
        self._numbers = numbers  # of the results of steps, as the recorder gave them
        self._sizes = sizes  # a size of the probes, and what it is now
        self.brought: list[Any] = []  # operands of pairs that are none, in order
        super().__init__(query, key)

    def _next(self, step: Step) -> int:
        """The number of the step's result."""
        at = self._at
        if at >= len(self._steps) or not self._same(self._steps[at], step):
            raise StrayedError
        self._at += 1
        return self._numbers[at]

    def _same(self, before: Step, now: Step) -> bool:
        if before.what != now.what or len(before.details) != len(now.details):
            return False
        if before.details == now.details:
            return True
        return all(
            a == b or self._as_many(a, b) for a, b in zip(before.details, now.details, strict=True)
        )

    def _as_many(self, before: Any, now: Any) -> bool:
        """Whether a number is that of queries or keys (or of an entry of a leading axis)."""
        if type(before) is not int or type(now) is not int:
            return False
        return any(
            before % probe == 0 and now == before // probe * size
            for probe, size in self._sizes.items()
        )

    def is_done(self) -> bool:
        return self._at == len(self._steps)

    def token_call(self, func: Any, args: Any, kwargs: Any, result: Tensor, part: int) -> int:
        described = (func, *describe(self, args), *describe(self, kwargs), part)
        return self._next(Step("token", described))

    def elementwise(self, op: str, *operands: Any) -> Traced:
        described = tuple(describe_operand(self, x) for x in operands)
        number = self._next(Step("elementwise", (op, *described)))
        self.brought += (
            x.held if isinstance(x, Traced) else x
            for x in operands
            if not (isinstance(x, Traced) and x.held is None)
        )
        return self.pair(broadcast([sizes_of(x) for x in operands]), number)

    def reduce(self, op: str, x: Any, dims: tuple[int, ...], keepdim: bool) -> Traced:
        number = self._next(Step("reduce", (op, describe_operand(self, x), dims, keepdim)))
        sizes = tuple(
            1 if i in dims else size for i, size in enumerate(x.sizes) if i not in dims or keepdim
        )
        return self.pair(sizes, number)

    def rearrange(self, x: Traced, order: tuple[int | None, ...]) -> Traced:
        number = self._next(Step("rearrange", (describe_operand(self, x), order)))
        found = self.pair(tuple(1 if i is None else x.sizes[i] for i in order), number)
        x.shared = found.shared = True  # type: ignore[attr-defined]
        return found
