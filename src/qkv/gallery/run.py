"""Run examples one after the other, and collect their results."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from qkv.gallery.parts import Figure, Part, Result, Step

#: They show how long something takes, and have the cores to themselves.
_TIMED = ("similarities", "sparse", "own_similarity")
#: It trains on one core for as long as all others take together.
_LONGEST = "dates"


@dataclass(frozen=True)
class Shown:
    """One example that ran: its words, its parts, and how long it took."""

    name: str
    title: str
    caption: str
    source: str  # the equations or sections that it shows
    parts: list[Part] = field(default_factory=list)
    seconds: float = 0.0
    skipped: str = ""  # why it did not run

    @property
    def result(self) -> str:
        return next((part.text for part in self.parts if isinstance(part, Result)), "")

    @property
    def figures(self) -> list[Figure]:
        return [part for part in self.parts if isinstance(part, Figure)]


def run(name: str, tell: Callable[[str], None] = lambda _: None) -> Shown:
    """Run one example; `tell` is called for each step that takes a while.

    A missing package skips the example and is recorded as the reason.
    """
    start, parts = time.perf_counter(), []
    example = None
    try:
        example = importlib.import_module(f"qkv.gallery.{name}")
        for part in example.parts():
            if isinstance(part, Step):
                tell(part.text)
            else:
                parts.append(part)
    except ImportError as error:
        title, caption, source = _words(example)
        return Shown(name, title or name, caption, source, skipped=str(error))
    title, caption, source = _words(example)
    return Shown(name, title, caption, source, parts, time.perf_counter() - start)


def run_all(names: Sequence[str], tell: Callable[[int, str], None]) -> list[Shown]:
    """Run examples; `tell` is called with how many are done, and the current step."""
    shown_by_name: dict[str, Shown] = {}

    def take(name: str) -> None:
        tell(len(shown_by_name), name)
        shown_by_name[name] = run(name, lambda step: tell(len(shown_by_name), f"{name}: {step}"))

    for name in names:
        if name in _TIMED:
            take(name)
    rest = [name for name in names if name not in shown_by_name]
    with _in_background(_LONGEST if len(rest) > 1 and _LONGEST in rest else None) as ready:
        for name in rest:
            if name != _LONGEST or ready is None:
                take(name)
        if ready is not None:
            tell(len(shown_by_name), f"{_LONGEST}: training the translator")
            shown_by_name[_LONGEST] = ready()
    return [shown_by_name[name] for name in names]


@contextlib.contextmanager
def _in_background(name: str | None) -> Iterator[Callable[[], Shown] | None]:
    """Run an example in another process; the yielded function waits for its result."""
    if name is None:
        yield None
        return
    spawning = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(1, spawning, signal.signal, (signal.SIGINT, signal.SIG_DFL))
    with pool:  # Ctrl-C ends the process without a word
        yield pool.submit(run, name).result


def check(names: Sequence[str], examples: Sequence[str]) -> None:
    """Raise where an example is not known, before anything heavy is imported."""
    for name in names:
        if name not in examples:
            raise ValueError(f"an example must be one of {', '.join(examples)}; got {name!r}")


def _words(example: object) -> tuple[str, str, str]:
    """The title and the caption, which are the docstring, and what it cites."""
    title, _, caption = (inspect.getdoc(example) or "").partition("\n\n")
    return title, " ".join(caption.split()), getattr(example, "SOURCE", "")
