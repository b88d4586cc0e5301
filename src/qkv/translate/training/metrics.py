"""How good translations are: BLEU and chrF as sacrebleu counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qkv.optional_dependencies import require


class Score(NamedTuple):
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact: float  # the share of sentences that are exactly the reference, in percent


def score(found: Sequence[str], wanted: Sequence[str], tokenize: str = "13a") -> Score:
    """Compare translations with references, one for each.

    `tokenize` is sacrebleu's: "13a" for running text, "none" for text that is tokenised already,
    "char" for languages without spaces.

    >>> score(["ein mann mit hut"], ["ein mann mit hut"], tokenize="none").chrf
    100.0
    """
    if len(found) != len(wanted):
        raise ValueError(
            f"there must be a reference for each of {len(found)} translations; got {len(wanted)}"
        )
    metrics = require("sacrebleu.metrics", "translate")
    # Text that is tokenised already is what "none" is for; the hint against it would be noise.
    bleu, chrf = metrics.BLEU(tokenize=tokenize, force=True), metrics.CHRF()
    references = [list(wanted)]
    exact = sum(a == b for a, b in zip(found, wanted, strict=True)) / max(1, len(found))
    return Score(
        bleu.corpus_score(list(found), references).score,
        str(bleu.get_signature()),
        chrf.corpus_score(list(found), references).score,
        str(chrf.get_signature()),
        100.0 * exact,
    )
