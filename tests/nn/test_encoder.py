from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv.nn import Embedding, Encoder, EncoderLayer, Learned, Rotary, Sinusoidal

BATCH, N, HEADS, HEAD, FF, WORDS = 2, 7, 3, 4, 23, 29
D = HEADS * HEAD


def encoder_of(positions: nn.Module | None = None, **options: Any) -> Encoder:
    layers = [EncoderLayer(D, HEADS, FF, dropout=0.0, **options) for _ in range(2)]
    return Encoder(Embedding(WORDS, D, positions), layers).double()


def tokens() -> Tensor:
    return torch.randint(WORDS, (BATCH, N))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_the_state_of_torchs_layer_loads_and_answers_agree(
    norm: Any, activation: Any, bias: bool, training: bool
) -> None:
    theirs = nn.TransformerEncoderLayer(
        D,
        HEADS,
        FF,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm == "pre",
        bias=bias,
        dtype=torch.float64,
    ).train(training)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = EncoderLayer(
        D, HEADS, FF, norm=norm, activation=activation, dropout=0.0, bias=bias, dtype=torch.float64
    ).train(training)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(BATCH, N, D, dtype=torch.float64)
    lengths = torch.tensor([N, 4])
    padding = torch.arange(N) >= lengths[:, None]
    expected = theirs(x, src_key_padding_mask=padding)
    got = ours(x, qkv.mask.Lengths(lengths))
    torch.testing.assert_close(got[~padding], expected[~padding], rtol=0, atol=1e-11)
    causal = torch.ones(N, N, dtype=torch.bool).triu(1)
    torch.testing.assert_close(
        ours(x, qkv.mask.Causal()), theirs(x, src_mask=causal), rtol=0, atol=1e-11
    )


def test_without_positions_an_encoder_knows_no_order_and_with_them_it_does() -> None:
    order = torch.randperm(N)
    x = tokens()
    blind = encoder_of()
    torch.testing.assert_close(blind(x[:, order]), blind(x)[:, order])
    for sighted in (
        encoder_of(Sinusoidal()),
        encoder_of(Learned(N, D)),
        encoder_of(rotary=Rotary()),
    ):
        assert not torch.allclose(sighted(x[:, order]), sighted(x)[:, order])


@pytest.mark.parametrize("similarity", [None, "gaussian", qkv.Additive], ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_padded_batch_is_as_good_as_each_sentence_alone(similarity: Any, norm: Any) -> None:
    encoder, x = encoder_of(Sinusoidal(), similarity=similarity, norm=norm), tokens()
    lengths = [N, 4]
    together = encoder(x, qkv.mask.Lengths(lengths))
    for entry, length in enumerate(lengths):
        alone = encoder(x[entry : entry + 1, :length])
        torch.testing.assert_close(together[entry, :length], alone[0])


def test_a_causal_encoder_does_not_see_what_comes_later() -> None:
    encoder, x = encoder_of(Learned(N, D)), tokens()
    changed = x.clone()
    changed[:, 4] = (x[:, 4] + 1) % WORDS
    before, after = (encoder(each, qkv.mask.Causal()) for each in (x, changed))
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=0)
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_sinusoidal_positions_are_those_of_the_formula() -> None:
    x = torch.zeros(3, 5, dtype=torch.float64)
    got = Sinusoidal()(x, start=2)
    for i in range(3):
        for j in range(5):
            angle = torch.tensor((i + 2) / 10000 ** ((j - j % 2) / 5), dtype=torch.float64)
            expected = angle.cos() if j % 2 else angle.sin()
            torch.testing.assert_close(got[i, j], expected)


def test_weights_are_those_that_the_layers_use() -> None:
    encoder, x = encoder_of(Sinusoidal(), norm="pre"), tokens()
    seen: list[Tensor] = []
    for layer in encoder.layers:
        layer.register_forward_pre_hook(lambda layer, inputs: seen.append(layer.weights(*inputs)))
    encoder(x, qkv.mask.Causal())
    found = encoder.weights(x, qkv.mask.Causal())
    assert [weights.shape for weights in found] == [(BATCH, HEADS, N, N)] * 2
    # Layers are asked once more by `weights` itself.
    for weights, used in zip(found, seen[:2], strict=True):
        torch.testing.assert_close(weights, used)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_segments() -> None:
    embedding = Embedding(WORDS, D, segments=2)
    x = tokens()
    torch.testing.assert_close(embedding(x), embedding(x, torch.zeros_like(x)))
    assert not torch.allclose(embedding(x), embedding(x, torch.ones_like(x)))
    with pytest.raises(ValueError, match=r"segments were given to an Embedding made without"):
        Embedding(WORDS, D)(x, torch.ones_like(x))


def test_compiled_it_is_one_graph_and_the_same() -> None:
    torch.compiler.reset()
    encoder, x = encoder_of(Learned(N, D), rotary=Rotary()), tokens()
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, qkv.mask.Causal()), encoder(x, qkv.mask.Causal()))


def test_deferred_initialisation_and_copies() -> None:
    layer = EncoderLayer(D, HEADS, FF, device="meta", similarity=qkv.Additive)
    assert all(parameter.is_meta for parameter in layer.parameters())
    layer = copy.deepcopy(layer.to_empty(device="cpu"))
    for parameter in layer.parameters():
        nn.init.constant_(parameter, torch.nan)
    layer.reset_parameters()
    assert layer(torch.randn(BATCH, N, D)).isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EncoderLayer(D, HEADS, FF, norm="before"), r"norm must be 'pre' or 'post'; got"),  # type: ignore[arg-type]
        (
            lambda: EncoderLayer(D, HEADS, FF, activation="tanhh"),  # type: ignore[arg-type]
            r"activation must be 'relu' or 'gelu' or a callable; got 'tanhh'",
        ),
        (lambda: Encoder(None, []), r"layers must hold at least one layer; got none"),
        (lambda: encoder_of()(tokens(), caches=[]), r"caches must be one for each of the 2 layers"),
        (
            lambda: Learned(5, D)(torch.zeros(N, D)),
            r"x must end at position 5 at the latest, the number of positions learned; got 7",
        ),
    ],
)
def test_mistakes_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_vectors_are_no_tokens() -> None:
    with pytest.raises(TypeError, match=r"x must be tokens, whole numbers, for the embedding"):
        encoder_of()(torch.randn(BATCH, N))
    vectors = torch.randn(BATCH, N, D)
    assert Encoder(None, [EncoderLayer(D, HEADS, FF)])(vectors).shape == (BATCH, N, D)
