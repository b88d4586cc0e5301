"""Time and memory of a function, robust against a noisy machine."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def seconds(*functions: Callable[[], Any], least: float = 1.0, rounds: int = 5) -> list[float]:
    """The typical time of each function, measured in turns so that noise affects all equally.

    Each is called often enough to take about `least` seconds in total, over at least `rounds`
    rounds; the result is the median over rounds.
    """
    calls = []
    for function in functions:
        function()
        start = time.perf_counter()
        function()
        once = time.perf_counter() - start
        calls.append(max(1, round(least / rounds / max(once, 1e-7))))
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, count, of_function in zip(functions, calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                function()
            of_function.append((time.perf_counter() - start) / count)
    return [statistics.median(each) for each in times]


def least_seconds(*functions: Callable[[], Any], budget: float = 0.3) -> list[float]:
    """The least time of each function, called in turns for about `budget` seconds in all."""
    for function in functions:
        function()  # what is done once does not count
    least = [math.inf] * len(functions)
    rounds, end = 0, time.perf_counter() + budget
    while rounds < 5 or time.perf_counter() < end:
        for place, function in enumerate(functions):
            start = time.perf_counter()
            function()
            least[place] = min(least[place], time.perf_counter() - start)
        rounds += 1
    return least


def process_seconds(code: str, rounds: int = 7, printed: bool = False) -> float:
    """The typical time of a program, or the one that it prints itself: the median over rounds."""
    times = []
    # As most people have it: modules are compiled once, not in every process.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(rounds):
        start = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        times.append(float(result.stdout) if printed else time.perf_counter() - start)
    return statistics.median(times)


def peak_extra_bytes(function: Callable[[], Any]) -> int:
    """The peak memory of `function` beyond what was allocated before (Linux only)."""
    gc.collect()
    # What was freed but not given back would hide what the function takes.
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR.write_text("5")  # resets the high-water mark
    before = _high_water()
    function()
    return max(0, _high_water() - before)


def can_measure_memory() -> bool:
    return _CLEAR.exists()


def _high_water() -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")
