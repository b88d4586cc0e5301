from __future__ import annotations

from typing import Any

import pytest
import torch

import qkv
from qkv.integrations import lazy_mask
from qkv.integrations.lazy_mask import LazyMask, make_mask
from qkv.integrations.transformers import register
from qkv.mask import Tile

transformers = pytest.importorskip("transformers", reason="pip install transformers")

from transformers import masking_utils as source  # noqa: E402

BATCH, N = 3, 29


def tensor(mask: LazyMask) -> torch.Tensor:
    """What the mask says, as attention hears it."""
    batch, _, n, _ = mask.shape
    tile = Tile(0, n, n, mask.keys, (batch, 1), torch.device("cpu"))
    return mask.mask.allowed(tile).expand(batch, 1, n, mask.keys)


@pytest.mark.parametrize(
    ("function", "padded"),
    [
        (source.causal_mask_function, True),
        (source.causal_mask_function, False),
        (source.bidirectional_mask_function, True),
        (source.sliding_window_causal_mask_function(5), True),
        (source.sliding_window_causal_mask_function(5), False),
        (source.sliding_window_bidirectional_mask_function(3), True),
        (source.or_masks(source.causal_mask_function, lambda b, h, q, k: k < 3 + b), True),
    ],
)
@pytest.mark.parametrize("past", [0, 11])
def test_what_is_told_is_what_transformers_would_make(
    function: Any, padded: bool, past: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_mask, "MOST_MADE", 0)
    lengths = torch.tensor([[past + N], [past + 7], [past + 13]])
    kept = torch.arange(past + N) < lengths
    asked: dict[str, Any] = {
        "batch_size": BATCH, "q_length": N, "kv_length": past + N, "q_offset": past,
        "mask_function": function, "attention_mask": kept if padded else None,
    }  # fmt: skip
    made = make_mask(**asked)
    assert isinstance(made, LazyMask)
    expected = source.sdpa_mask(**asked, allow_is_causal_skip=False)
    assert expected is not None
    assert torch.equal(tensor(made), expected)
    # Who looks at it sees the tensor, whatever the way.
    assert torch.equal(made[:, :, 3:, :-2], expected[:, :, 3:, :-2])
    assert torch.equal(made.logical_not(), ~expected)
    assert torch.equal(torch.where(made, 0.0, -1.0), torch.where(expected, 0.0, -1.0))
    assert (made.shape, made.dtype) == (expected.shape, torch.bool)


def test_packed_sentences_are_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_mask, "MOST_MADE", 0)
    ids = torch.arange(5).repeat_interleave(torch.tensor([3, 11, 1, 9, 5])).expand(BATCH, N)
    packed = source.and_masks(
        source.causal_mask_function, source.packed_sequence_mask_function(ids)
    )
    made = make_mask(BATCH, N, N, mask_function=packed, allow_is_causal_skip=False)
    assert isinstance(made, LazyMask)
    assert torch.equal(tensor(made), made.made())
    assert made.mask.as_runs(Tile(0, N, N, N, (BATCH, 1), torch.device("cpu"))) is not None


def test_position_ids_pack_sentences_into_one_batch_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    from integrations import families

    monkeypatch.setattr(lazy_mask, "MOST_MADE", 0)
    register()
    eager, own = (families._model("llama", name) for name in ("eager", "qkv"))
    own.load_state_dict(eager.state_dict())
    tokens = torch.randint(3, 60, (1, 17))
    positions = torch.cat([torch.arange(n) for n in (5, 9, 3)]).unsqueeze(0)
    with torch.no_grad():
        whole = own(tokens, position_ids=positions, use_cache=False).logits
        parts = [eager(part).logits for part in tokens.split([5, 9, 3], dim=1)]
    torch.testing.assert_close(whole, torch.cat(parts, dim=1), rtol=0, atol=1e-5)


def test_a_causal_mask_is_never_left_to_the_layer() -> None:
    made = make_mask(BATCH, N, N, mask_function=source.causal_mask_function)
    assert isinstance(made, LazyMask)
    assert isinstance(made.mask, qkv.mask.Causal)
    assert repr(made) == "LazyMask(Causal(), (3, 1, 29, 29))"


def test_an_empty_cache_of_fixed_size_is_filled_from_its_start() -> None:
    kept = torch.arange(N + 13).expand(BATCH, -1) < N
    made = make_mask(BATCH, N, N + 13, attention_mask=kept)
    assert isinstance(made, LazyMask)
    assert made.keys == N


def test_nothing_to_say_is_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    function = source.bidirectional_mask_function
    options: dict[str, Any] = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
    for most in (0, 2**20):
        monkeypatch.setattr(lazy_mask, "MOST_MADE", most)
        assert make_mask(BATCH, N, N, mask_function=function, **options) is None
    assert make_mask(BATCH, 1, N, q_offset=N - 1) is None  # the last query sees every key


def test_a_small_mask_is_made_at_once() -> None:
    made = make_mask(BATCH, N, N, mask_function=lambda b, h, q, k: (k <= q) | (k < 3),
                     allow_is_causal_skip=False)  # fmt: skip
    assert type(made) is torch.Tensor
