"""Estimated times, what they are read from, and what is kept for each signature."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import qkv
from qkv import cost, problem
from qkv.benchmarks.crossover import Trial, fit
from qkv.cost import LINES, Line, Work
from qkv.operators import sdpa
from qkv.problem import validate


def _posed(n: int, m: int, d: int = 8, batch: int = 3, grad: bool = False) -> problem.Problem:
    query = torch.randn(batch, n, d, requires_grad=grad)
    return validate(query, torch.randn(batch, m, d), torch.randn(batch, m, 5), None, None)


def test_a_line_prices_every_amount() -> None:
    work = cost.work(_posed(7, 11))
    assert work == Work(1, 3 * 7, 3 * 18 * 13, 3 * 77, 3 * 77 * 13, 0)
    assert (
        Line(2.0, 3.0, 5.0, 7.0, 11.0, 13.0).seconds(Work(1, 2, 3, 4, 5, 6))
        == 2 + 6 + 15 + 28 + 55 + 78
    )


def test_directions_and_shares_have_prices_of_their_own() -> None:
    forward, both = _posed(100, 100), _posed(100, 100, grad=True)
    assert cost.seconds(both, "dense") > cost.seconds(forward, "dense")
    assert cost.seconds(forward, "sdpa", share=0.5) < cost.seconds(forward, "sdpa")
    assert cost.seconds(forward, "sorted") == math.inf, "dot products cannot be sorted"


def test_fewer_threads_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    posed = _posed(500, 500)
    monkeypatch.setattr(torch, "get_num_threads", lambda: cost.THREADS)
    usual = cost.seconds(posed, "dense")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert cost.seconds(posed, "dense") > 1.5 * usual


def test_pytorchs_kernel_leaves_threads_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares out blocks of queries forwards, and entries of the batch on the way back."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [cost.idle(units) for units in (1, 2, 3, 8)] == [2, 1, pytest.approx(4 / 3), 1]
    assert sdpa.share(_posed(10, 500, batch=1)) == 2
    assert sdpa.share(_posed(1000, 500, batch=1)) == 1
    assert sdpa.share(_posed(1000, 500, batch=1, grad=True)) == pytest.approx((1 + 2 * 2) / 3)
    assert sdpa.share(_posed(1000, 500, batch=2, grad=True)) == 1


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "costs.json"
    monkeypatch.setenv("QKV_COSTS", str(path))
    monkeypatch.setattr(problem, "_CHECKED", {})
    cost._lines.cache_clear()
    yield path
    cost._lines.cache_clear()


def test_a_machine_may_have_costs_of_its_own(costs: Path) -> None:
    query = torch.randn(16, 8)
    costs.write_text(cost.as_json({"sdpa/dot/forward": Line(1.0)}, 2))
    assert qkv.explain(query, query, query).operator == "dense"
    assert "takes about 1 s, dense" in qkv.explain(query, query, query).rejected["sdpa"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "Expecting property name"),
        ("[]", "holds something else"),
        ('{"threads": 2, "lines": {"dense/dot/forward": {"cal": 1}}}', "holds something else"),
        ('{"threads": 0, "lines": {}}', "was measured with 0 threads"),
        (
            '{"threads": 2, "lines": {"dense/dot/forward": {"call": -1.0}}}',
            "holds -1.0 where seconds are wanted",
        ),
        (
            '{"threads": 2, "lines": {"abacus/dot/forward": {"call": 1.0}}}',
            "prices 'abacus/dot/forward', which is no kind of work",
        ),
    ],
)
def test_what_costs_are_not(costs: Path, text: str | None, reason: str) -> None:
    if text is not None:
        costs.write_text(text)
    query = torch.randn(4, 8)
    with pytest.raises(ValueError, match=f"QKV_COSTS must name a file .*{reason}"):
        qkv.attend(query, query, query)


def test_costs_are_written_as_they_are_read(costs: Path) -> None:
    costs.write_text(cost.as_json(LINES, 3))
    assert json.loads(costs.read_text())["threads"] == 3
    assert cost._lines() == (LINES, 3)


def test_a_fit_finds_the_line_that_made_the_times() -> None:
    true = Line(1e-4, 2e-9, 3e-9, 4e-9, 5e-11)
    trials = []
    for n, m, d in [
        (3, 5, 7),
        (50, 3, 64),
        (700, 11, 2),
        (9, 900, 32),
        (300, 200, 90),
        (64, 64, 5),
    ]:
        work = cost.work(_posed(n, m, d, batch=17))
        trials.append(Trial("", "dot/forward", {}, (), work, "sdpa", {"sdpa": true.seconds(work)}))
    found = fit(trials)["sdpa/dot/forward"]
    for trial in trials:
        assert found.seconds(trial.work) == pytest.approx(trial.seconds["sdpa"], rel=0.03)


def test_what_a_mask_adds_is_fitted_to_what_is_left() -> None:
    plain, mask = cost.Line(1e-5, pair=2e-9), cost.Line(7e-5, pair=3e-10)
    trials = []
    for place in range(40):
        amounts = (1.0, 3.0 * place, 5.0 * place, 1e3 * 1.3**place, 7e3 * 1.2**place, 0.0)
        work = cost.Work(*amounts)
        alone = plain.seconds(work)
        masked = plain.seconds(work._replace(pairs=0.5 * work.pairs))
        masked += mask.seconds(cost.Work(1.0, 0.0, 0.0, 0.5 * work.pairs, 0.0, 0.0))
        trials.append(Trial("", "additive/forward", {}, (), work, "fused", {"fused": alone}))
        half, masks = {"fused": 0.5}, ("fused",)
        trials.append(Trial("", "additive/forward", half, masks, work, "fused", {"fused": masked}))
    found = fit(trials)["mask/fused/forward"]
    assert found.call == pytest.approx(mask.call, rel=0.1)
    assert found.pair == pytest.approx(mask.pair, rel=0.1)


def test_what_was_checked_once_is_known_by_its_signature() -> None:
    first, again = _posed(7, 11), _posed(7, 11)
    assert first.checked is not None
    assert first.checked is again.checked
    for other in (_posed(7, 12), _posed(7, 11, grad=True), _posed(7, 11, d=9)):
        assert other.checked is not first.checked


def test_a_signature_knows_what_a_parameter_wants() -> None:
    similarity, query = qkv.Bilinear(8, 8), torch.randn(5, 8)
    before = validate(query, query, query, similarity, None).checked
    similarity.weight.requires_grad_(False)
    assert validate(query, query, query, similarity, None).checked is not before
    similarity.double()
    with pytest.raises(RuntimeError, match="dtype"):
        qkv.attend(query, query, query, similarity=similarity)


def test_signatures_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "MOST_CHECKED", 4)
    for n in range(1, 12):
        query = torch.randn(n, 8)
        qkv.attend(query, query, query)
        assert len(problem._CHECKED) <= 4


def test_a_class_of_someone_elses_is_checked_every_time() -> None:
    class Own(qkv.Dot):
        def check(self, query: torch.Tensor, key: torch.Tensor) -> None:
            if self.closed:
                raise ValueError("closed")

    own, query = Own(), torch.randn(3, 8)
    own.closed = False
    qkv.attend(query, query, query, similarity=own)
    own.closed = True
    with pytest.raises(ValueError, match="closed"):
        qkv.attend(query, query, query, similarity=own)
