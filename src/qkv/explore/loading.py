"""Heavy packages, imported in the background after the first page; the page shows progress."""

from __future__ import annotations

import importlib
import threading
from typing import Any

#: What rooms need, in the order in which it is loaded: a name for people, and a module.
PARTS = [
    ("PyTorch", "torch"),
    ("attention", "qkv.pooling"),
    ("regression", "qkv.regression"),
    ("tables", "qkv.table"),
]


class Loading:
    """Imports in a background thread. Failures are reported by the room that needs the package."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, daemon=True)
                self._thread.start()

    def _load(self) -> None:
        for name, module in PARTS:
            try:
                importlib.import_module(module)
            except ImportError:
                continue
            finally:
                self._done.append(name)

    def progress(self) -> dict[str, Any]:
        done = len(self._done)
        return {
            "ready": done == len(PARTS),
            "done": done,
            "of": len(PARTS),
            "loading": PARTS[done][0] if done < len(PARTS) else None,
        }
