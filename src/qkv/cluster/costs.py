"""What sharing out costs, on paper: bytes that ranks and workers send, and memory that they hold.

Counts follow from sizes alone; `tests/test_cluster_tensors.py` holds them to the bytes that were
sent. Times are these and the work divided by rates that the caller gives, or measured here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qkv.cluster.sharding import LAYOUTS
from qkv.memory import readable

#: What each rank tells of its sizes before it starts, in bytes.
FACTS = 7 * 8


@dataclass
class ShardPlan:
    """What each rank sends, receives and holds; print it."""

    layout: str
    ranks: int
    sent: list[int]  # bytes, by rank, forwards
    received: list[int]
    sent_back: list[int]  # bytes, by rank, on the way back; parameters not counted
    memory: list[int]  # bytes, by rank: its tensors, those that visit, answers
    flops: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.layout} over {self.ranks} ranks"]
        for rank in range(self.ranks):
            sign = "└─" if rank == self.ranks - 1 else "├─"
            lines.append(
                f"{sign} rank {rank}: sends {readable(self.sent[rank])}, receives "
                f"{readable(self.received[rank])}, and {readable(self.sent_back[rank])} on the "
                f"way back; holds {readable(self.memory[rank])}"
            )
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
            held[0] + own + 2 * answer[0] + entries * queries[0] * (d_v + 2) * wide for own in shard
        ]
        return ShardPlan(layout, ranks, sent, list(sent), back, memory)
    # A shard is sent on ranks − 1 times; on the way back once more, with its gradients ranks times.
    sent, back, memory = [], [], []
    for rank in range(ranks):
        visits = [shard[(rank - step) % ranks] for step in range(ranks)]
        sent.append(sum(visits[:-1]) + facts)
        back.append(sum(visits[:-1]) + (sum(visits) if ranks > 1 else 0))
        # Own keys, those that visit, and those on their way.
        memory.append(held[rank] + shard[rank] + 2 * max(shard) + 2 * answer[rank])
    received = [
        sum(shard[(rank - step) % ranks] for step in range(1, ranks)) + facts
        for rank in range(ranks)
    ]
    return ShardPlan(layout, ranks, sent, received, back, memory)


def _reduced(size: int, ranks: int) -> int:
    return 2 * size * (ranks - 1) // ranks
