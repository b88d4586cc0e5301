"""Random formulas: their kernels agree with them, and keep the rules of the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import test_conformance as conformance
import torch
from cases import MASKS, Case, D, MaskCase
from formulas import Formula, assert_agree, draw_tokens, formulas
from hypothesis import given, settings
from hypothesis import strategies as st
from operators import fused_serves


@settings(max_examples=15, deadline=None)
@given(formulas(), st.sampled_from([1, 3, 18]), st.sampled_from([2, 9]))
def test_random_formulas(make: Callable[..., Formula], d: int, n: int) -> None:
    """Values, totals, and gradients of tokens, of a vector and of a number for each head."""
    vector = torch.linspace(0.4, 1.3, d, dtype=torch.float64, requires_grad=True)
    heads = torch.tensor([0.7, 1.1], dtype=torch.float64).view(2, 1, 1).requires_grad_()
    formula = make(vector, 2.5, heads)
    assert_agree(formula, draw_tokens(n, 37, d, 2), [vector, heads])


@st.composite
def random_cases(draw: st.DrawFn) -> Case:
    """A random formula as a case of the conformance suite; its oracle asks it for a pair alone."""
    vector = torch.linspace(0.4, 1.3, D, dtype=torch.float64)
    formula = draw(formulas())(vector, 2.5, 0.8)

    def score(query: Sequence[float], key: Sequence[float]) -> float:
        pair = (torch.tensor([x], dtype=torch.float64) for x in (query, key))
        return formula(*pair).item()

    return Case("callable", lambda: formula, lambda _: score)


FUSED_MASKS = [case for case in MASKS if fused_serves(Case("callable", None, None), case)]  # type: ignore[arg-type]
RULES = [
    conformance.test_the_answer_equals_the_oracle,
    conformance.test_totals_and_weights_equal_the_oracle,
    conformance.test_more_queries_than_keys_are_aligned_to_the_end,
    conformance.test_a_masked_key_has_no_influence,
    conformance.test_dropout_is_the_same_for_every_operator,
    conformance.test_weights_form_a_convex_combination,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removeprefix("test_"))
@settings(max_examples=5, deadline=None)
@given(case=random_cases(), mask_case=st.sampled_from(FUSED_MASKS))
def test_random_formulas_keep_the_rules_under_masks(
    rule: Callable[..., None], case: Case, mask_case: MaskCase
) -> None:
    rule("fused", case, mask_case)


UNMASKED_RULES = [
    conformance.test_the_order_of_keys_does_not_matter,
    conformance.test_batch_entries_are_independent,
    conformance.test_leading_axes_broadcast,
    conformance.test_strides_do_not_matter,
]


@pytest.mark.parametrize(
    "rule", UNMASKED_RULES, ids=lambda rule: rule.__name__.removeprefix("test_")
)
@settings(max_examples=4, deadline=None)
@given(random_cases())
def test_random_formulas_keep_the_rules(rule: Callable[..., None], case: Case) -> None:
    rule("fused", case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@settings(max_examples=4, deadline=None)
@given(random_cases(), st.sampled_from(conformance.FEW_MASKS))
def test_random_formulas_are_as_exact_as_a_naive_computation(
    dtype: torch.dtype, case: Case, mask_case: MaskCase
) -> None:
    conformance.test_error_is_at_most_twice_that_of_a_naive_computation(
        "fused", case, mask_case, dtype
    )
