"""Typed formulas: a grammar of our own, and torch operations from a safe list."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.explore.formula import SAFE, parse

Q = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.7, -1.1]], dtype=torch.float64)
K = torch.tensor([[0.2, 1.0, -0.4], [1.5, 0.1, 0.9], [-0.6, 0.8, 0.3]], dtype=torch.float64)


def dot(q: list[float], k: list[float]) -> float:
    return sum(a * b for a, b in zip(q, k, strict=True))


ORACLES = {
    "dot(q, k) / sqrt(d)": lambda q, k: dot(q, k) / math.sqrt(3),
    "-norm(q - k)": lambda q, k: -math.dist(q, k),
    "-sum(abs(q - k))": lambda q, k: -sum(abs(a - b) for a, b in zip(q, k, strict=True)),
    "exp(-norm(q - k)^2 / 2)": lambda q, k: math.exp(-(math.dist(q, k) ** 2) / 2),
    "2 - 3 - 4": lambda q, k: -5.0,
    "2 ^ 3 ^ 2": lambda q, k: 512.0,
    "-2 ^ 2": lambda q, k: -4.0,
    "8 / 4 / 2": lambda q, k: 1.0,
    "2 + 3 * 4": lambda q, k: 14.0,
    "sum(q * dot(q, k) + 1)": lambda q, k: sum(a * dot(q, k) + 1 for a in q),
    "max(q - k) - min(k) + mean(q)": lambda q, k: (
        max(a - b for a, b in zip(q, k, strict=True)) - min(k) + sum(q) / 3
    ),
    "sum(tanh(q) * sigmoid(k))": lambda q, k: sum(
        math.tanh(a) / (1 + math.exp(-b)) for a, b in zip(q, k, strict=True)
    ),
    "sum(relu(q) + sin(k) * cos(k)) + log(2)": lambda q, k: (
        sum(max(0, a) + math.sin(b) * math.cos(b) for a, b in zip(q, k, strict=True)) + math.log(2)
    ),
    "1.5e1": lambda q, k: 15.0,
}


@pytest.mark.parametrize("text", ORACLES)
def test_a_formula_is_what_it_says(text: str) -> None:
    wanted = torch.tensor(
        [[ORACLES[text](q, k) for k in K.tolist()] for q in Q.tolist()], dtype=torch.float64
    )
    formula = parse(text)
    torch.testing.assert_close(formula(Q, K), wanted)
    names: dict[str, object] = {"torch": torch}
    exec("\n".join(formula.as_python()), names)
    torch.testing.assert_close(names["similarity"](Q, K), wanted, check_dtype=False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a formula must not be empty; -norm(q - k) is one"),
        ("q - k", "a formula must give one number for a pair, and this gives a vector"),
        ("__import__", "a formula knows q, k, d and dot, sum"),
        ("q.data", "a formula cannot hold '.'"),
        ("'x'", 'a formula cannot hold "\'"'),
        ("eval(1)", "got 'eval'"),
        ("dot(q)", "dot takes 2; got 1 values"),
        ("norm(2)", "norm takes vectors, such as q and k; got a number"),
        ("dot(q, k", "the formula should have ')' where it has the end"),
        ("dot(q, k) 2", "the formula should end before '2'"),
        ("2 +", "the formula ends where a value is expected"),
        ("* 2", "the formula has '*' where a value is expected"),
        ("(" * 100 + "1" + ")" * 100, "a formula may have 200 characters; got 201"),
        ("(" * 60 + "1" + ")" * 60, "a formula may be nested 40 deep; this is more"),
        ("-" * 150 + "1", "a formula may be nested 40 deep; this is more"),
    ],
)
def test_mistakes_are_told(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the text is compared below
        parse(text)
    assert sentence in str(raised.value)


pieces = st.sampled_from(["q", "k", "d", "(", ")", "+", "-", "*", "/", "^", ",", "2", ".5", *SAFE])


@given(st.lists(pieces, max_size=14).map(" ".join) | st.text(max_size=40))
def test_any_text_is_a_formula_or_one_sentence(text: str) -> None:
    try:
        formula = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert formula(Q, K).shape == (2, 3)
