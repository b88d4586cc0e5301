"""An interactive picture of attention weights, for notebooks and as a file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.atomic_write import replacing
from qkv.optional_dependencies import require
from qkv.visualization.token_labels import WeightsLike, as_tokens, as_weights
from qkv.visualization.viewer.codec import pack
from qkv.visualization.viewer.page import frame, page

if TYPE_CHECKING:
    from qkv.visualization.viewer.widget import AttentionWidget

#: A page with more would be larger than 134 MB.
MOST_WEIGHTS = 2**26

_AXES = ("layers", "heads", "queries", "keys")


@runtime_checkable
class Recording(Protocol):
    """Layers one after the other, as :func:`qkv.record` gives them."""

    def stacked(self, entry: int = 0) -> Tensor: ...
    def __iter__(self) -> Iterator[Any]: ...  # of what has a name


@dataclass(frozen=True)
class View:
    """Weights in an interactive view: notebooks display it, `save` writes a page."""

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
        """The view as an anywidget, to be combined with other widgets."""
        require("anywidget", "view")
        from qkv.visualization.viewer.widget import AttentionWidget

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
    weights: WeightsLike | Recording,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[str] | None = None,
    entry: int | None = None,
    words: Sequence[int | None] | None = None,
    start: tuple[int, int | None] | None = None,
    title: str | None = None,
) -> View:
    """Weights (heads, n, m) or (n, m), of one layer or several, in an interactive view.

    >>> import torch, qkv
    >>> x = torch.randn(2, 5, 8)  # two heads
    >>> tokens = ["the", "dog", "wag", "##ged", "tail"]
    >>> qkv.view(qkv.weights(x, x), tokens, words=[0, 1, 2, 2, 3])
    View(shape=(1, 2, 5, 5))

    Args:
        weights: (n, m), (heads, n, m), or (layers, heads, n, m) with `layers`, or
            (batch, heads, n, m) or (layers, batch, heads, n, m) with `entry`; or what
            :func:`qkv.record` recorded.
        queries: the tokens of the queries.
        keys: the tokens of the keys; those of the queries unless given.
        layers: names of the layers, or their numbers.
        heads: names of the heads.
        entry: which entry of a batch to show; of a recording the first unless given.
        words: the number of the word each token belongs to, and None for special tokens, as
            tokenizers give it; with it, subwords can be merged and special tokens hidden.
        start: the layer and head to open on, by their places; a head of None is the mean of all.
            Of several layers or heads the first unless given.
        title: shown above.
    """
    if isinstance(weights, Recording):
        layers = _numbers([call.name for call in weights]) if layers is None else layers
        weights = weights.stacked(0 if entry is None else entry)
    elif entry is not None:
        weights = _entry(weights, entry)
    elif np.ndim(weights) == 4 and np.shape(weights)[0] > 1 and layers is None:
        raise ValueError(
            f"weights of shape {tuple(np.shape(weights))} may be of layers or of a batch: "
            "give layers= their names, or entry= of the batch"
        )
    count = math.prod(np.shape(weights))
    if count > MOST_WEIGHTS:
        raise ValueError(
            f"a view holds at most {MOST_WEIGHTS:,} weights; got {count:,}: "
            "choose fewer layers or heads"
        )
    array = _with_all_axes(weights)
    layer_count, head_count, n, m = array.shape
    rows = as_tokens(queries, n, "queries")
    columns = as_tokens(queries if keys is None else keys, m, "queries" if keys is None else "keys")
    data = {
        "title": title,
        "queries": rows,
        "keys": None if columns == rows else columns,
        "layers": _names(layers, layer_count, "layers"),
        "heads": _names(heads, head_count, "heads"),
        "words": None if words is None else _word_numbers(words, rows, columns),
        "start": None if start is None else _start(start, layer_count, head_count),
        "weights": pack(array),
    }
    return View(data, array.shape)


def _entry(weights: WeightsLike, entry: int) -> WeightsLike:
    """One entry of a batch: of (batch, heads, n, m), or of (layers, batch, heads, n, m)."""
    if isinstance(weights, Sequence) and isinstance(weights[0], Tensor):
        weights = torch.stack([*weights])  # of each layer, as Hugging Face models give them
    elif not isinstance(weights, Tensor):
        weights = np.asarray(weights)
    if weights.ndim not in (4, 5):
        raise ValueError(
            "entry is one of a batch, and weights must have shape (batch, heads, queries, keys) or "
            f"(layers, batch, heads, queries, keys); got {tuple(weights.shape)}"
        )
    size = weights.shape[-4]
    if not 0 <= entry < size:
        raise ValueError(f"entry must be between 0 and {size - 1}; got {entry}")
    return weights[..., entry, :, :, :]


def _with_all_axes(weights: WeightsLike) -> npt.NDArray[np.float64]:
    """(layers, heads, n, m), the first two of size 1 where they are missing."""
    missing = min(2, max(0, 4 - np.ndim(weights)))
    return np.expand_dims(as_weights(weights, *_AXES[missing:]), tuple(range(missing)))


def _names(names: Sequence[str | int] | None, count: int, name: str) -> list[str]:
    names_list = list(map(str, range(count) if names is None else names))
    if len(names_list) != count:
        raise ValueError(f"{name} must have {count} names, as weights has; got {len(names_list)}")
    return names_list


def _numbers(names: list[str]) -> list[str]:
    """`layers.0.self_attn`, `layers.1.self_attn`, … by the number that differs, 0, 1, …

    Names that differ by more than one number stay as they are.
    """
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(each) for each in parts}) != 1:
        return names
    differing = [column for column in zip(*parts, strict=True) if len(set(column)) > 1]
    return list(differing[0]) if len(differing) == 1 and differing[0][0].isdigit() else names


def _start(start: tuple[int, int | None], layers: int, heads: int) -> dict[str, str]:
    layer, head = start
    for name, place, count in (("layer", layer, layers), ("head", head or 0, heads)):
        if not 0 <= place < count:
            raise ValueError(f"start must name a {name} from 0 to {count - 1}; got {place}")
    return {"layer": str(layer), "head": "mean" if head is None and heads > 1 else str(head or 0)}


def _word_numbers(
    words: Sequence[int | None], queries: list[str], keys: list[str]
) -> list[int | None]:
    if queries != keys:
        raise ValueError("words serves where queries and keys are the same tokens; they differ")
    if len(words) != len(queries):
        raise ValueError(f"words must number {len(queries)} tokens; got {len(words)}")
    return [None if word is None else int(word) for word in words]
