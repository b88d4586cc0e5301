"""What the first call of a kernel takes in a new process, when it was compiled before."""

from __future__ import annotations

from collections.abc import Iterator

from qkv.benchmarks import Figure
from qkv.benchmarks.measure import process_seconds

# Neither the imports are timed nor the making of tensors; all else that a first call loads is.
_PREPARED = """
import time, torch, qkv
similarity = {similarity}
query, key, value = (torch.randn({size}, requires_grad={learning}) for _ in range(3))
start = time.perf_counter()
answer = qkv.attend(query, key, value, similarity=similarity, operator={operator!r})
"""
_FORWARD = _PREPARED + "print(time.perf_counter() - start)"
_BOTH_WAYS = _PREPARED + "answer.sum().backward(); print(time.perf_counter() - start)"

ADDITIVE = {"similarity": "qkv.Additive(128, 128, 128)", "size": "512, 128", "operator": "fused"}
GAUSSIAN = {"similarity": "qkv.Gaussian(0.1)", "size": "4096, 1", "operator": "sorted"}


def measure() -> Iterator[Figure]:
    name = "first call in a new process, additive, 512², hidden 128"
    yield Figure(name, _seconds(_FORWARD.format(**ADDITIVE, learning=False)), "s", "≤ 0.5")
    both = _seconds(_BOTH_WAYS.format(**ADDITIVE, learning=True))
    yield Figure("… forward and backward", both, "s", "≤ 0.5")
    by_sorted = _seconds(_FORWARD.format(**GAUSSIAN, learning=False))
    yield Figure("… Gaussian by `sorted`, whose kernels Numba loads", by_sorted, "s", "")


def _seconds(code: str) -> float:
    """The median over seven processes, after one that compiles what is not on disk yet."""
    process_seconds(code, rounds=1)
    return process_seconds(code, printed=True)
