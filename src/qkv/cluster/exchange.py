"""What ranks tell each other, counted; a rank that is gone becomes one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from qkv.cluster.errors import ClusterError


class Exchange:
    """The collectives of a process group (None: the default one), and the bytes they took.

    `sent` counts what the ring algorithms of gloo and NCCL send from this rank, as the size of the
    tensors tells: 2 (ranks − 1) / ranks of an all-reduced tensor.
    """

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "torch.distributed must be initialised first: run under torchrun and call "
                "torch.distributed.init_process_group('gloo')"
            )
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.ranks: int = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is no member of the group")
        self.sent = 0

    def facts(self, numbers: list[int]) -> list[list[int]]:
        """What each rank says of itself, by rank."""
        own = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(self.ranks)]
        with self._watched():
            dist.all_gather(every, own, group=self.group)
        self.sent += own.nbytes * (self.ranks - 1)
        return [each.tolist() for each in every]

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which may differ in the length of their first axis."""
        lengths = [length for (length,) in self.facts([len(tensor)])]
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        every = [torch.empty_like(padded) for _ in range(self.ranks)]
        with self._watched():
            dist.all_gather(every, padded, group=self.group)
        self.sent += padded.nbytes * (self.ranks - 1)
        return [each[:length] for each, length in zip(every, lengths, strict=True)]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """The largest of all ranks, entry by entry, in place."""
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def from_first(self, tensor: Tensor) -> Tensor:
        """What the first rank has, in place."""
        with self._watched():
            dist.broadcast(tensor, dist.get_global_rank(self._group(), 0), group=self.group)
        self.sent += tensor.nbytes if self.rank == 0 else 0
        return tensor

    def pass_on(self, outgoing: Tensor, incoming: Tensor) -> Passing:
        """Begin to send to the next rank and to receive from the one before."""
        group = self._group()
        following = dist.get_global_rank(group, (self.rank + 1) % self.ranks)
        before = dist.get_global_rank(group, (self.rank - 1) % self.ranks)
        with self._watched():
            work: list[Any] = []
            if outgoing.numel():
                work.append(dist.isend(outgoing, following, group=self.group))
            if incoming.numel():
                work.append(dist.irecv(incoming, before, group=self.group))
        self.sent += outgoing.nbytes
        return Passing(self, outgoing, incoming, work)

    def _reduced(self, tensor: Tensor, how: Any) -> Tensor:
        assert tensor.is_contiguous(), "ranks may hold the same tensor with other strides"
        with self._watched():
            dist.all_reduce(tensor, how, group=self.group)
        self.sent += 2 * tensor.nbytes * (self.ranks - 1) // self.ranks
        return tensor

    def _group(self) -> Any:
        return dist.group.WORLD if self.group is None else self.group

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of which torch's DistError is one
            reason = " ".join(str(error).split())[:200]
            raise ClusterError(
                f"rank {self.rank} of {self.ranks} has lost another one, or waited too long: "
                f"{reason}"
            ) from error


class Passing:
    """A tensor on its way to the next rank, and one on its way here."""

    def __init__(
        self, exchange: Exchange, outgoing: Tensor, incoming: Tensor, work: list[Any]
    ) -> None:
        self._exchange, self._outgoing, self._work = exchange, outgoing, work
        self._incoming = incoming

    def wait(self) -> Tensor:
        """What came, once both have arrived."""
        with self._exchange._watched():
            for each in self._work:
                each.wait()
        return self._incoming
