"""`qkv warmup`."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from qkv.cli.app import app

_SECONDS = 2.0  # between two lines where there is no terminal


@app.command(short_help="Compile all kernels ahead.")
def warmup() -> None:
    """Compile all kernels ahead, so that no first call has to wait."""
    console, start = Console(), time.perf_counter()
    if not console.is_terminal:
        console.print("looking for kernels to compile")  # before slow imports
    from qkv.warmup import warmup as compile_kernels

    total = 0
    if console.is_terminal:
        columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task("", total=None)
            for done, total, last in compile_kernels():
                bar.update(task, description=last, completed=done, total=total)
    else:
        last_print = 0.0
        for done, total, last in compile_kernels():
            if time.perf_counter() - last_print >= _SECONDS:
                last_print = time.perf_counter()
                console.print(f"{done} of {total} kernels compiled {last}", soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(
        f"{total} kernels compiled in {seconds:.0f} s" if total else "all kernels are compiled"
    )
