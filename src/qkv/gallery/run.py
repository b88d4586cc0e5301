"""Running examples one after the other, and what came of each."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qkv.gallery.parts import Figure, Part, Result, Step


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
    """Run one example; `tell` hears of each step that takes a while.

    A missing package skips the example and is its reason: the others need not wait for it.
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


def check(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise where an example is not known, before anything heavy is imported."""
    for name in names:
        if name not in known:
            raise ValueError(f"an example must be one of {', '.join(known)}; got {name!r}")


def _words(example: object) -> tuple[str, str, str]:
    """The title and the caption, which are the docstring, and what it cites."""
    title, _, caption = (inspect.getdoc(example) or "").partition("\n\n")
    return title, " ".join(caption.split()), getattr(example, "SOURCE", "")
