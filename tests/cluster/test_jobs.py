"""Work on a Dask cluster: merged in the order of its parts, and given up in a sentence."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from qkv.cluster import ClusterError, jobs

distributed = pytest.importorskip("distributed")


def _cluster() -> Any:
    """Two workers that are threads of this process, started in a moment."""
    return distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    )


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with _cluster() as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def _slowly(part: int, seconds: float) -> int:
    time.sleep(seconds)
    return part


def _added(left: int, right: int) -> int:
    return left + right


def _raises(part: int, seconds: float) -> int:
    if part == 3:
        raise ValueError("part 3 holds nonsense")
    return _slowly(part, seconds)


@pytest.fixture
def troubles() -> Iterator[list[str]]:
    """What Dask logs of trouble of its own."""
    told: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(f"distributed.{name}") for name in ("core", "scheduler")]
    for logger in loggers:
        logger.addHandler(handler)
    yield told
    for logger in loggers:
        logger.removeHandler(handler)


def _left(client: Any) -> list[str]:
    keys = client.run_on_scheduler(lambda dask_scheduler: list(map(str, dask_scheduler.tasks)))
    return [key for key in keys if key.startswith("qkv-")]


def test_a_part_that_raises_says_so_and_stops_the_rest(client: Any, troubles: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^part 3 holds nonsense$"):
        jobs.fold(client, _raises, list(range(99)), 0.05, _added)
    deadline = time.monotonic() + 2  # what is left would take as long as that
    while _left(client) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _left(client)
    assert not troubles


def _late(part: str, shared: None) -> str:
    time.sleep(0.3 if part == "a" else 0.0)
    return part


def test_merging_goes_by_the_order_of_parts(client: Any) -> None:
    """The slow first part arrives last."""
    words = [chr(97 + place) for place in range(21)]
    assert jobs.fold(client, _late, words, None, _added) == "".join(words)


def _counted(part: str, shared: str) -> int:
    return shared.count(part)


@pytest.mark.parametrize("size", [1, 10**5])  # in each task, and once for each worker
def test_every_part_is_told_what_all_share(client: Any, size: int) -> None:
    assert jobs.fold(client, _counted, ["a", "b", "c"], "abb" * size, _added) == 3 * size


def _written(part: int, shared: None) -> str:
    return str(part)


def _bracketed(left: str, right: str) -> str:
    return f"({left} {right})"


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 61, 130])
def test_the_tree_is_the_same_however_many_parts_a_task_takes(
    count: int, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for threads in (1, 3, 1000):
        monkeypatch.setattr(jobs, "_check", lambda client, told=threads: told)
        found.add(jobs.fold(client, _written, list(range(count)), None, _bracketed))
    assert len(found) == 1
    assert next(iter(found)).replace("(", "").replace(")", "").split() == [
        str(place) for place in range(count)
    ]


def test_a_cluster_without_workers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 0.5)
    with _cluster() as local, distributed.Client(local, set_as_default=False) as client:
        leaving = threading.Timer(0.4, lambda: local.scale(0))
        leaving.start()
        with pytest.raises(ClusterError, match=r"no worker is left: waited 0\.5 s"):
            jobs.fold(client, _slowly, list(range(40)), 0.2, _added)
        leaving.join()
        with pytest.raises(ClusterError, match=r"^the Dask cluster has no workers: waited 0\.5 s"):
            jobs.fold(client, _slowly, [1], 0.0, _added)


def test_a_scheduler_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 0.5)
    with pytest.raises(ClusterError, match=r"^no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        jobs.connect("tcp://127.0.0.1:9")
    with pytest.raises(TypeError, match=r"^client must be a dask.distributed.Client; got str$"):
        jobs.fold("tcp://127.0.0.1:9", _slowly, [1], 0.0, _added)


def test_a_scheduler_that_says_nothing_is_said() -> None:
    """In a process of its own: Dask's own wait goes on behind it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes calls, and says nothing
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        found = subprocess.run(
            [sys.executable, "-c", _CONNECTS, address], capture_output=True, text=True, timeout=60
        )
    assert found.stdout == f"no Dask scheduler answers at {address!r}: waited 1 s\n", found.stderr


_CONNECTS = """
import os, sys
from qkv.cluster import ClusterError, jobs
jobs.PATIENCE = 0.5
try:
    jobs.connect(sys.argv[1])
except ClusterError as error:
    print(error, flush=True)
os._exit(0)
"""
_SCHEDULER = """
import distributed, sys
with distributed.LocalCluster(
    n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def test_a_scheduler_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = subprocess.PIPE
    elsewhere = subprocess.Popen([sys.executable, "-c", _SCHEDULER], stdin=pipe, stdout=pipe,
                                 text=True)  # fmt: skip
    try:
        assert elsewhere.stdout is not None
        with jobs.connect(elsewhere.stdout.readline().strip()) as client:
            assert jobs.fold(client, pow, [3, 4], 2, max) == 16
            monkeypatch.setattr(jobs, "PATIENCE", 1.0)
            os.kill(elsewhere.pid, signal.SIGSTOP)
            start = time.monotonic()
            with pytest.raises(ClusterError, match=r"^the Dask scheduler does not answer: waited"):
                jobs.fold(client, pow, list(range(40)), 2, max)
            assert time.monotonic() - start < 10
            os.kill(elsewhere.pid, signal.SIGCONT)
    finally:
        elsewhere.kill()
        elsewhere.communicate()


def test_other_versions_are_said(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = client.get_versions(packages=["qkv"])
    for versions in said["workers"].values():
        versions["packages"]["qkv"] = "0.0.9"
    monkeypatch.setattr(client, "get_versions", lambda packages: said)
    monkeypatch.setattr(jobs, "_KNOWN", type(jobs._KNOWN)())  # as if never asked before
    with pytest.warns(RuntimeWarning, match=r"worker \S* has qkv 0\.0\.9 and this process"):
        jobs.fold(client, _slowly, [1], 0.0, _added)
