"""The date translator: trained on first use, in a separate process, and cached."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

from qkv.atomic_write import temporary_name
from qkv.user_cache import user_cache

Stage = Literal["none", "training", "ready", "failed"]

#: Pairs and epochs: what `qkv translate train --demo dates` takes.
PAIRS, EPOCHS = 15_000, 3

#: Points of the curve that the page is given.
MOST_POINTS = 400


def kept_at() -> Path:
    """Where the translator is kept between one use and the next."""
    return user_cache() / "explore" / "dates"


class Dates:
    """One training at a time; its curve while it runs, its folder once it is done."""

    def __init__(
        self, folder: Path | None = None, pairs: int = PAIRS, epochs: int = EPOCHS
    ) -> None:
        self._folder, self._pairs, self._epochs = folder, pairs, epochs
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._curve: list[dict[str, float]] = []
        self._exact: float | None = None
        self._failed = False

    @property
    def folder(self) -> Path:
        return kept_at() if self._folder is None else self._folder

    @property
    def stage(self) -> Stage:
        if self._process is not None:
            return "training"
        if (self.folder / "config.json").is_file():
            return "ready"
        return "failed" if self._failed else "none"

    def start(self) -> None:
        """Begin a training, unless one runs or is done."""
        with self._lock:
            if self.stage in ("training", "ready"):
                return
            self._curve, self._exact, self._failed = [], None, False
            half = temporary_name(self.folder)
            half.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            threads = str(max(1, (os.cpu_count() or 2) - 1))
            command = [sys.executable, "-m", "qkv.explore.training", str(half)]
            self._process = subprocess.Popen(
                [*command, str(self._pairs), str(self._epochs)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": threads},
            )
            args = (self._process, half)
            threading.Thread(target=self._watch, args=args, daemon=True).start()

    def _watch(self, process: subprocess.Popen[str], half: Path) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if "exact" in event:
                self._exact = float(event["exact"])
            else:
                self._curve.append(event)
        ended = process.wait()
        process.stdout.close()
        with self._lock:
            if ended == 0:
                half.replace(self.folder)  # there whole or not at all
            shutil.rmtree(half, ignore_errors=True)
            self._failed = ended != 0
            self._process = None

    def progress(self) -> dict[str, Any]:
        curve = self._curve[:: max(1, -(-len(self._curve) // MOST_POINTS))]
        return {
            "stage": self.stage,
            "share": self._curve[-1]["share"] if self._curve else 0.0,
            "steps": [point["step"] for point in curve],
            "losses": [point["loss"] for point in curve],
            "exact": self._exact,
        }

    def stop(self) -> None:
        """Stop a running training; its result is discarded."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
