"""Attention over ranks: the answers and gradients of one process, for every split."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import shard_cases as cases
from cluster.team import Team

import qkv

LAYOUTS = ["replicated", "ring", "zigzag"]


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("similarity", cases.similarities())
def test_every_similarity(team: Team, similarity: str, layout: str) -> None:
    team.run(2, cases.same_as_one_process, layout, similarity, "none")
    team.run(3, cases.same_as_one_process, layout, similarity, "causal")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", cases.masks(7))
def test_every_mask(team: Team, mask: str, layout: str) -> None:
    team.run(3, cases.same_as_one_process, layout, "gaussian", mask)
    team.run(4, cases.same_as_one_process, layout, "dot", mask, "uneven")


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


def test_a_rank_that_dies_is_noticed() -> None:
    team = Team(2)
    try:
        for pipe in team.pipes:
            pipe.send((2, cases.one_dies, ()))
        assert team.pipes[0].poll(30), "the other rank hangs"
        failure, told = team.pipes[0].recv()
        assert failure is None
        assert told.startswith("rank 0 of 2 has lost another one, or waited too long")
    finally:
        for process in team.processes:
            process.kill()
