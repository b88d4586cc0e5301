"""Training in one process, or in several that share each batch, as started by torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qkv.cluster.exchange import Exchange
from qkv.translate.data.batches import Batch


class SingleProcess:
    """A single process, which trains on all examples."""

    count = 1
    number = 0

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """Which examples of a batch this process takes."""
        return group

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module whose gradients are of the whole batch, divided by `count`."""
        return module

    def total(self, *numbers: float) -> list[float]:
        """Sums over all processes."""
        return list(numbers)


class Ranks(SingleProcess):
    """Several processes of a gloo group: each of them takes every `count`-th example."""

    def __init__(self) -> None:
        self._exchange = Exchange()
        self.count, self.number = self._exchange.ranks, self._exchange.rank

    def share(self, group: Sequence[int]) -> Sequence[int]:
        return group[self.number :: self.count]

    def wrap(self, module: nn.Module) -> nn.Module:
        return DistributedDataParallel(module)

    def total(self, *numbers: float) -> list[float]:
        totals: list[float] = self._exchange.sum(
            torch.tensor(numbers, dtype=torch.float64)
        ).tolist()
        return totals


class Loss(nn.Module):
    """A translator's loss as a module, as DistributedDataParallel takes it."""

    def __init__(self, model: nn.Module, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> Tensor:
        loss: Tensor = self.model.loss(batch, self.smoothing)  # type: ignore[operator]
        return loss


@contextmanager
def joined() -> Iterator[SingleProcess]:
    """The processes that torchrun started together, or this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield SingleProcess()
        return
    dist.init_process_group("gloo")
    try:
        yield Ranks()
    finally:
        dist.destroy_process_group()
