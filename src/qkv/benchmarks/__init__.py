"""Speed and memory against peers. Figures depend on the machine, so ratios within one run."""

from __future__ import annotations

import importlib
import json
import operator
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from qkv.atomic_write import replacing

#: Each is a module here with measure() -> Iterator[Figure], and perhaps PARTS of it by name.
SUITES = [
    "core",
    "start",
    "fused",
    "formula",
    "positions",
    "regress",
    "table",
    "layers",
    "translate",
    "explore",
    "noregret",
    "crossover",
    "cluster",
    "models",
]


class Figure(NamedTuple):
    """One measured line: the work, the figure, and its target."""

    work: str
    measured: float
    unit: str
    limit: str  # "≤ 1.05", or "" where nothing is wanted
    note: str = ""

    @property
    def met(self) -> bool | None:
        if not self.limit:
            return None
        sign, bound = self.limit.split()
        holds = {"≤": operator.le, "<": operator.lt, "≥": operator.ge}[sign]
        return bool(holds(self.measured, float(bound)))


def run(suite: str, console: Console, json_file: Path | None, part: str | None = None) -> None:
    """Measure a suite, or a part; print each figure, and write all to a file if given."""
    if suite not in SUITES:
        raise ValueError(f"a benchmark must be one of {', '.join(SUITES)}; got {suite!r}")
    import torch

    machine = f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    figures: list[Figure] = []
    module = importlib.import_module(f"qkv.benchmarks.{suite}")
    parts: dict[str, Callable[[], Iterator[Figure]]] = getattr(module, "PARTS", {})
    if part is not None and part not in parts:
        raise ValueError(
            f"part of {suite} must be one of {', '.join(parts)}; got {part!r}"
            if parts
            else f"{suite} is measured as a whole; got part {part!r}"
        )
    measure = module.measure() if part is None else parts[part]()
    with console.status(f"qkv bench {suite}") as status:
        for figure in measure:
            figures.append(figure)
            if console.is_terminal:
                status.update(f"{len(figures)} measured; last: {figure.work}")
            else:  # a log is to show how far it is
                console.print(f"{figure.work}: {figure.measured:.3g} {figure.unit}", soft_wrap=True)
            if json_file is not None:  # as they come, so that none is lost
                rows = [{**each._asdict(), "met": each.met} for each in figures]
                text = json.dumps({"suite": suite, "machine": machine, "figures": rows}, indent=1)
                with replacing(json_file) as half:
                    half.write_text(text + "\n", encoding="utf-8")
    table = Table("work", "measured", "wanted", "", title=f"{suite} — {machine}")
    for figure in figures:
        mark = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[figure.met]
        measured = f"{figure.measured:.3g} {figure.unit}"
        table.add_row(figure.work, measured, figure.limit, f"{mark} {figure.note}".strip())
    console.print(table)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
