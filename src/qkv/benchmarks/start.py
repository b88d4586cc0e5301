"""Cold start: compilation, and the first call in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from qkv.benchmarks import Figure
from qkv.benchmarks.measure import process_seconds

# Neither the imports are timed nor the making of tensors; all else that a first call loads is.
_ATTEND = """
import time, torch, qkv
similarity = {similarity}
query, key, value = (torch.randn({size}, requires_grad={learning}) for _ in range(3))
torch.set_grad_enabled({learning})  # a similarity may have parameters that want gradients
start = time.perf_counter()
answer = qkv.attend(query, key, value, similarity=similarity, operator={operator!r})
if {learning}:
    answer.sum().backward()
print(time.perf_counter() - start)
"""
ADDITIVE = {"similarity": "qkv.Additive(128, 128, 128)", "size": "512, 128", "operator": "fused"}
LAPLACIAN = {"similarity": "qkv.Laplacian(1.0)", "size": "512, 8", "operator": "fused"}
SORTED = {"similarity": "qkv.Gaussian(0.1)", "size": "4096, 1", "operator": "sorted"}

_TABLE = """
import time, qkv
from qkv.table.samples import SALARIES
salaries = qkv.Database(SALARIES, key="gpa", value="salary")
start = time.perf_counter()
salaries.query(3.5, similarity="gaussian", bandwidth=0.1)
print(time.perf_counter() - start)
"""
_BEAM = """
import time, torch
from qkv.translate import RNNConfig, Search, Translator
from qkv.translate.search import search
model = Translator(RNNConfig(embedding=16, hidden=32), source=50, target=50).eval()
source, lengths = torch.randint(4, 50, (8, 9)), torch.full((8,), 9)
start = time.perf_counter()
search(model, source, lengths, Search(beam=5, max_length=12))
print(time.perf_counter() - start)
"""
# The drivers are there, as they are once any similarity was used or the package brought them.
_DRIVERS = """
import torch, qkv
x = torch.randn(9, 3, requires_grad=True)
qkv.attend(x, x, x, similarity=qkv.Euclidean(), operator="fused").sum().backward()
"""

_WARMUP = "import sys; sys.argv = ['qkv', 'warmup']; from qkv.cli import main; main()"


def measure() -> Iterator[Figure]:
    yield from _compilation()
    yield from first_calls()


def _compilation() -> Iterator[Figure]:
    for similarity, options in (("Laplacian", LAPLACIAN), ("additive", ADDITIVE)):
        for way, learning, limit in (("forward", False, "≤ 2"), ("and backward", True, "≤ 4")):
            with tempfile.TemporaryDirectory() as cache:
                _run(_DRIVERS, cache)
                code = _ATTEND.format(**options, learning=learning)
                elapsed = float(_run(code, cache))
            name = f"one similarity never compiled before, {similarity}, forward"
            yield Figure(name if way == "forward" else f"… {way}", elapsed, "s", limit)
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        _run(_WARMUP, cache)
        yield Figure("qkv warmup, nothing compiled", time.perf_counter() - start, "s", "≤ 75")
        start = time.perf_counter()
        _run(_WARMUP, cache)
        yield Figure("… all compiled", time.perf_counter() - start, "s", "")


def first_calls() -> Iterator[Figure]:
    """The first call of a kernel in a new process, when it was compiled before."""
    name = "first call in a new process, additive, 512², hidden 128"
    for work, code in (
        (name, _ATTEND.format(**ADDITIVE, learning=False)),
        ("… forward and backward", _ATTEND.format(**ADDITIVE, learning=True)),
        ("… Gaussian by `sorted`", _ATTEND.format(**SORTED, learning=False)),
        ("… a query to a table", _TABLE),
        ("… a beam search", _BEAM),
    ):
        process_seconds(code, rounds=1)  # compiles what is not on disk yet
        yield Figure(work, process_seconds(code, printed=True), "s", "≤ 0.25")


def _run(code: str, cache: str) -> str:
    environment = {**os.environ, "QKV_CACHE_DIR": cache}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout
