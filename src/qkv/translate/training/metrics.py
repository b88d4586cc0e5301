"""The quality of translations: BLEU and chrF by sacrebleu."""

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


def score(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Compare translations with references, one for each.

    `tokenize` is sacrebleu's: "13a" for running text, "none" for text that is tokenised already,
    "char" for languages without spaces.

    >>> score(["ein mann mit hut"], ["ein mann mit hut"], tokenize="none").chrf
    100.0
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"there must be a reference for each of {len(hypotheses)} translations; "
            f"got {len(references)}"
        )
    metrics = require("sacrebleu.metrics", "translate")
    # force=True: "none" is meant for tokenised text, against which sacrebleu would warn.
    bleu, chrf = metrics.BLEU(tokenize=tokenize, force=True), metrics.CHRF()
    streams = [list(references)]  # one reference for each sentence
    matches = sum(a == b for a, b in zip(hypotheses, references, strict=True))
    return Score(
        bleu.corpus_score(list(hypotheses), streams).score,
        str(bleu.get_signature()),
        chrf.corpus_score(list(hypotheses), streams).score,
        str(chrf.get_signature()),
        100.0 * matches / max(1, len(hypotheses)),
    )
