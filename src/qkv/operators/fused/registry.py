"""The similarities that have fused kernels: the tile functions of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.formula import PROGRAMS
from qkv.formula.builtin import COLUMNS, program_of
from qkv.formula.compiled import BuiltIn, tile_function
from qkv.formula.program import Program
from qkv.jit import Callback
from qkv.jit.kernels import FUNCTIONS
from qkv.operators.fused import additive, additive_single
from qkv.similarity import NAMED, Kernel
from qkv.similarity.distance import by_differences, scaled_squares
from qkv.similarity.dot import scaled_product
from qkv.similarity.gated import gated_dot

#: From so many columns on the vector lanes run along them where keys are rows.
WIDE = 16
#: For fewer queries than this, keys are not turned into columns …
FEW = 4
#: … nor where they are so few that a loop along them is over before it is up to speed.
SHORT = 32


class Traits(NamedTuple):
    """Properties of tile functions that the drivers depend on."""

    parts: int = 1  # blocks of lines that the gradient works in
    proportional: bool = False  # scores are weights, not logits
    short_rows: bool = True  # whether rows are the better choice where keys are few
    cost: int = 1  # of a column of a pair, in multiply-adds


@dataclass(frozen=True)
class TileFunctions:
    """What the drivers call; see :class:`~qkv.operators.fused.inputs.Functions`.

    `scores` and `gradient` take keys that are columns, the others keys that are rows.
    """

    scores: Callback
    row_scores: Callback
    row_gradient: Callback | None  # None: scores are steps, whose gradient is 0
    gradient: Callback | None = None  # where rows serve tokens of any size, there is none
    transform: Callback | None = None
    #: Where the gradient needs more than the scores: scores that leave it behind them in `parts`
    #: blocks of lines, so that none are kept from the forward pass.
    kept_scores: Callback | None = None
    kept_row_scores: Callback | None = None
    #: What serves a single query better, of tokens so wide that keys are rows.
    single: TileFunctions | None = None
    #: Known at once, or once a formula was traced.
    traits: Callable[[], Traits] = Traits

    @property
    def parts(self) -> int:
        return self.traits().parts

    @property
    def proportional(self) -> bool:
        return self.traits().proportional

    @property
    def has_steps(self) -> bool:
        """Whether scores are a step function of their tokens."""
        return self.row_gradient is None

    @property
    def cost(self) -> int:
        return self.traits().cost

    def for_queries(self, n: int, d: int) -> TileFunctions:
        """What serves n queries of d columns."""
        return self.single if self.single is not None and n == 1 and d >= WIDE else self

    def depth(self, d: int) -> int:
        """The columns of a packed query or key of d columns."""
        return d if self.transform is None else 2 * d

    def scores_rows(self, n: int, m: int, d: int) -> bool:
        """Whether the scores of n queries and m keys of d columns are made of keys as rows."""
        return d >= WIDE and (n < FEW or (m <= SHORT and self.traits().short_rows))

    def differentiates_rows(self, d: int) -> bool:
        return self.gradient is None or d >= WIDE

    def callbacks(self) -> list[Callback]:
        every = (
            self.transform, self.scores, self.row_scores, self.kept_scores, self.kept_row_scores,
            self.gradient, self.row_gradient,
        )  # fmt: skip
        own = [each for each in every if each is not None]
        return own if self.single is None else [*own, *self.single.callbacks()]


def _derived(
    program: Callable[[], Program], function: Callable[[str], Callback], has_steps: bool = False
) -> TileFunctions:
    @cache
    def traits() -> Traits:
        traced = program()
        return Traits(traced.parts, traced.proportional, short_rows=False, cost=traced.cost)

    if has_steps:
        return TileFunctions(function("scores"), function("row_scores"), None, traits=traits)
    forms = ("scores", "row_scores", "row_gradient", "gradient", "kept_scores", "kept_row_scores")
    made: dict[str, Any] = {form: function(form) for form in forms}
    return TileFunctions(**made, traits=traits)


def _of_distance(kernel: Kernel, learned: bool) -> Program:
    """The program of a kernel whose parameter are inverse bandwidths, learned or not."""
    profile = kernel.profile if kernel.may_vanish else kernel.log_profile

    def formula(query: Tensor, key: Tensor, inverse: Tensor) -> Tensor:
        return profile(scaled_squares(query, key, inverse))

    inverse = torch.ones(COLUMNS, requires_grad=learned)
    return program_of(formula, inverse, proportional=kernel.may_vanish)


KERNELS = {name: each for name, each in NAMED.items() if isinstance(each, Kernel)}
#: The programs of similarities that are derived from their formulas.
BUILT_IN: dict[str, Callable[[], Program]] = {
    "dot": cache(partial(program_of, scaled_product, torch.ones(()))),
    "gated": cache(partial(program_of, gated_dot, torch.ones(()))),
    "euclidean": cache(partial(program_of, lambda query, key: -by_differences(query, key))),
    **{name: cache(partial(_of_distance, kernel, False)) for name, kernel in KERNELS.items()},
    **{
        f"learned_{name}": cache(partial(_of_distance, kernel, True))
        for name, kernel in KERNELS.items()
    },
}


def _built_in(kind: str) -> TileFunctions:
    def function(form: str) -> BuiltIn:
        # A gradient for the bandwidth makes no difference to scores.
        owner = kind.removeprefix("learned_") if form.endswith("scores") else kind
        known = FUNCTIONS.get(f"formula.{owner}.{form}")
        return known if isinstance(known, BuiltIn) else BuiltIn(BUILT_IN[owner], owner, form)

    kernel = KERNELS.get(kind.removeprefix("learned_"))
    return _derived(BUILT_IN[kind], function, kernel is not None and kernel.has_steps)


SIMILARITIES: dict[str, TileFunctions] = {
    "additive": TileFunctions(
        additive.scores,
        additive.row_scores,
        additive.row_gradient,
        transform=additive.transform,
        single=TileFunctions(
            additive.scores,
            additive_single.row_scores,
            additive_single.row_gradient,
            traits=partial(Traits, cost=4),
        ),
        traits=partial(Traits, cost=4),
    ),
    **{kind: _built_in(kind) for kind in BUILT_IN},
}


def functions_of(kind: str) -> TileFunctions:
    """The tile functions of a kind: built in, or derived from a user's formula."""
    known = SIMILARITIES.get(kind)
    return _of_formula(PROGRAMS[kind]) if known is None else known


@lru_cache(maxsize=1024)
def _of_formula(program: Program) -> TileFunctions:
    return _derived(lambda: program, partial(tile_function, program))


def program_of_kind(kind: str) -> Program | None:
    """The program of a formula, built in or a user's; None: it is written by hand."""
    built_in = BUILT_IN.get(kind)
    return PROGRAMS.get(kind) if built_in is None else built_in()
