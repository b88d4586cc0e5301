"""Sequences that ranks hold shards of: keys and values travel around, queries stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.cluster.block import Answered, Question, gradients
from qkv.cluster.exchange import Exchange
from qkv.cluster.sharding import Chunk
from qkv.partial import Partial


class Shards(NamedTuple):
    """Who holds which queries and keys, by rank."""

    queries: list[list[Chunk]]
    keys: list[list[Chunk]]

    def keys_of(self, rank: int) -> int:
        return sum(run.length for run in self.keys[rank])


class Ring:
    """At each of as many steps as there are ranks, a rank asks the keys that visit it, while they
    are already on their way to the next; on the way back their gradients travel with them."""

    def __init__(self, question: Question, exchange: Exchange, shards: Shards) -> None:
        self.question, self._exchange, self._shards = question, exchange, shards

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Partial:
        """The answer of this rank's queries over the keys of all ranks."""
        runs = self._shards.queries[self._exchange.rank]
        partials: list[Partial | None] = [None] * len(runs)
        for owner, there, said in self._visits(key, value):
            for place, run in enumerate(runs):
                for other in self._shards.keys[owner]:
                    partial = self.question.partial(
                        _rows(query, run), _rows(there, other), _rows(said, other),
                        run.position, other.position,
                    )  # fmt: skip
                    before = partials[place]
                    partials[place] = partial if before is None else _merged(before, partial)
        whole = [
            self.question.nothing(value, run.length) if own is None else own
            for run, own in zip(runs, partials, strict=True)
        ]
        answer = torch.cat([own.answer for own in whole], -2)
        return Partial(answer, torch.cat([own.log_total for own in whole], -1))

    def backward(
        self,
        tokens: tuple[Tensor, Tensor, Tensor],
        answered: Answered,
        leaves: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Gradients of this rank's queries, keys and values; of leaves by way of its queries."""
        query, key, value = tokens
        of_query = torch.zeros_like(query)
        of_leaves = [torch.zeros_like(leaf) for leaf in leaves]
        runs = self._shards.queries[self._exchange.rank]
        travelling: Tensor | None = None  # the gradients of the keys that visit
        for owner, there, said in self._visits(key, value):
            size = there.numel() + said.numel()
            if travelling is None:
                own = key.new_zeros(size)
            else:
                own = self._exchange.pass_on(travelling, key.new_empty(size)).wait()
            of_key, of_value = _unpacked(own, there, said)
            for run in runs:
                for other in self._shards.keys[owner]:
                    block = (_rows(query, run), _rows(there, other), _rows(said, other))
                    rows = answered.rows(run.offset, run.offset + run.length)
                    at = (run.position, other.position)
                    grads = gradients(self.question, block, at, rows, leaves)
                    if grads is None:
                        continue
                    totals = [_rows(of_query, run), _rows(of_key, other), _rows(of_value, other)]
                    for total, grad in zip([*totals, *of_leaves], grads, strict=True):
                        if grad is not None:
                            total.add_(grad)
            travelling = own
        assert travelling is not None
        home = key.new_empty(key.numel() + value.numel())
        of_key, of_value = _unpacked(self._home(travelling, home), key, value)
        return [of_query, of_key, of_value, *of_leaves]

    def _home(self, travelling: Tensor, own: Tensor) -> Tensor:
        if self._exchange.ranks == 1:
            return travelling
        return self._exchange.pass_on(travelling, own).wait()

    def _visits(self, key: Tensor, value: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(owner, keys, values) of each rank in turn, this one first."""
        ranks, rank = self._exchange.ranks, self._exchange.rank
        here = torch.cat([key.reshape(-1), value.reshape(-1)])
        for step in range(ranks):
            owner = (rank - step) % ranks
            keys = self._shards.keys_of(owner)
            passing = None
            if step + 1 < ranks:
                following = self._shards.keys_of((owner - 1) % ranks)
                size = following * (_entries(key) + _entries(value))
                passing = self._exchange.pass_on(here, here.new_empty(size))
            shape_key = (*key.shape[:-2], keys, key.shape[-1])
            shape_value = (*value.shape[:-2], keys, value.shape[-1])
            split = keys * _entries(key)
            yield owner, here[:split].view(shape_key), here[split:].view(shape_value)
            if passing is not None:
                here = passing.wait()


def _entries(tensor: Tensor) -> int:
    """Numbers for each position."""
    count = tensor.shape[-1]
    for size in tensor.shape[:-2]:
        count *= size
    return count


def _rows(tensor: Tensor, run: Chunk) -> Tensor:
    return tensor.narrow(-2, run.offset, run.length)


def _unpacked(flat: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return flat[: key.numel()].view(key.shape), flat[key.numel() :].view(value.shape)


def _merged(left: Partial, right: Partial | None) -> Partial:
    return left if right is None else left.merge(right)
