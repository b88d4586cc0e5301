"""Scores as sacrebleu counts them."""

from __future__ import annotations

import pytest
import sacrebleu

from qkv.translate import score


def test_scores_are_sacrebleus_with_their_signatures() -> None:
    found = ["ein mann mit hut .", "zwei hunde spielen im schnee ."]
    wanted = ["ein mann mit einem hut .", "zwei hunde spielen im schnee ."]
    result = score(found, wanted, tokenize="none")
    bleu = sacrebleu.corpus_bleu(found, [wanted], tokenize="none", force=True)
    assert result.bleu == bleu.score
    assert "tok:none" in result.bleu_signature
    assert f"version:{sacrebleu.__version__}" in result.bleu_signature
    assert result.chrf == sacrebleu.corpus_chrf(found, [wanted]).score
    assert result.chrf_signature.startswith("nrefs:1|case:mixed")
    assert result.exact == 50.0


def test_as_many_references_as_translations() -> None:
    with pytest.raises(ValueError, match=r"^there must be a reference for each of 1 translations"):
        score(["a"], [])
