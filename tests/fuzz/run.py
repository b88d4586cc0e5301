"""Search for a while, keep the seeds that fail: python tests/fuzz/run.py attention --minutes 30

Fuzzers are `attention`, `tables` and `files`; without a name all take turns. Every seed is one case
of its own, so a case is repeated by `--seed`; kept ones are repeated by `make test`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

FUZZERS = ("attention", "tables", "files")
KEPT = HERE / "kept"


def kept_seeds(fuzzer: str) -> list[int]:
    """The seeds that once failed."""
    files = sorted(KEPT.glob(f"{fuzzer}-*.json"))
    return [json.loads(file.read_text(encoding="utf-8"))["seed"] for file in files]


def keep(fuzzer: str, seed: int, error: BaseException) -> Path:
    """Write down a seed, and what it found."""
    what = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
    path = KEPT / f"{fuzzer}-{seed}.json"
    found = {"fuzzer": fuzzer, "seed": seed, "found": [line[:400] for line in what]}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def search(fuzzers: list[str], minutes: float, first: int, stop_after: int) -> int:
    """Run seeds from `first` on; the number that failed."""
    checks = {name: importlib.import_module(f"fuzz.{name}").check for name in fuzzers}
    end, told = time.monotonic() + 60 * minutes, 0.0
    cases = dict.fromkeys(fuzzers, 0)
    answers = dict.fromkeys(fuzzers, 0)
    failed, seed = 0, first
    while time.monotonic() < end and failed < stop_after:
        for name, check in checks.items():
            try:
                answers[name] += check(seed)
            except Exception as error:
                failed += 1
                print(f"\n{name} seed {seed} kept in {keep(name, seed, error).name}:", flush=True)
                traceback.print_exception(error, limit=-4, file=sys.stdout)
            cases[name] += 1
        seed += 1
        if time.monotonic() - told > 5:
            told = time.monotonic()
            _tell(cases, answers, failed, seed, end - told)
    _tell(cases, answers, failed, seed, 0.0)
    print()
    return failed


def _tell(
    cases: dict[str, int], answers: dict[str, int], failed: int, seed: int, left: float
) -> None:
    parts = [f"{name} {cases[name]:,} cases, {answers[name]:,} compared" for name in cases]
    start = "\r" if sys.stdout.isatty() else "\n"
    more = f"{processor_seconds() / 60:.1f} min of CPU, {left / 60:.1f} min left, next seed {seed}"
    print(f"{start}{'; '.join(parts)}; {failed} failed; {more}   ", end="", flush=True)


def processor_seconds() -> float:
    """Work done by this process and those that read files for it, also the ones still alive."""
    done = sum(os.times()[:4])
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            # Fields follow the name in brackets, which may hold spaces itself.
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            done += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fuzzers", nargs="*", choices=[*FUZZERS, []], default=[])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="repeat one case alone")
    parser.add_argument("--stop-after", type=int, default=100, help="failures")
    told = parser.parse_args()
    fuzzers = told.fuzzers or list(FUZZERS)
    if told.seed is not None:
        for name in fuzzers:
            importlib.import_module(f"fuzz.{name}").check(told.seed)
        return 0
    return int(search(fuzzers, told.minutes, told.first, told.stop_after) > 0)


if __name__ == "__main__":
    sys.exit(main())
