"""Sources of training pairs, and the split into training and validation."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.translate.data import dates
from qkv.translate.data.text import Corpus, Form, Pair, SkippedLines, read_pairs, read_parallel

#: Of pairs that come without others to validate on, this share is held out, and no more than so
#: many sentences.
_SHARE, _MOST = 0.01, 1000

_DEMO_PAIRS, _DEMO_VALID = 15_000, 1000


@dataclass(frozen=True)
class Sources:
    """The files that a training reads: two parallel ones, or one of pairs, or a demonstration."""

    source: str | None = None
    target: str | None = None
    valid_source: str | None = None
    valid_target: str | None = None
    pairs: str | None = None
    valid_pairs: str | None = None
    demo: str | None = None
    normalization: Form = "nfc"

    def __post_init__(self) -> None:
        for one, other in (("source", "target"), ("valid_source", "valid_target")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(f"{one} and {other} must be given together")
        given = [name for name in ("source", "pairs", "demo") if getattr(self, name) is not None]
        if len(given) != 1:
            came = " and ".join(given) or "none"
            raise ValueError(
                f"training needs source and target, or pairs, or demo, and one of them; got {came}"
            )
        if self.demo not in (None, "dates"):
            raise ValueError(f"demo must be dates; got {self.demo!r}")

    def load(self) -> tuple[Corpus, list[Pair]]:
        """The training and the validation pairs."""
        if self.demo is not None:
            return dates.pairs(_DEMO_PAIRS, seed=1), dates.pairs(_DEMO_VALID, 2, True).pairs
        training = self._read(self.source, self.target, self.pairs)
        if self.valid_source is None and self.valid_pairs is None:
            return held_out(training)
        valid = self._read(self.valid_source, self.valid_target, self.valid_pairs)
        return training, valid.pairs

    def _read(self, source: str | None, target: str | None, pairs: str | None) -> Corpus:
        if source is not None and target is not None:
            return read_parallel(Path(source), Path(target), self.normalization)
        assert pairs is not None
        return read_pairs(Path(pairs), self.normalization)

    def to_json(self) -> dict[str, Any]:
        """All that is given, files by their full paths."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {
            name: value if name in ("demo", "normalization") else str(Path(value).resolve())
            for name, value in given.items()
        }


def held_out(
    corpus: Corpus, share: float = _SHARE, most: int = _MOST, seed: int = 1
) -> tuple[Corpus, list[Pair]]:
    """Split pairs by distinct source sentence: none occurs in both parts."""
    distinct = sorted({pair.source for pair in corpus.pairs})
    count = min(most, max(1, round(share * len(distinct))))
    if len(distinct) < 2:
        raise ValueError("pairs must hold two distinct source sentences, one to validate on; got 1")
    chosen = set(random.Random(seed).sample(distinct, count))
    remaining = [i for i, pair in enumerate(corpus.pairs) if pair.source not in chosen]
    training = Corpus(
        [corpus.pairs[i] for i in remaining],
        [corpus.lines[i] for i in remaining],
        SkippedLines({reason: list(lines) for reason, lines in corpus.skipped.lines.items()}),
    )
    return training, [pair for pair in corpus.pairs if pair.source in chosen]
