"""The candidates of a beam search, step by step: kept, ended and pruned hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from qkv.translate.data.vocabulary import END
from qkv.translate.decoding.search import Considered, Search

Fate = Literal["kept", "ended", "pruned"]


class Node(NamedTuple):
    """A hypothesis by its last token."""

    step: int
    parent: int  # the node that it goes on from; −1: the beginning
    token: int
    log_p: float  # of this token alone
    total: float  # of the whole way
    fate: Fate


class BeamTree:
    """The tree of one sentence's search, grown while it is searched.

    At each step a beam of k considers the best 2k continuations; the first row also follows its
    best token, whatever its rank (see :mod:`qkv.translate.decoding.beam`).
    """

    def __init__(self, beam: int) -> None:
        self.beam = beam
        self.nodes: list[Node] = []
        self._rows = [-1]  # the nodes of the rows under way
        self._step = 0

    def watch(self, considered: Considered) -> None:
        """Grow by one step; fits as the `watch` of a search for a single sentence."""
        parents, tokens = (
            each[0].tolist() for each in (considered.after.parents, considered.after.tokens)
        )
        survivors = {
            pair: place
            for place, pair in enumerate(zip(parents, tokens, strict=True))
            if considered.after.log_p[0, place] > -np.inf
        }
        rows = [-1] * len(tokens)
        for rank, (row, token, log_p) in enumerate(self._looked_at(considered)):
            place = survivors.get((row, token))
            ends = token == END and rank < self.beam
            fate: Fate = "kept" if place is not None else "ended" if ends else "pruned"
            total = float(considered.before.log_p[0, row]) + log_p
            self.nodes.append(Node(self._step, self._rows[row], token, log_p, total, fate))
            if place is not None:
                rows[place] = len(self.nodes) - 1
        self._rows = rows
        self._step += 1

    def _looked_at(self, considered: Considered) -> list[tuple[int, int, float]]:
        """The continuations that the step considered: row, token and its log p."""
        before, likely, last, _ = considered
        rows = range(len(before.log_p[0]))
        if last[0]:
            ways = [(row, END, float(likely.end[0, row])) for row in rows]
        else:
            ways = [
                (row, token, log_p)
                for row in rows
                for token, log_p in zip(
                    likely.tokens[0, row].tolist(), likely.log_p[0, row].tolist(), strict=True
                )
            ]
        greedy = ways[0] if before.greedy[0] else None
        ways = [way for way in ways if before.log_p[0, way[0]] + way[2] > -np.inf]
        ways.sort(key=lambda way: (way is not greedy, -(before.log_p[0, way[0]] + way[2])))
        return ways[: 2 * self.beam]

    def as_json(self, how: Search, surface: Callable[[int], str]) -> list[dict[str, Any]]:
        """The nodes as the page draws them; tokens as text, and the score of what ended."""
        return [
            {
                "step": node.step,
                "parent": node.parent,
                "text": "⏎" if node.token == END else surface(node.token),
                "log_p": node.log_p,
                "total": node.total,
                "fate": node.fate,
                "score": node.total / how.norm(node.step + 1) if node.token == END else None,
            }
            for node in self.nodes
        ]

    def way(self, tokens: list[int]) -> list[int]:
        """The nodes of a translation, its end included."""
        path, parent = [], -1
        for step, token in enumerate([*tokens, END]):
            parent = self._find(step, parent, token)
            path.append(parent)
        return path

    def _find(self, step: int, parent: int, token: int) -> int:
        return next(
            place
            for place, node in enumerate(self.nodes)
            if (node.step, node.parent, node.token) == (step, parent, token)
        )
