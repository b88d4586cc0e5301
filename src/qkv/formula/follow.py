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

    def _next(self, what: str, details: tuple[Any, ...]) -> int:
        """The number of the step's result."""
        at = self._at
        if at >= len(self._steps):
            raise StrayedError
        before = self._steps[at]
        if before.what != what or not (
            before.details == details or self._same(before.details, details)
        ):
            raise StrayedError
        self._at = at + 1
        return self._numbers[at]

    def _same(self, before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
        return len(before) == len(now) and all(
            a == b or self._as_many(a, b) for a, b in zip(before, now, strict=True)
        )

    def _as_many(self, before: Any, now: Any) -> bool:
        """Whether a number is that of queries or keys (or of an entry of a leading axis)."""
        if type(before) is not int or type(now) is not int:
            return False
        whole = before
        for probe, size in self._sizes.items():
            if before % probe == 0 and now == before // probe * size:
                return True
            if whole % probe == 0:
                whole = whole // probe * size
        return now == whole

    def is_done(self) -> bool:
        return self._at == len(self._steps)

    def token_call(self, func: Any, args: Any, kwargs: Any, result: Tensor, part: int) -> int:
        described = (func, *describe(self, args), *describe(self, kwargs), part)
        return self._next("token", described)

    def elementwise(self, op: str, *operands: Any) -> Traced:
        described, sizes = [op], []
        for x in operands:
            described.append(describe_operand(self, x))
            sizes.append(sizes_of(x))
            if not isinstance(x, Traced):
                self.brought.append(x)
            elif x.held is not None:
                self.brought.append(x.held)
        number = self._next("elementwise", tuple(described))
        return self.pair(broadcast(sizes), number)

    def reduce(self, op: str, x: Any, dims: tuple[int, ...], keepdim: bool) -> Traced:
        number = self._next("reduce", (op, describe_operand(self, x), dims, keepdim))
        sizes = tuple(
            1 if i in dims else size for i, size in enumerate(x.sizes) if i not in dims or keepdim
        )
        return self.pair(sizes, number)

    def rearrange(self, x: Traced, order: tuple[int | None, ...]) -> Traced:
        number = self._next("rearrange", (describe_operand(self, x), order))
        moved = self.pair(tuple(1 if i is None else x.sizes[i] for i in order), number)
        x.shared = moved.shared = True  # type: ignore[attr-defined]
        return moved
