"""Scores that know positions: against loops, with gradients, in linear memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.bias import Alibi, FromFunction, Relative, T5Buckets, alibi_slopes
from qkv.operators import banded, sdpa, streamed, topk

fused_offer = import_module("qkv.operators.fused.offer")

BATCH, HEADS, N, M, D, D_V = 2, 3, 11, 13, 5, 7


def _inputs(n: int = N, m: int = M, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    sizes = ((n, D), (m, D), (m, D_V))
    return [torch.randn(BATCH, HEADS, *size, dtype=torch.float64).to(dtype) for size in sizes]


def _slopes() -> nn.Parameter:
    return nn.Parameter(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))


def _table(buckets: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(HEADS, buckets, dtype=torch.float64))


def _t5_bucket(distance: int, count: int, most: int, both_ways: bool) -> int:
    """The bucket as the paper's code finds it, one distance at a time."""
    first = 0
    if both_ways:
        count //= 2
        first, distance = (count if distance > 0 else 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    wide = exact + int(math.log(distance / exact) / math.log(most / exact) * (count - exact))
    return first + min(wide, count - 1)


class Known:
    """A bias and its formula as Python writes it, (head, i, j) -> added."""

    def __init__(
        self, name: str, make: Callable[[], tuple[Any, nn.Parameter]], formula: Callable[..., float]
    ) -> None:
        self.name, self.make, self.formula = name, make, formula


def _made(bias: Callable[[nn.Parameter], Any], parameter: Callable[[], nn.Parameter]) -> Any:
    def make() -> tuple[Any, nn.Parameter]:
        torch.manual_seed(3)
        held = parameter()
        return bias(held), held

    return make


def _ripple(held: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda i, j: held[:, None, None] * torch.sin(i.double() * 0.7 + j.double() ** 2)


BIASES = [
    Known("alibi", _made(Alibi, _slopes), lambda held, h, i, j: -held[h] * abs(i - j)),
    Known(
        "relative",
        _made(Relative, lambda: _table(9)),
        lambda held, h, i, j: held[h][max(-4, min(4, j - i)) + 4],
    ),
    Known(
        "t5",
        _made(lambda held: Relative(held, T5Buckets(8, 12)), lambda: _table(8)),
        lambda held, h, i, j: held[h][_t5_bucket(j - i, 8, 12, True)],
    ),
    Known(
        "t5-backwards",
        _made(lambda held: Relative(held, T5Buckets(8, 12, both_ways=False)), lambda: _table(8)),
        lambda held, h, i, j: held[h][_t5_bucket(j - i, 8, 12, False)],
    ),
    Known(
        "function",
        _made(_ripple, _slopes),
        lambda held, h, i, j: held[h] * math.sin(i * 0.7 + j**2),
    ),
]

every_bias = pytest.mark.parametrize("known", BIASES, ids=lambda known: known.name)


def _whole(known: Known, held: Tensor, n: int, m: int) -> Tensor:
    """All that is added, (heads, n, m), pair by pair."""
    numbers = held.detach().tolist()
    return torch.tensor(
        [
            [[known.formula(numbers, h, i + m - n, j) for j in range(m)] for i in range(n)]
            for h in range(HEADS)
        ],
        dtype=torch.float64,
    )


@pytest.fixture(autouse=True)
def _several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (streamed, sdpa, topk, fused_offer):
        monkeypatch.setattr(module, "TILE_BYTES", 1)
    monkeypatch.setattr(banded, "BLOCK", 2)


@every_bias
@pytest.mark.parametrize(("n", "m"), [(N, M), (M, N), (1, M), (N, 1)])
@pytest.mark.parametrize(
    ("operator", "similarity", "mask"),
    [
        ("dense", None, None),
        ("streamed", "laplacian", qkv.mask.Causal()),
        ("sdpa", None, None),
        ("sdpa", "cosine", qkv.mask.Causal()),
        ("sdpa", None, qkv.mask.Window(3, 2)),
        ("sdpa", None, qkv.mask.Dilated(1, 3) & qkv.mask.Causal()),
        ("sdpa", None, qkv.mask.Lengths([9, 0])),
        ("banded", None, qkv.mask.Causal() & qkv.mask.Window(20, 3)),
        ("banded", None, qkv.mask.Window(3, 2)),
        ("banded", "cosine", qkv.mask.Causal() & qkv.mask.Lengths([9, 0])),
        ("sdpa", None, qkv.mask.Blocks(4)),
        ("fused", "laplacian", None),
        ("fused", "gaussian", qkv.mask.Causal()),
        ("fused", "euclidean", qkv.mask.Lengths([9, 0])),
        ("topk", None, qkv.mask.TopK(3) & qkv.mask.Causal()),
        (None, qkv.Gated(D, D), qkv.mask.Causal() & qkv.mask.Lengths([9, 4])),
    ],
)
def test_it_is_the_tensor_of_all_that_is_added(
    known: Known, n: int, m: int, operator: str | None, similarity: Any, mask: Any
) -> None:
    """Forwards, with totals, and backwards in query, key and value."""
    bias, held = known.make()
    held.requires_grad_(False)
    if isinstance(similarity, nn.Module):
        similarity = similarity.double()
    if operator == "banded" and known.name == "function":
        with pytest.raises(ValueError, match="only a bias of the distance alone"):
            qkv.attend(*_inputs(n, m), mask=mask, bias=bias, operator=operator)
        return
    whole = _whole(known, held, n, m)
    both = whole if mask is None else mask & whole
    tensors = [x.requires_grad_() for x in _inputs(n, m)]
    options = {"similarity": similarity}
    reference = qkv.attend(*tensors, mask=both, operator="dense", **options)
    found = qkv.attend(*tensors, mask=mask, bias=bias, operator=operator, **options)
    torch.testing.assert_close(found, reference, rtol=1e-11, atol=1e-12)
    upstream = torch.randn_like(found)
    for own, other in zip(
        torch.autograd.grad(found, tensors, upstream),
        torch.autograd.grad(reference, tensors, upstream),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-11)
    plain = [x.detach() for x in tensors]
    partial = qkv.attend_partial(*plain, mask=mask, bias=bias, operator=operator, **options)
    expected = qkv.attend_partial(*plain, mask=both, operator="dense", **options)
    torch.testing.assert_close(partial.log_total, expected.log_total, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(partial.answer, expected.answer, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(
        qkv.weights(*plain[:2], mask=mask, bias=bias, rows=slice(0, 3), **options),
        qkv.weights(*plain[:2], mask=both, **options)[..., :3, :],
    )


@every_bias
@pytest.mark.parametrize(
    ("operator", "similarity", "mask"),
    [
        ("dense", None, None),
        ("streamed", None, qkv.mask.Causal()),
        ("streamed", "triangular", None),
        ("fused", "laplacian", qkv.mask.Causal()),
        ("topk", None, qkv.mask.TopK(3)),
        (None, None, qkv.mask.Causal()),
    ],
)
def test_what_it_has_learned_gets_its_gradient(
    known: Known, operator: str | None, similarity: Any, mask: Any
) -> None:
    bias, held = known.make()
    query, key, value = (0.5 * x.requires_grad_() for x in _inputs(5, 6))

    def function(held: Tensor) -> Tensor:
        return qkv.attend(
            query, key, value, similarity=similarity, mask=mask, bias=bias, operator=operator
        )

    torch.autograd.gradcheck(function, (held,), fast_mode=True)
    torch.autograd.gradgradcheck(function, (held,), fast_mode=True, atol=1e-4)
    partial = qkv.attend_partial(
        query, key, value, similarity=similarity, mask=mask, bias=bias, operator=operator
    )
    assert torch.autograd.grad(partial.log_total[partial.log_total.isfinite()].sum(), held)[0].any()


def test_a_tensor_that_is_computed_from_what_is_learned() -> None:
    """The slopes need not be a leaf, nor need the bias be made anew for each call."""
    log_slopes = torch.randn(HEADS, dtype=torch.float64, requires_grad=True)
    query, key, value = _inputs()
    found = []
    for operator in ("dense", "streamed"):
        answer = qkv.attend(query, key, value, bias=Alibi(log_slopes.exp()), operator=operator)
        found.append(torch.autograd.grad(answer.square().sum(), log_slopes)[0])
    for other in found[1:]:
        torch.testing.assert_close(found[0], other)


def test_decoding_step_by_step_is_the_whole() -> None:
    """A query stands at the end of the keys, so a decoder's step meets the bias it had at once."""
    query, key, value = _inputs(M, M)
    bias = Alibi([0.1, 0.5, 0.9])
    whole = qkv.attend(query, key, value, mask=qkv.mask.Causal(), bias=bias)
    for t in range(1, M + 1):
        step = qkv.attend(
            query[..., t - 1 : t, :], key[..., :t, :], value[..., :t, :],
            mask=qkv.mask.Causal(), bias=bias,
        )  # fmt: skip
        torch.testing.assert_close(step, whole[..., t - 1 : t, :])


def test_lengths_that_are_all_alike_move_nobody() -> None:
    """Keys that no one may see still count where queries stand."""
    query, key, value = _inputs()
    alike, apart = (
        qkv.attend(query, key, value, mask=qkv.mask.Lengths(lengths), bias=lambda i, j: 0.1 * i * j)
        for lengths in ([9, 9], [9, 8])
    )
    torch.testing.assert_close(alike[0], apart[0])


def test_partial_answers_merge_to_the_whole_where_positions_are_moved_on() -> None:
    query, key, value = _inputs(5, 12)
    alibi = Alibi([0.1, 0.5, 0.9])
    left = qkv.attend_partial(
        query, key[..., :8, :], value[..., :8, :], bias=lambda i, j: alibi(i + 4, j)
    )
    right = qkv.attend_partial(query, key[..., 8:, :], value[..., 8:, :], bias=alibi)
    whole = qkv.attend(query, key, value, bias=alibi)
    torch.testing.assert_close(left.merge(right).answer, whole)


def test_biases_add_up_and_combine_with_masks() -> None:
    query, key, value = _inputs()
    alibi, table = Alibi([0.1, 0.5, 0.9]), Relative(_table(9))
    expected = qkv.attend(
        query, key, value, mask=qkv.mask.Causal(), bias=lambda i, j: alibi(i, j) + table(i, j)
    )
    for mask, bias in (
        (qkv.mask.Causal() & alibi & table, None),
        (alibi & qkv.mask.Causal(), table),
    ):
        found = qkv.attend(query, key, value, mask=mask, bias=bias)
        torch.testing.assert_close(found, expected)
    with pytest.raises(TypeError, match="a bias is added to the scores and combines with & only"):
        qkv.mask.Causal() | alibi


def test_the_slopes_of_the_paper() -> None:
    """From the ALiBi repository's get_slopes; 12 heads take 8 and then every other one of 16."""
    assert alibi_slopes(8).tolist() == [2.0**-k for k in range(1, 9)]
    twelve = [2.0**-k for k in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(twelve, dtype=torch.float64))


@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_are_those_of_t5(both_ways: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(distance, both_ways, 32, 128)
    assert torch.equal(T5Buckets(32, 128, both_ways)(distance), theirs)


def test_swins_table_of_two_dimensions_is_a_function_of_positions() -> None:
    height, width = 3, 4
    table = nn.Parameter(torch.randn(HEADS, 2 * height - 1, 2 * width - 1, dtype=torch.float64))

    def swin(i: Tensor, j: Tensor) -> Tensor:
        return table[:, i // width - j // width + height - 1, i % width - j % width + width - 1]

    query, key, value = _inputs(height * width, height * width)
    answer = qkv.attend(query, key, value, bias=swin, operator="streamed")
    rows, columns = torch.arange(12) // width, torch.arange(12) % width
    whole = table[
        :,
        rows[:, None] - rows + height - 1,
        columns[:, None] - columns + width - 1,
    ]
    expected = torch.softmax(query @ key.mT / D**0.5 + whole, -1) @ value
    torch.testing.assert_close(answer, expected)
    torch.testing.assert_close(
        torch.autograd.grad(answer.square().sum(), table),
        torch.autograd.grad(expected.square().sum(), table),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_keep_far_distances_apart(dtype: torch.dtype) -> None:
    """−0.5 · 600 would be rounded to a multiple of 2 in bfloat16."""
    query, key, value = _inputs(5, 1201, dtype)
    bias = Alibi([0.5, 0.2, 0.01])
    exact = qkv.attend(*(x.double() for x in (query, key, value)), bias=bias, operator="dense")
    for operator in ("sdpa", "streamed"):
        found = qkv.attend(query, key, value, bias=bias, operator=operator)
        assert (found - exact).abs().max() < 20 * torch.finfo(dtype).eps


@pytest.mark.filterwarnings("default")  # the compiler's own warnings are not ours to mend
@pytest.mark.parametrize("operator", ["sdpa", "streamed", "fused"])
def test_compiles_into_one_graph(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sdpa, streamed):
        monkeypatch.setattr(module, "TILE_BYTES", 10_000)
    similarity = qkv.Laplacian() if operator == "fused" else None
    slopes = nn.Parameter(torch.tensor([0.1, 0.5, 0.9]), requires_grad=operator != "sdpa")
    bias = Alibi(slopes)
    tensors = [x.float().requires_grad_() for x in _inputs()]

    def function(*tensors: Tensor) -> Tensor:
        return qkv.attend(
            *tensors, similarity=similarity, mask=qkv.mask.Causal(), bias=bias, operator=operator
        )

    torch._dynamo.reset()
    found = torch.compile(function, fullgraph=True)(*tensors)
    reference = function(*tensors)
    torch.testing.assert_close(found, reference)
    wanted = [*tensors, *([slopes] if slopes.requires_grad else [])]
    for own, other in zip(
        torch.autograd.grad(found.square().sum(), wanted),
        torch.autograd.grad(reference.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("default")  # torch has no batching rule for its kernel, and says so
def test_works_under_vmap() -> None:
    query, key, value = _inputs()
    bias = Alibi([0.1, 0.5, 0.9])
    found = torch.func.vmap(lambda *x: qkv.attend(*x, bias=bias))(query, key, value)
    torch.testing.assert_close(found, qkv.attend(query, key, value, bias=bias))


def test_dropout_is_the_same_for_every_operator() -> None:
    query, key, value = _inputs()
    found = []
    options = {"similarity": "laplacian", "bias": Alibi([0.1, 0.5, 0.9]), "dropout": 0.4}
    for operator in ("dense", "streamed", "fused"):
        torch.manual_seed(5)
        found.append(qkv.attend(query, key, value, operator=operator, **options))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_nan_shows_where_it_is_seen_and_nowhere_else() -> None:
    query, key, value = _inputs()
    key[:, :, M - 1] = torch.nan
    answer = qkv.attend(query, key, value, mask=qkv.mask.Causal(), bias=Alibi([0.1, 0.5, 0.9]))
    assert answer[..., N - 1, :].isnan().all()
    assert answer[..., : N - 1, :].isfinite().all()


def test_recorded_weights_know_positions() -> None:
    query, key, value = _inputs()
    bias = Alibi([0.1, 0.5, 0.9])
    with qkv.record() as calls:
        qkv.attend(query, key, value, mask=qkv.mask.Causal(), bias=bias)
    expected = qkv.weights(query, key, mask=qkv.mask.Causal(), bias=bias)
    torch.testing.assert_close(calls[0].weights(), expected)
    torch.testing.assert_close(calls[0].weights(heads=1), expected[:, 1:2])


def test_plans_name_it() -> None:
    query, key, value = _inputs(64, 64, torch.float32)
    plan = qkv.explain(query, key, value, bias=Alibi([0.1, 0.5, 0.9]), mask=qkv.mask.Causal())
    assert "mask Causal(), bias Alibi(slopes (3,))" in str(plan)
    assert plan.operator == "sdpa"
    assert plan.reason.endswith("the bias is one number for each distance")
    assert plan.rejected["banded"].startswith("takes about")
    assert (
        qkv.explain(
            *(x.repeat(1, 1, 64, 1) for x in (query, key, value)),
            bias=Alibi([0.1, 0.5, 0.9]),
            mask=qkv.mask.Window(9, 0),
        ).operator
        == "banded"
    )
    half = qkv.explain(*(x.half() for x in (query, key, value)), bias=Alibi(_slopes()))
    assert "has no gradient for a bias" in half.rejected["sdpa"]
    line = [x[0, 0, :, :1] for x in (query, key, value)]
    rejected = qkv.explain(*line, similarity="gaussian", bias=lambda i, j: 0.1 * i * j).rejected
    assert rejected["sorted"] == "sums over sorted keys do not support position biases"
    rejected = qkv.explain(*line, similarity="equal", bias=lambda i, j: 0.1 * i * j).rejected
    assert rejected["lookup"] == "a hash look-up does not support biases"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: torch.zeros(3, 3), TypeError, "got Tensor; give that as mask="),
        (lambda: qkv.mask.Causal(), TypeError, "got Causal; give that as mask="),
        (lambda: 3.0, TypeError, r"\(query position, key position\) -> added scores; got float"),
        (lambda: Alibi([0.1, 0.2]), ValueError, r"slopes for heads \(2,\), which must match"),
        (lambda: Relative(torch.zeros(2, 9)), ValueError, r"a table for heads \(2,\), which must"),
        (lambda: Relative(torch.zeros(3, 8)), ValueError, "an odd number of entries .* got 8"),
        (lambda: Relative(torch.zeros(3, 0)), ValueError, r"\(..., heads, buckets\); got \(3, 0\)"),
        (
            lambda: Relative(torch.zeros(3, 9), T5Buckets(32)),
            ValueError,
            "table must have 32 entries for each head, one for each bucket; got 9",
        ),
        (lambda: Alibi(torch.ones(3, dtype=torch.int64)), TypeError, "slopes must be floating"),
        (lambda: lambda i, j: 1.0, TypeError, "bias must return a tensor; got float"),
        (
            lambda: lambda i, j: (i * j)[None, None, :3],
            ValueError,
            r"bias must return a tensor that broadcasts to \(..., n, m\) = \(2, 3, 11, 13\)",
        ),
    ],
)
def test_mistakes_get_one_clear_sentence(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        qkv.attend(*_inputs(), bias=make(), operator="dense")


def test_no_heads_are_made() -> None:
    with pytest.raises(ValueError, match="heads must be at least 1; got 0"):
        alibi_slopes(0)


@pytest.mark.skipif(not can_measure_memory(), reason="read from Linux's /proc")
@pytest.mark.parametrize("kind", ["alibi", "causal", "function", "learned", "fused"])
def test_memory_is_linear_forwards_and_backwards(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # tiles as they are
    n = 4096
    query, key, value = (torch.randn(1, 4, n, 16, requires_grad=True) for _ in range(3))
    slopes = nn.Parameter(alibi_slopes(4).float(), requires_grad=kind in ("learned", "fused"))
    bias: Any = Alibi(slopes)
    if kind == "function":
        bias = FromFunction(lambda i, j: -0.1 * (i - j).abs().float())

    def run() -> None:
        answer = qkv.attend(
            query,
            key,
            value,
            similarity="laplacian" if kind == "fused" else None,
            mask=qkv.mask.Causal() if kind == "causal" else None,
            bias=bias,
        )
        wanted = [query, key, value, *([slopes] if slopes.requires_grad else [])]
        torch.autograd.grad(answer.sum(), wanted)

    run()
    assert peak_extra_bytes(run) < 130 * 2**20  # all that is added: 256 MB, and as much again
