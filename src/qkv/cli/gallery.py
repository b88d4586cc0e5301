"""`qkv gallery`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qkv.cli.app import app

if TYPE_CHECKING:
    from qkv.gallery.run import Shown

_SECONDS = 2.5  # between two lines where there is no terminal


@app.command(short_help="Run worked examples and write one offline page.")
def gallery(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Which examples to show; all if none is named."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the page goes.  [build/gallery]"),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page where there is a screen.")] = True,
) -> None:
    """Run worked examples and write one offline page: figures, numbers, text and code.

    With names, the examples are also shown here in full.
    """
    from qkv.gallery import EXAMPLES
    from qkv.gallery import console as terminal
    from qkv.gallery.run import check

    check(names or [], EXAMPLES)
    console, start = Console(), time.perf_counter()
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder; got the file {str(out)!r}")
    all_shown, path = _run(
        console, names or EXAMPLES, Path("build/gallery") if out is None else out
    )
    for shown in all_shown if names else []:
        terminal.show(console, shown)
        console.print()
    if not names:
        terminal.summary(console, all_shown)
    seconds = time.perf_counter() - start
    skipped = sum(bool(shown.skipped) for shown in all_shown)
    ran = len(all_shown) - skipped
    summary = f"{ran} example{'s' * (ran != 1)} in {seconds:.0f} s"
    console.print(
        f"{summary}{f', {skipped} skipped' if skipped else ''}. The page:", highlight=False
    )
    console.print(path.as_uri(), style="bold", soft_wrap=True, markup=False, highlight=False)
    if browser and not names and _has_screen():
        typer.launch(path.as_uri())


def _run(console: Console, names: list[str], folder: Path) -> tuple[list[Shown], Path]:
    """Run them under a progress bar, or with a line every few seconds outside of a terminal."""
    from qkv.gallery.run import run_all

    with _telling(console, len(names)) as tell:
        examples = run_all(names, tell)
        tell(len(names), "writing the page")
        from qkv.gallery.page import write

        return examples, write(examples, folder).resolve()


@contextlib.contextmanager
def _telling(console: Console, total: int) -> Iterator[Callable[[int, str], None]]:
    if console.is_terminal:
        columns = (
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda done, text: bar.update(task, completed=done, description=text[:44])
        return
    under_way, last_print = "", 0.0  # and when it was last said
    over = threading.Event()

    def tell(done: int, text: str) -> None:
        nonlocal under_way, last_print
        if ":" not in text or time.monotonic() - last_print > _SECONDS:
            console.print(f"[{done}/{total}] {text}", markup=False, highlight=False, soft_wrap=True)
            last_print = time.monotonic()
        under_way = f"[{done}/{total}] {text}"

    def remind() -> None:
        nonlocal last_print
        while not over.wait(0.25):
            if time.monotonic() - last_print > _SECONDS:
                last_print = time.monotonic()
                console.print(f"{under_way} …", markup=False, highlight=False, soft_wrap=True)

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        over.set()
        thread.join()


def _has_screen() -> bool:
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
