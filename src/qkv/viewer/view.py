"""An interactive picture of attention weights, for notebooks and as a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkv.disk import replacing
from qkv.extras import need
from qkv.labelled import WeightsLike, as_tokens, as_weights
from qkv.viewer.packing import pack
from qkv.viewer.page import frame, page

if TYPE_CHECKING:
    from qkv.viewer.widget import AttentionWidget

#: A page of more would take over 134 MB.
MOST_WEIGHTS = 2**26

_AXES = ("layers", "heads", "queries", "keys")


@dataclass(frozen=True)
class View:
    """Weights to look at: the last line of a notebook's cell shows it, `save` writes a page."""

    data: dict[str, Any] = field(repr=False)  # what static/view.js is given
    shape: tuple[int, ...]  # layers, heads, queries, keys

    def save(self, path: str | Path) -> None:
        """Write one HTML file that holds everything and works with the network off."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"a view's name must end in .html; got {path.name!r}")
        with replacing(path) as half:
            half.write_text(page(self.data), encoding="utf-8")

    def widget(self) -> AttentionWidget:
        """The view as an anywidget, to be placed beside other widgets."""
        need("anywidget", "view")
        from qkv.viewer.widget import AttentionWidget

        return AttentionWidget(data=self.data)

    def _repr_html_(self) -> str:
        return frame(self.data)

    def _repr_mimebundle_(self, **_: object) -> Any:
        try:
            widget = self.widget()
        except ImportError:
            return {"text/plain": repr(self), "text/html": self._repr_html_()}
        return widget._repr_mimebundle_()


def view(
    weights: WeightsLike,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    layers: Sequence[str] | None = None,
    heads: Sequence[str] | None = None,
    words: Sequence[int | None] | None = None,
    title: str | None = None,
) -> View:
    """Weights (layers, heads, n, m), (heads, n, m) or (n, m) to look at, hover and search.

    `keys` are the queries' tokens unless given. `words` has the number of the word each token
    belongs to, and None for special tokens, as tokenizers give it; with it, subwords can be merged
    and special tokens hidden.

    >>> import torch, qkv
    >>> x = torch.randn(2, 5, 8)  # two heads
    >>> tokens = ["the", "dog", "wag", "##ged", "tail"]
    >>> qkv.view(qkv.weights(x, x), tokens, words=[0, 1, 2, 2, 3])
    View(shape=(1, 2, 5, 5))
    """
    count = math.prod(np.shape(weights))
    if count > MOST_WEIGHTS:
        raise ValueError(
            f"a view holds at most {MOST_WEIGHTS:,} weights; got {count:,}: "
            "choose fewer layers or heads"
        )
    found = _with_all_axes(weights)
    layer_count, head_count, n, m = found.shape
    rows = as_tokens(queries, n, "queries")
    columns = as_tokens(queries if keys is None else keys, m, "queries" if keys is None else "keys")
    data = {
        "title": title,
        "queries": rows,
        "keys": None if columns == rows else columns,
        "layers": _names(layers, layer_count, "layers"),
        "heads": _names(heads, head_count, "heads"),
        "words": None if words is None else _word_numbers(words, rows, columns),
        "weights": pack(found),
    }
    return View(data, found.shape)


def _with_all_axes(weights: WeightsLike) -> npt.NDArray[np.float64]:
    """(layers, heads, n, m), the first two of size 1 where they are missing."""
    missing = min(2, max(0, 4 - np.ndim(weights)))
    return np.expand_dims(as_weights(weights, *_AXES[missing:]), tuple(range(missing)))


def _names(names: Sequence[str] | None, count: int, name: str) -> list[str]:
    found = list(map(str, range(count) if names is None else names))
    if len(found) != count:
        raise ValueError(f"{name} must have {count} names, as weights has; got {len(found)}")
    return found


def _word_numbers(
    words: Sequence[int | None], queries: list[str], keys: list[str]
) -> list[int | None]:
    if queries != keys:
        raise ValueError("words serves where queries and keys are the same tokens; they differ")
    if len(words) != len(queries):
        raise ValueError(f"words must number {len(queries)} tokens; got {len(words)}")
    return [None if word is None else int(word) for word in words]
