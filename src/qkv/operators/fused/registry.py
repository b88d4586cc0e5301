"""The similarities that have fused kernels: the tile functions of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from qkv.formula import PROGRAMS
from qkv.formula.compiled import TileFunction
from qkv.formula.program import Program
from qkv.jit import Callback
from qkv.operators.fused import additive, distance, gated

#: From so many columns on the vector lanes run along them where keys are rows.
WIDE = 16
#: For fewer queries than this, keys are not turned into columns …
FEW = 4
#: … nor where they are so few that a loop along them is over before it is up to speed.
SHORT = 32


@dataclass(frozen=True)
class TileFunctions:
    """What the drivers call; see :class:`~qkv.operators.fused.inputs.Functions`.

    `scores` and `gradient` take keys that are columns, the others keys that are rows.
    """

    scores: Callback
    row_scores: Callback
    row_gradient: Callback
    gradient: Callback | None = None  # where rows serve tokens of any size, there is none
    transform: Callback | None = None
    #: Where the gradient needs more than the scores: scores that leave it behind them in `parts`
    #: blocks of lines, so that none are kept from the forward pass.
    kept_scores: Callback | None = None
    parts: int = 1
    proportional: bool = False
    short_rows: bool = True  # whether rows are the better choice where keys are few
    cost: int = 1  # of a column of a pair, in multiply-adds

    def depth(self, d: int) -> int:
        """The columns of a packed query or key of d columns."""
        return d if self.transform is None else 2 * d

    def scores_rows(self, n: int, m: int, d: int) -> bool:
        """Whether the scores of n queries and m keys of d columns are made of keys as rows."""
        return d >= WIDE and (n < FEW or (m <= SHORT and self.short_rows))

    def differentiates_rows(self, d: int) -> bool:
        return self.gradient is None or d >= WIDE

    def callbacks(self) -> list[Callback]:
        every = (
            self.transform, self.scores, self.row_scores, self.kept_scores, self.gradient,
            self.row_gradient,
        )  # fmt: skip
        return [each for each in every if each is not None]


def _distance(kind: str, proportional: bool = False) -> TileFunctions:
    value, slope = getattr(distance, f"{kind}_value"), getattr(distance, f"{kind}_slope")
    functions = distance.tile_functions(kind, value, slope)
    return TileFunctions(**functions._asdict(), proportional=proportional)


SIMILARITIES: dict[str, TileFunctions] = {
    "additive": TileFunctions(
        additive.scores,
        additive.row_scores,
        additive.row_gradient,
        transform=additive.transform,
        cost=4,
    ),
    "gated": TileFunctions(gated.scores, gated.row_scores, gated.row_gradient, short_rows=False),
    "gaussian": _distance("gaussian"),
    "euclidean": _distance("euclidean"),
    "laplacian": _distance("laplacian"),
    "boxcar": _distance("boxcar", proportional=True),
    "triangular": _distance("triangular", proportional=True),
    "epanechnikov": _distance("epanechnikov", proportional=True),
    "biweight": _distance("biweight", proportional=True),
    "tricube": _distance("tricube", proportional=True),
}


def functions_of(kind: str) -> TileFunctions:
    """The tile functions of a kind: one of the above, or those of a formula's program."""
    known = SIMILARITIES.get(kind)
    return _derived(PROGRAMS[kind]) if known is None else known


@lru_cache(maxsize=1024)
def _derived(program: Program) -> TileFunctions:
    return TileFunctions(
        scores=TileFunction(program, "scores"),
        row_scores=TileFunction(program, "row_scores"),
        row_gradient=TileFunction(program, "row_gradient"),
        gradient=TileFunction(program, "gradient"),
        kept_scores=TileFunction(program, "kept_scores"),
        parts=program.parts,
        proportional=program.proportional,
        cost=program.cost,
    )
