"""Four gloo ranks, started once for a module, that run many cases."""

from __future__ import annotations

import datetime as dt
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

#: Seconds after which a rank that waits for another gives up.
TIMEOUT = 5


class Team:
    """Ranks that wait for work; the first so many of them form a group."""

    def __init__(self, ranks: int = 4) -> None:
        context = mp.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, ranks, address))
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, size: int, case: Callable[..., Any], *words: Any) -> list[Any]:
        """What case(group, *words) gives on each of the first `size` ranks."""
        for pipe in self.pipes[:size]:
            pipe.send((size, case, words))
        answers = [pipe.recv() for pipe in self.pipes[:size]]
        for rank, (failure, _) in enumerate(answers):
            assert failure is None, f"rank {rank}: {failure}"
        return [found for _, found in answers]

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def _serve(pipe: Any, rank: int, ranks: int, address: str) -> None:
    torch.set_num_threads(1)
    timeout = dt.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks,
                            timeout=timeout)  # fmt: skip
    groups = {
        size: dist.new_group(list(range(size)), timeout=dt.timedelta(seconds=TIMEOUT * 6))
        for size in range(1, ranks + 1)
    }
    while (asked := pipe.recv()) is not None:
        size, case, words = asked
        try:
            torch.manual_seed(0)
            pipe.send((None, case(groups[size], *words)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
    dist.destroy_process_group()
