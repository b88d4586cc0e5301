"""One pass over a table by the workers of a cluster, each of which reads some parts of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from qkv.cluster import jobs
from qkv.table.aggregation import ProgressCallback, Reading, read
from qkv.table.bandwidth import Lots, count_rows, draw
from qkv.table.block import Question
from qkv.table.row_weights import RowWeights
from qkv.table.sources import Part, Request


class Job(NamedTuple):
    """What every part computes."""

    request: Request
    question: Question
    values: list[str]
    by: list[str]
    weights: RowWeights


def read_parts(
    client: Any, parts: list[Part], job: Job, progress: ProgressCallback | None = None
) -> Reading:
    """The sums of all parts, merged in their order."""
    rows = [part.rows for part in parts]
    total = None if None in rows else sum(each or 0 for each in rows)
    done = 0

    def part_done(place: int) -> None:
        nonlocal done
        assert progress is not None
        # Where the number of rows in a part is unknown, parts are counted.
        done += 1 if total is None else rows[place] or 0
        progress(done, len(parts) if total is None else total)

    return jobs.fold(
        client, _read, parts, job, Reading.merge, done=None if progress is None else part_done
    )


def sample_parts(client: Any, parts: list[Part], request: Request) -> pa.Table:
    """The sample that one machine would draw: each part gets the number of rows before it."""
    counts = jobs.fold(client, _count, parts, request, _joined)
    before = [sum(counts[:place]) for place in range(len(parts))]
    numbered = list(zip(parts, before, strict=True))
    return jobs.fold(client, _draw, numbered, request, Lots.merge).rows


def _read(part: Part, job: Job) -> Reading:
    # Tasks of one worker share the job, but not the state of its pass.
    weights = job.weights.anew()
    try:
        scan = part.source.scan(job.request)
        scan.window = job.request.window
        return read(scan, job.question, job.values, job.by, weights)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(part, error) from None


def _count(part: Part, request: Request) -> list[int]:
    try:
        return [count_rows(part.source, request)]
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(part, error) from None


def _draw(numbered: tuple[Part, int], request: Request) -> Lots:
    part, before = numbered
    try:
        return draw(part.source, request, before)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(part, error) from None


def _joined(left: list[int], right: list[int]) -> list[int]:
    return left + right


def _unreadable(part: Part, error: Exception) -> ValueError:
    reason = (str(error).strip() or type(error).__name__).split("\n")[0]
    return ValueError(f"{part.name} cannot be read: {reason}")
