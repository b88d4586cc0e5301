"""What sharing out costs, on paper: bytes that ranks and workers send, and memory that they hold.

Counts follow from sizes alone; `tests/cluster/test_cluster_tensors.py` holds them to the bytes that
were sent. Times are these and the work divided by rates that the caller gives, or measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.cluster.sharding import LAYOUTS
from qkv.memory import readable

#: What each rank tells of its sizes before it starts, in bytes.
FACTS = 7 * 8
#: Ranks that a printed plan tells of.
_MOST_TOLD = 8


@dataclass
class ShardPlan:
    """What each rank sends, receives and holds; print it."""

    layout: str
    ranks: int
    sent: list[int]  # bytes, by rank, forwards
    received: list[int]
    sent_back: list[int]  # bytes, by rank, on the way back; parameters not counted
    memory: list[int]  # bytes, by rank: its tensors, those that visit, answers; not tiles of scores

    def __str__(self) -> str:
        lines = [f"{self.layout} over {self.ranks} ranks"]
        told = range(min(self.ranks, _MOST_TOLD))
        for rank in told:
            sign = "└─" if rank == self.ranks - 1 else "├─"
            lines.append(
                f"{sign} rank {rank}: sends {readable(self.sent[rank])}, receives "
                f"{readable(self.received[rank])}, and {readable(self.sent_back[rank])} on the "
                f"way back; holds {readable(self.memory[rank])}"
            )
        if self.ranks > len(told):
            lines.append(f"└─ and {self.ranks - len(told):,} ranks more")
        return "\n".join(lines)


def tensor_plan(
    *,
    ranks: int,
    layout: str,
    entries: int,
    queries: list[int],
    keys: list[int],
    sizes: tuple[int, int, int],
    itemsize: int,
    key_entries: tuple[int, int] | None = None,
) -> ShardPlan:
    """The plan for `entries` batch entries and heads; `sizes` are d_q, d_k and d_v."""
    assert layout in LAYOUTS
    d_q, d_k, d_v = sizes
    of_key, of_value = key_entries or (entries, entries)
    shard = [count * (of_key * d_k + of_value * d_v) * itemsize for count in keys]
    wide = max(4, itemsize)  # totals, and sums of answers
    answer = [entries * count * d_v * itemsize for count in queries]
    facts = FACTS * (ranks - 1)
    held = [entries * count * d_q * itemsize for count in queries]
    if layout == "replicated":
        # The largest of the totals, then answers beside their weight; back, the queries' gradient.
        first = _reduced(entries * queries[0] * wide, ranks)
        second = _reduced(entries * queries[0] * (d_v + 1) * wide, ranks)
        sent = [first + second + facts] * ranks
        back = [_reduced(entries * queries[0] * d_q * itemsize, ranks)] * ranks
        memory = [
            # An answer as it is found, weighed, beside its weight, and divided.
            held[0] + own + 3 * answer[0] + entries * queries[0] * (d_v + 2) * wide
            for own in shard
        ]
        return ShardPlan(layout, ranks, sent, list(sent), back, memory)
    # A shard is sent on ranks − 1 times; on the way back once more, with its gradients ranks times.
    sent, back, memory = [], [], []
    for rank in range(ranks):
        visits = [shard[(rank - step) % ranks] for step in range(ranks)]
        sent.append(sum(visits[:-1]) + facts)
        back.append(sum(visits[:-1]) + (sum(visits) if ranks > 1 else 0))
        # Own keys, those that visit, and those on their way, where there are others.
        visiting = min(2, ranks) * max(shard)
        memory.append(held[rank] + shard[rank] + visiting + 2 * answer[rank])
    received = [
        sum(shard[(rank - step) % ranks] for step in range(1, ranks)) + facts
        for rank in range(ranks)
    ]
    return ShardPlan(layout, ranks, sent, received, back, memory)


def _reduced(size: int, ranks: int) -> int:
    return 2 * size * (ranks - 1) // ranks


@dataclass
class Rates:
    """What a device or a worker does in a second: by `qkv bench cluster` on one core of the machine
    that docs/scale.md names, but for the link, which is assumed."""

    flops: float = 1.0e11
    bytes: float = 1.0e9  # over a link, each way
    rows: float = 1.0e8  # of a table, read and weighed for a few queries
    parts: float = 1200.0  # that a scheduler hands out


def tensor_seconds(plan: ShardPlan, pairs: float, sizes: tuple[int, int], rates: Rates) -> float:
    """Of the slowest rank, forwards: in a ring the transfer hides behind the work, or the work
    behind the transfer. `pairs` are those of all ranks, `sizes` d_k and d_v."""
    work = pairs / plan.ranks * 2 * sum(sizes) / rates.flops
    transfer = max(plan.sent) / rates.bytes
    return work + transfer if plan.layout == "replicated" else max(work, transfer)


@dataclass
class TableCosts:
    """What a question to a table costs on so many workers; print it."""

    rows: int
    workers: int
    parts: int
    result: int  # bytes that a part sends
    memory: int  # bytes that a worker holds
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows on {self.workers:,} workers, {self.parts:,} parts\n"
            f"├─ each part sends {readable(self.result)}, all {readable(self.result * self.parts)}"
            " to their mergers, whatever their rows\n"
            f"├─ a worker holds {readable(self.memory)}\n"
            f"└─ about {self.seconds:,.1f} s"
        )


#: Of what a part sends: a row of the sample for the picture, of which there are 512 to 1,024; what
#: is sent beside it; and each query's sums, with five rows that lead.
SAMPLE_ROWS, NUMBER_BYTES = 768, 8
RESULT_BYTES, QUERY_BYTES = 2_000, 220
#: Rows that a worker holds at once, decoded and read ahead.
_ROWS_HELD = 6 * 2**17


def table_costs(
    rows: int,
    workers: int,
    *,
    queries: int = 1,
    columns: int = 2,
    part_rows: int = 2**20,
    most_parts: int = 10_000,
    rates: Rates | None = None,
) -> TableCosts:
    """The costs of numbers asked of numbers: `columns` are read of each row."""
    rates = rates or Rates()
    parts = max(1, min(most_parts, -(-rows // part_rows)))
    result = RESULT_BYTES + SAMPLE_ROWS * NUMBER_BYTES * columns + QUERY_BYTES * queries
    work = rows * max(1.0, queries / 4) / (rates.rows * min(workers, parts))
    memory = _ROWS_HELD * columns * 8 + 16 * result
    return TableCosts(rows, workers, parts, result, memory, work + parts / rates.parts)
