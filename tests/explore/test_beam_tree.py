"""The beam as a tree: what the search looked at, against all that it could have looked at."""

from __future__ import annotations

import itertools

import pytest
import torch

from qkv.explore.beam_tree import BeamTree
from qkv.translate import RNNConfig, Search, Translator
from qkv.translate.data.vocabulary import BEGIN, END, PAD
from qkv.translate.decoding.search import search

SOURCE, TARGET = 17, 11


@pytest.fixture(scope="module")
def model() -> Translator:
    torch.manual_seed(4)
    sizes = RNNConfig(embedding=5, hidden=7, features=6, dropout=0.0)
    made = Translator(sizes, SOURCE, TARGET).double().eval()
    with torch.no_grad():  # opinions, so that ways differ
        made.output.weight *= 8.0
        made.output.bias[END] = 1.0
    return made


def after(model: Translator, source: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """log p of every token after these, by the plain formula."""
    with torch.no_grad():
        memory = model.encode(source, torch.tensor([source.shape[1]]))
        state = model.start(memory)
        for token in [BEGIN, *tokens]:
            step = model.step(memory, state, torch.tensor([[token]]))
            state = step.state
        return torch.log_softmax(model.logits(step.features), -1)[0, 0]


@pytest.mark.parametrize(("beam", "limit"), [(1, 5), (3, 5), (4, None)])
def test_each_step_has_the_best_ways_of_all(
    model: Translator, beam: int, limit: int | None
) -> None:
    source = torch.tensor([[5, 9, 4, 13, 7]])
    how = Search(beam=beam, n_best=beam, max_length=limit)
    tree = BeamTree(beam)
    found = search(model, source, torch.tensor([5]), how, tree.watch)[0]
    plain = search(model, source, torch.tensor([5]), how)[0]
    assert [each.tokens for each in found] == [each.tokens for each in plain]

    def way(node: int) -> list[int]:
        own = tree.nodes[node]
        return [*(way(own.parent) if own.parent >= 0 else []), own.token]

    rows = [(-1, [], 0.0)]  # node, tokens, log p
    for step, group in itertools.groupby(range(len(tree.nodes)), lambda i: tree.nodes[i].step):
        nodes = list(group)
        possible = {}
        for node, tokens, total in rows:
            log_p = after(model, source, tokens)
            for token in range(TARGET):
                if token not in (PAD, BEGIN) and (token == END or step + 1 != (limit or 20)):
                    possible[node, token] = total + float(log_p[token])
        seen = {(tree.nodes[i].parent, tree.nodes[i].token): tree.nodes[i].total for i in nodes}
        assert seen == pytest.approx({pair: possible[pair] for pair in seen})
        best = sorted(possible.values(), reverse=True)[: 2 * beam]
        assert sorted(seen.values(), reverse=True)[1:] == pytest.approx(best[1 : len(seen)])
        kept = [i for i in nodes if tree.nodes[i].fate == "kept"]
        assert len(kept) <= beam
        assert all(tree.nodes[i].token != END for i in kept)
        pruned = [tree.nodes[i] for i in nodes if tree.nodes[i].fate == "pruned"]
        # But for the first, which follows the greedy way, what was pruned is no better.
        least = min((tree.nodes[i].total for i in kept[1:]), default=float("inf"))
        assert all(node.total <= least for node in pruned if node.token != END)
        rows = [(i, way(i), tree.nodes[i].total) for i in kept]
    for each in found:
        nodes = tree.way(each.tokens)
        assert [tree.nodes[i].token for i in nodes] == [*each.tokens, END]
        assert tree.nodes[nodes[-1]].total == pytest.approx(each.log_p)
        assert tree.nodes[nodes[-1]].fate == "ended"
        told = tree.as_json(how, str)[nodes[-1]]
        assert (told["text"], told["score"]) == ("⏎", pytest.approx(each.score))
