"""Two workers against one, two ranks against two threads, and the overhead of the cluster."""

from __future__ import annotations

import os
import pickle
import socket
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qkv
from qkv.benchmarks import Figure
from qkv.cluster.costs import Rates, table_costs, tensor_plan, tensor_seconds
from qkv.optional_dependencies import require

#: Rows of the table; 10⁸ take 1.6 GB of disk. QKV_BENCH_ROWS overrides it.
ROWS = int(os.environ.get("QKV_BENCH_ROWS", 10**8))
_FILES = 100
_HOW: dict[str, Any] = {"similarity": "gaussian", "bandwidth": 0.1, "top": 0}
_QUERIES = [-1.0, 0.0, 0.5, 1.0]
_N, _HEADS, _D = 8192, 4, 64


def measure() -> Iterator[Figure]:
    """What `qkv bench cluster` shows."""
    for part in PARTS.values():
        yield from part()


def _tables() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="qkv-bench-") as folder:
        large, small = Path(folder) / "large", Path(folder) / "small"
        _write(large, ROWS)
        _write(small, 200_000)
        yield from _workers(large, small)


def _write(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(_FILES):
        key = rng.normal(size=rows // _FILES)
        table = pa.table({"key": key, "value": np.sin(key)})
        pq.write_table(table, folder / f"{number:03}.parquet")


def _workers(large: Path, small: Path) -> Iterator[Figure]:
    database = qkv.Database(large, key="key", value="value")
    seconds: dict[int, float] = {}
    for workers in (1, 2, 1, 2, 4):  # in turns, but not side by side: idle workers take time too
        with _cluster(workers) as client:
            ask = partial(database.query, _QUERIES, **_HOW, client=client)
            least = min(_seconds(ask) for _ in range(6))
            seconds[workers] = min(least, seconds.get(workers, least))
            if workers == 2:
                overhead, result = _overhead(small, client)
    yield Figure(
        f"{ROWS:,} rows, {len(_QUERIES)} queries: one worker / two", seconds[1] / seconds[2], "×",
        "≥ 1.7", f"{seconds[1]:.2f} s and {seconds[2]:.2f} s, each worker on a core of its own",
    )  # fmt: skip
    plan = partial(table_costs, ROWS, queries=len(_QUERIES))
    work = seconds[1] - plan(1).parts / Rates.parts
    rates = Rates(rows=ROWS / max(work, 1e-9))
    for workers in (2, 4):
        # On fewer cores than workers, these are what counts.
        predicted = plan(min(workers, _cores()), rates=rates).seconds
        yield _prediction(f"{workers} workers", predicted, seconds[workers])
    yield Figure("a query of 100 parts above its work", 1000 * overhead, "ms", "≤ 150")
    bytes_large = _result_bytes(large)
    yield Figure(
        f"bytes that a part sends, {ROWS // _FILES:,} rows / 2,000", bytes_large / result, "×",
        "≤ 1.1", f"{bytes_large:,} bytes",
    )  # fmt: skip


def _prediction(what: str, predicted: float, measured: float) -> Figure:
    return Figure(
        f"time of {what}, predicted from that of one: off by",
        max(predicted / measured, measured / predicted), "×", "≤ 1.5",
        f"{predicted:.2f} s, and {measured:.2f} s measured",
    )  # fmt: skip


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _cluster(workers: int) -> Iterator[Any]:
    """A client of so many workers, each of one thread and on one core.

    Arrow decodes ahead in a thread of its own, which might use a core that another worker has.
    """
    distributed = require("distributed", "cluster")
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        for place, address in enumerate(client.scheduler_info()["workers"]):
            client.run(_on_one_core, place, workers=[address])
        yield client


def _on_one_core(place: int) -> None:
    import pyarrow as pa

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        for thread in os.listdir("/proc/self/task"):  # threads to come are those of these
            os.sched_setaffinity(int(thread), {cores[place % len(cores)]})


def _overhead(small: Path, client: Any) -> tuple[float, int]:
    """Seconds above the work of 100 small parts, and the bytes that one of them sends."""
    from qkv.table.sources import base

    usual = base.PART_ROWS
    base.PART_ROWS = 1  # every file is a part
    try:
        database = qkv.Database(small, key="key", value="value")
        shared = _median(lambda: database.query(0.5, **_HOW, client=client), 7)
        alone = _median(lambda: database.query(0.5, **_HOW), 7)
        return shared - alone, _result_bytes(small)
    finally:
        base.PART_ROWS = usual


def _result_bytes(folder: Path) -> int:
    """What one part, a file, would send."""
    from qkv.table.query_runner import QueryOptions, QueryRunner
    from qkv.table.sources import open_source

    runner = QueryRunner(open_source(folder / "000.parquet"), ["key"], ["value"])
    terms = QueryOptions(similarity="gaussian", bandwidth=0.1, top=0)
    prepared = runner.prepare([{"key": 0.5}], terms)
    return len(pickle.dumps(runner.read(prepared, None)))


def _ring() -> Iterator[Figure]:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, _HEADS, _N, _D).unbind()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.no_grad():
        alone = _median(lambda: qkv.attend(query, key, value), 5)
    torch.set_num_threads(threads)
    seconds = {ranks: _ranks(ranks) for ranks in (1, 2, 4)}
    yield Figure(
        f"ring of two ranks / one process of two threads, n = {_N:,}", seconds[2] / alone, "×",
        "≤ 1.3", f"{1000 * seconds[2]:.0f} ms and {1000 * alone:.0f} ms",
    )  # fmt: skip
    pairs = float(_HEADS * _N * _N)
    flops = pairs * 2 * (_D + _D) / seconds[1]
    for ranks in (2, 4):
        shares = [_N // ranks] * ranks
        plan = tensor_plan(
            ranks=ranks, layout="ring", entries=_HEADS, queries=shares, keys=shares,
            sizes=(_D, _D, _D), itemsize=4,
        )  # fmt: skip
        rates = Rates(flops=flops * min(ranks, _cores()) / ranks)
        predicted = tensor_seconds(plan, pairs, (_D, _D), rates)
        yield _prediction(f"{ranks} ranks", predicted, seconds[ranks])


def _ranks(count: int) -> float:
    """Seconds that a ring of so many ranks of one thread each takes."""
    context = torch.multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    queue = context.SimpleQueue()
    ranks = [
        context.Process(target=_rank, args=(rank, count, address, queue)) for rank in range(count)
    ]
    for process in ranks:
        process.start()
    seconds: float = max(queue.get() for _ in ranks)
    for process in ranks:
        process.join()
    return seconds


def _rank(rank: int, count: int, address: str, queue: Any) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
    torch.manual_seed(0)
    tokens = [qkv.cluster.shard(each) for each in torch.randn(3, _HEADS, _N, _D).unbind()]
    tokens = [each.contiguous() for each in tokens]
    with torch.no_grad():
        seconds = _median(lambda: qkv.cluster.attend(*tokens, layout="ring"), 5)
    queue.put(seconds)
    dist.destroy_process_group()


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _median(call: Callable[[], Any], count: int) -> float:
    call()  # the first one loads and connects
    return statistics.median(_seconds(call) for _ in range(count))


PARTS = {"tables": _tables, "ring": _ring}
