"""`with record(model) as calls:` and what is undone at its end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import nn

from qkv.recording.call import Call, Calls, Pick
from qkv.recording.catch import Asked, Catch

#: Layers by number, or by a pattern of their names, as in ``"encoder.*.self_attn"``.
Layers: TypeAlias = Pick | str | Sequence[str]


@contextmanager
def record(
    model: nn.Module | None = None,
    *,
    rows: Pick | None = None,
    layers: Layers | None = None,
    heads: Pick | None = None,
) -> Iterator[Calls]:
    """Record what a torch model attends to, in the calls that this thread makes inside `with`.

    >>> import torch, qkv
    >>> model = torch.nn.TransformerEncoderLayer(64, 8, batch_first=True).eval()
    >>> with torch.no_grad(), qkv.record(model) as calls:
    ...     _ = model(torch.randn(2, 11, 64))
    >>> calls[0].name, calls[0].weights().shape
    ('self_attn', torch.Size([2, 8, 11, 11]))

    qkv's layers, torch's, ``scaled_dot_product_attention``, Hugging Face models under any of these
    and attention that is written out as softmax(q kᵀ) are caught. The model computes what it always
    does, by its fused kernels; kept are queries, keys and masks, and weights are computed when
    they are asked for. A compiled model runs uncompiled meanwhile.

    Args:
        model: the model; None records every call of attention in this thread, without names.
        rows: which queries `weights` gives where it is not told; all, if None.
        layers: which calls are kept: numbers, counted in the order in which modules first ask, or
            patterns of module paths.
        heads: which heads `weights` gives where it is not told.
    """
    _check(layers)
    recording = _Recording(rows, layers, heads, watched=model is not None)
    with ExitStack() as undo:
        for name, module in model.named_modules() if model is not None else ():
            recording.watch(name, module, undo)
        if "torch._dynamo" in sys.modules:  # else nothing was compiled, and it is slow to load
            # Code that is already compiled shows none of its steps.
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        undo.enter_context(Catch(recording.note))
        yield recording.calls


class _Recording:
    """What was asked so far, and where in the model we are."""

    def __init__(
        self, rows: Pick | None, layers: Layers | None, heads: Pick | None, watched: bool
    ) -> None:
        self.calls = Calls()
        self._rows, self._layers, self._heads = rows, layers, heads
        self._watched = watched
        self._path: list[str] = []
        self._numbers: dict[str | int, int] = {}
        self._thread = threading.get_ident()

    def watch(self, name: str, module: nn.Module, undo: ExitStack) -> None:
        """Know when `module` is at work, until `undo`."""

        def enter(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                self._path.append(name)

        def leave(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                self._path.pop()

        undo.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
        undo.callback(module.register_forward_hook(leave, always_call=True).remove)

    def note(self, asked: Asked) -> None:
        if self._watched and not self._path:
            return  # not by this model
        name = self._path[-1] if self._path else ""
        seen = len(self._numbers)
        layer = self._numbers.setdefault(name if self._watched else seen, seen)
        if _chosen(self._layers, name, layer):
            self.calls.append(Call(name, layer, *asked, rows=self._rows, heads=self._heads))


def _check(layers: Layers | None) -> None:
    if isinstance(layers, slice):
        several: list[Any] = [layers.start or 0, layers.stop or 0]
    else:
        several = [layers] if layers is None or isinstance(layers, (int, str)) else list(layers)
    for wanted in several:
        if isinstance(wanted, int) and wanted < 0:
            raise ValueError(
                f"layers are counted from 0, before it is known how many there are; got {wanted}"
            )


def _chosen(layers: Layers | None, name: str, layer: int) -> bool:
    if layers is None:
        return True
    if isinstance(layers, slice):
        return layer in range(*layers.indices(layer + 1))
    several: Sequence[Any] = [layers] if isinstance(layers, (int, str)) else layers
    return any(
        fnmatchcase(name, wanted) if isinstance(wanted, str) else wanted == layer
        for wanted in several
    )
