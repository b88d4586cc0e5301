"""Mixed calls on four threads, with a changing number of torch's threads: nothing grows.

python tests/fuzz/soak.py --minutes 60
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import qkv  # noqa: E402

THREADS = 4
#: What is loaded and compiled at first does not count: so many calls come before.
FIRST_CALLS = 1000
#: Memory may grow by so much after the first minute: allocators keep what they were given.
MOST_GROWTH = 100 * 2**20


def call(rng: np.random.Generator, database: qkv.Database) -> None:
    """One question of some kind; its answer must be finite."""
    n, d = int(rng.integers(1, 200)), int(rng.choice([1, 8, 64]))
    tokens = [torch.randn(2, n, d, requires_grad=True) for _ in range(3)]
    match int(rng.integers(9)):
        case 0:
            answer = qkv.attend(*tokens, mask=qkv.mask.Causal())
        case 1:
            answer = qkv.attend(*tokens, similarity="gaussian")
        case 2:
            answer = qkv.attend(*tokens, similarity="laplacian", mask=qkv.mask.Window(5, 5))
        case 3:
            answer = qkv.attend(*tokens, mask=qkv.mask.TopK(3))
        case 4:
            answer = qkv.attend(*tokens, similarity=_city_block)
        case 5:
            answer = qkv.attend(*tokens, similarity=qkv.similarity.Additive(d, d, 16))
        case 6:
            lengths = qkv.mask.Lengths(torch.from_numpy(rng.integers(1, n + 1, 2)))
            answer = qkv.attend(*tokens, similarity="euclidean", mask=lengths, dropout=0.1)
        case 7:
            keys, targets = rng.normal(size=(n, d)), rng.normal(size=n)
            model = qkv.NadarayaWatsonRegressor(bandwidth=0.5, empty="nearest").fit(keys, targets)
            assert np.isfinite(model.predict(keys)).all()
            return
        case _:
            found = database.query(float(rng.normal()), similarity="gaussian", bandwidth=0.5)
            assert np.isfinite(found.value)
            return
    answer.sum().backward()
    assert all(bool(each.grad.isfinite().all()) for each in tokens)  # type: ignore[union-attr]


def _city_block(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def soak(seconds: float, warm: float) -> tuple[int, int, int]:
    """Calls that were made, bytes and file handles that were gained after `warm` seconds, and
    FIRST_CALLS."""
    import pandas as pd

    rng = np.random.default_rng(0)
    table = pd.DataFrame({"k": rng.normal(size=2000), "v": rng.normal(size=2000)})
    database = qkv.Database(table, key="k", value="v")
    end, calls, wrong = time.monotonic() + seconds, [0] * THREADS, []

    def work(which: int) -> None:
        own = np.random.default_rng(which)
        try:
            while time.monotonic() < end and not wrong:
                call(own, database)
                calls[which] += 1
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    start, before, told = time.monotonic(), None, time.monotonic()
    while any(thread.is_alive() for thread in threads):
        torch.set_num_threads(int(rng.integers(1, 4)))
        time.sleep(0.5)
        warmed = time.monotonic() - start > warm and sum(calls) >= FIRST_CALLS
        if before is None and warmed:
            before = resident(), handles()
        if time.monotonic() - told > 60:
            told = time.monotonic()
            left = (end - told) / 60
            print(f"{sum(calls):,} calls, {resident() >> 20} MB, {handles()} files open, "
                  f"{left:.0f} min left", flush=True)  # fmt: skip
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    assert before is not None
    return sum(calls), resident() - before[0], handles() - before[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    told = parser.parse_args()
    calls, grown, files = soak(60 * told.minutes, min(60.0, 30 * told.minutes))
    print(f"{calls:,} calls; memory grew by {grown / 2**20:.1f} MB, open files by {files}")
    return int(grown > MOST_GROWTH or files > 0)


if __name__ == "__main__":
    sys.exit(main())
