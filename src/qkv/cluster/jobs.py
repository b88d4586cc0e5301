"""Work on the workers of a Dask cluster: a function of each part, and a tree that merges.

Dask schedules, moves and repeats; here is what it does not do by itself: notice other versions of
qkv, give up on a cluster that is gone, cancel when the user does, and say errors in one sentence.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from qkv.cluster.errors import ClusterError
from qkv.optional_dependencies import require

Part = TypeVar("Part")
Found = TypeVar("Found")

#: Seconds that a cluster without workers, or a scheduler that says nothing, is waited for.
PATIENCE = 30.0
#: How many parts a task takes, and how many such tasks one merges, at most. A power of two: tasks
#: then cut one binary tree, whatever their number.
_BRANCHES = 8
#: Bytes of what all tasks share up to which each has a copy of its own.
_SMALL = 2**14
#: Seconds between two looks at the cluster.
_GLANCE = 0.5

#: Workers whose version of qkv has been looked at.
_KNOWN: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def connect(address: str) -> Any:
    """A client of the scheduler at this address, or one sentence on why there is none."""
    distributed = require("distributed", "cluster")
    patience = min(PATIENCE, 10.0)
    made: list[Any] = []

    def make() -> None:
        try:
            made.append(distributed.Client(address, timeout=patience, set_as_default=False))
        except (OSError, ValueError) as error:  # a timeout is an OSError
            made.append(error)

    # A scheduler that takes the call and then says nothing is waited for without end by Dask.
    making = threading.Thread(target=make, name="qkv-connect", daemon=True)
    making.start()
    making.join(2 * patience)
    client = made[0] if made else TimeoutError(f"waited {2 * patience:g} s")
    if isinstance(client, Exception):
        raise ClusterError(
            f"no Dask scheduler answers at {address!r}: {_first_line(client)}"
        ) from client
    return client


def worker_count(client: Any) -> int:
    """How many workers the cluster has; a scheduler that does not answer in time is an error."""
    return len(_workers(client))


def fold(
    client: Any,
    work: Callable[[Part, Any], Found],
    parts: Sequence[Part],
    shared: Any,
    merge: Callable[[Found, Found], Found],
    *,
    done: Callable[[int], None] | None = None,
) -> Found:
    """merge(work(parts[0], shared), work(parts[1], shared), …) in the order of the parts.

    Each part is worked on where there is room; `shared`, where it is large, travels to each worker
    once. Results are merged on the workers, always in the same binary tree: two runs with the same
    parts agree bit for bit, whoever did what and when. A part may be a Dask delayed object. `done`
    is told the place of each part that is finished.
    """
    distributed = require("distributed", "cluster")
    threads = _check(client)
    blocks = list(_blocks(len(parts), threads if _is_plain(parts[0]) else len(parts)))
    leaves, root = _tasks(work, parts, shared, merge, blocks)
    # Who asks for no progress is not told of it: messages take the scheduler's time.
    wanted = [] if done is None else leaves
    futures: list[Any] = client.compute([*wanted, root], retries=0)
    try:
        _wait(client, futures, lambda place: _tell(done, *blocks[place]))
        merged: Found = futures[-1].result()
        return merged
    except distributed.KilledWorker as error:
        raise ClusterError(
            f"a part of the work ended {error.allowed_failures + 1} workers, one after another; "
            "their logs say why (often: too little memory)"
        ) from error
    except (concurrent.futures.CancelledError, distributed.client.FutureCancelledError) as error:
        raise ClusterError(f"the cluster dropped the work: {_first_line(error)}") from error
    finally:
        # What nobody wants any more is stopped, after an error or Ctrl-C; what is done, forgotten.
        for future in futures:
            future.release()


def _is_plain(part: Any) -> bool:
    """Whether a part holds nothing that Dask has yet to compute."""
    distributed = require("distributed", "cluster")
    unpack = require("dask.delayed", "cluster").unpack_collections
    return not isinstance(part, distributed.Future) and not unpack(part)[1]


def _blocks(count: int, threads: int) -> Iterator[tuple[int, int]]:
    """The parts of each task: from which on, and how many.

    A task costs the scheduler some milliseconds, so one takes several parts while there are plenty
    for all; towards the end ever fewer, so that no worker is long at work when the others are done.
    """
    size, at = _BRANCHES, 0
    while at < count:
        while size > 1 and 2 * size * threads > count - at:
            size //= 2
        yield at, size
        at += size


def _tasks(
    work: Callable[[Part, Any], Found],
    parts: Sequence[Part],
    shared: Any,
    merge: Callable[[Found, Found], Found],
    blocks: list[tuple[int, int]],
) -> tuple[list[Any], Any]:
    """A task for each block of parts, and the one that merges the last of them."""
    dask, cloudpickle = require("dask", "cluster"), require("cloudpickle", "cluster")
    token = uuid.uuid4().hex
    # Names of tasks say nothing of what is read: dashboards and logs show them.
    # What is small travels with every task: a task that waits for another waits for two messages.
    if len(cloudpickle.dumps(shared)) > _SMALL:
        shared = dask.delayed(shared, name=f"qkv-shared-{token}", traverse=False)
    task = dask.delayed(_worked, pure=False, traverse=False)
    together = dask.delayed(_merged, pure=False)
    leaves = []
    for at, size in blocks:
        name = f"qkv-part-{token}-{at}"
        with dask.annotate(priority=-at):  # the large ones first
            leaves.append(task(work, merge, parts[at : at + size], shared, dask_key_name=name))
    level = [(*block, leaf) for block, leaf in zip(blocks, leaves, strict=True)]
    width = blocks[0][1]
    while len(level) > 1:
        width *= _BRANCHES
        groups: dict[int, list[tuple[int, int, Any]]] = {}
        for each in level:
            groups.setdefault(each[0] // width, []).append(each)
        level = []
        for group in groups.values():
            starts, sizes, neighbours = (list(each) for each in zip(*group, strict=True))
            name = f"qkv-merge-{token}-{width}-{starts[0]}"
            merged = together(merge, sizes, neighbours, dask_key_name=name)
            level.append((starts[0], sum(sizes), merged))
    return leaves, level[0][-1]


def _tell(done: Callable[[int], None] | None, first: int, size: int) -> None:
    if done is not None:
        for place in range(first, first + size):
            done(place)


def _worked(
    work: Callable[[Part, Any], Found],
    merge: Callable[[Found, Found], Found],
    parts: list[Part],
    shared: Any,
) -> Found:
    return _merged(merge, [1] * len(parts), [work(part, shared) for part in parts])


def _merged(merge: Callable[[Found, Found], Found], sizes: list[int], parts: list[Found]) -> Found:
    """What neighbours found: pairs first, then pairs of pairs, as one binary tree over all parts.

    Each was found by so many parts, whose number is a power of two but for the last ones.
    """
    waiting: list[tuple[int, Found]] = []
    for size, each in zip(sizes, parts, strict=True):
        while waiting and waiting[-1][0] == size:
            before, left = waiting.pop()
            size, each = size + before, merge(left, each)
        waiting.append((size, each))
    _, total = waiting.pop()
    while waiting:
        total = merge(waiting.pop()[1], total)
    return total


def _wait(client: Any, futures: list[Any], done: Callable[[int], None]) -> None:
    """Until the last is there or one has failed; not for a cluster that is gone."""
    pending = dict(enumerate(futures[:-1]))
    heard, finished = time.monotonic(), threading.Event()
    futures[-1].add_done_callback(lambda future: finished.set())
    while not futures[-1].done():
        finished.wait(_GLANCE)
        moved = [place for place, future in pending.items() if future.done()]
        for place in moved:
            future = pending.pop(place)
            if future.status == "error":
                future.result()
            done(place)
        if moved or _workers(client):
            heard = time.monotonic()
        elif time.monotonic() - heard > PATIENCE:
            raise ClusterError(
                f"no worker is left: waited {PATIENCE:g} s for one to come back, and gave up"
            )
    for place in pending:
        if futures[-1].status == "finished":
            done(place)


def _workers(client: Any) -> dict[str, Any]:
    """The workers that the scheduler knows at this moment."""
    try:
        if client.asynchronous:
            raise ValueError("client must be a synchronous Dask client; got an asynchronous one")
        told = client.sync(client.scheduler.identity, callback_timeout=PATIENCE)
    except OSError as error:  # of which a timeout is one
        raise ClusterError(f"the Dask scheduler does not answer: waited {PATIENCE:g} s") from error
    workers: dict[str, Any] = told["workers"]
    return workers


def _check(client: Any) -> int:
    """Wait for a first worker; say where workers have another qkv, or none. How many threads all
    of them have."""
    if not hasattr(client, "scheduler") or not hasattr(client, "compute"):
        raise TypeError(f"client must be a dask.distributed.Client; got {type(client).__name__}")
    start = time.monotonic()
    while not (workers := _workers(client)):
        if time.monotonic() - start > PATIENCE:
            raise ClusterError(f"the Dask cluster has no workers: waited {PATIENCE:g} s for one")
        time.sleep(_GLANCE / 5)
    threads: int = sum(each["nthreads"] for each in workers.values())
    known = _KNOWN.setdefault(client, set())
    if known.issuperset(workers):
        return threads
    told = client.get_versions(packages=["qkv"])
    own = told["client"]["packages"]["qkv"]
    for address, versions in told["workers"].items():
        theirs = versions["packages"].get("qkv") if isinstance(versions, dict) else None
        if address not in known and theirs != own:
            warnings.warn(
                f"worker {address} has qkv {theirs or '(not installed)'} and this process {own}: "
                "answers may differ, or the work fail",
                RuntimeWarning,
                stacklevel=4,
            )
    known.update(workers)
    return threads


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
