"""Attention over ranks: the answers and gradients of one process, for every split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from cluster import shard_cases as cases
from cluster import torch_context
from cluster.team import Team

import qkv
from qkv.benchmarks.measure import can_measure_memory

LAYOUTS = ["replicated", "ring", "zigzag"]


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("similarity", cases.similarities())
def test_every_similarity_under_every_mask(team: Team, similarity: str, layout: str) -> None:
    """Two, three and four ranks, even and uneven shards, in turns: each similarity begins
    elsewhere, so all meet all."""
    first = [*cases.similarities()].index(similarity)
    for place, mask in enumerate(cases.masks(7), first):
        split = "uneven" if place % 2 else "even"
        team.run(2 + place % 3, cases.same_as_one_process, layout, similarity, mask, split)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_dropout_is_that_of_one_process(team: Team, layout: str, ranks: int) -> None:
    team.run(ranks, cases.same_as_one_process, layout, "additive", "causal", "even", 0.4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_biases_by_position(team: Team, layout: str) -> None:
    team.run(3, cases.biased, layout)


@pytest.mark.parametrize("layout", ["ring", "zigzag"])
@pytest.mark.parametrize("n", [0, 3, 8, 17])
def test_shards_make_the_whole_again(team: Team, layout: str, n: int) -> None:
    team.run(4, cases.round_trip, layout, n)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_bytes_are_those_of_the_plan(team: Team, layout: str, ranks: int) -> None:
    every = team.run(ranks, cases.counted, layout)
    sent, back, received = every[0][:3]
    assert [forwards for *_, forwards, _ in every] == sent
    assert [backwards for *_, backwards in every] == back
    assert sum(sent) == sum(received)


@pytest.mark.skipif(not can_measure_memory(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_memory_is_that_of_the_plan(team: Team, layout: str, ranks: int) -> None:
    for planned, measured in team.run(ranks, cases.measured, layout):
        assert 0.9 * planned < measured < planned + 48 * 2**20  # which tiles of scores may take


@pytest.mark.parametrize("layout", ["ring", "zigzag"])
@pytest.mark.parametrize("similarity", [None, qkv.Additive])
def test_layers_learn_as_on_one_process(team: Team, layout: str, similarity: object) -> None:
    team.run(2, cases.layer, layout, similarity)


def test_layers_of_sharded_parameters_learn_as_on_one_process(team: Team) -> None:
    team.run(2, cases.fully_sharded, "zigzag")


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("similarity", [None, qkv.Additive])
def test_caches_are_shared_out(team: Team, similarity: object, kv_heads: int) -> None:
    team.run(4, cases.decoding, similarity, kv_heads)


@pytest.mark.parametrize("ranks", [2, 4])
def test_pytorchs_context_parallel_says_the_same(team: Team, ranks: int) -> None:
    team.run(ranks, torch_context.aided)
    served = partial(torch_context.unaided, causal=False, gradients=False)
    assert team.run(ranks, served) == [""] * ranks


@pytest.mark.parametrize(("causal", "gradients"), [(True, False), (False, True)])
def test_pytorchs_context_parallel_does_not_serve_cpus(
    team: Team, causal: bool, gradients: bool
) -> None:
    """docs/scale.md says so; should this fail, it serves them now."""
    told = team.run(2, partial(torch_context.unaided, causal=causal, gradients=gradients))
    assert "does not have a sharding strategy registered" in told[0]


def test_mistakes_are_said(team: Team) -> None:
    told = team.run(2, cases.refused, "ranking")
    assert told[0] == (
        "mask TopK(3) ranks the scores of all keys, which no rank has: qkv.cluster.attend takes "
        "masks by position and tensors"
    )
    told = team.run(2, cases.refused, "second derivatives")
    assert told[1].startswith("qkv.cluster.attend has no second derivatives: call backward or")
    told = team.run(2, cases.refused, "layout")
    assert told[0] == "layout must be one of replicated, ring, zigzag; got 'star'"
    told = team.run(2, cases.refused, "queries")
    assert told[1].endswith("under layout='replicated'; got [29, 28] queries")
    told = team.run(2, cases.refused, "sizes")
    assert told[0].endswith("on all ranks; got rank 0 [5, 5, 3]; rank 1 [5, 5, 2]")
    told = team.run(2, cases.refused, "value")
    assert "value_shard must have shape (..., 29, d_v) to match key_shard on every rank" in told[0]


def test_without_a_group_one_is_asked_for() -> None:
    query, key, value = cases._tokens(5)
    with pytest.raises(ValueError, match=r"^torch.distributed must be initialised first"):
        qkv.cluster.attend(query, key, value)


def test_a_rank_that_is_silent_or_dies_is_noticed() -> None:
    team = Team(2)
    try:
        told = team.run(2, cases.one_sleeps, "ring")[0]
        assert told.startswith("rank 0 of 2 has lost another one, or waited too long"), told
        for pipe in team.pipes:
            pipe.send((2, cases.one_dies, ()))
        assert team.pipes[0].poll(30), "the other rank hangs"
        failure, every = team.pipes[0].recv()
        assert failure is None
        for told in every:
            assert told.startswith("rank 0 of 2 has lost another one, or waited too long")
    finally:
        for process in team.processes:
            process.kill()
