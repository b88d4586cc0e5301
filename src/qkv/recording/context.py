"""`with record(model) as calls:` and what is undone at its end."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from qkv.memory import keep_freed_pages
from qkv.recording.call import Call, Calls, Missed, Pick, WeighedCall
from qkv.recording.interceptor import CallArguments, Interceptor
from qkv.similarity import Dot

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

    qkv's layers, torch's, ``scaled_dot_product_attention``, FlexAttention, Hugging Face models
    under any of these and attention that is written out as softmax(q kᵀ) are caught. The model
    computes what it always does, by its fused kernels; queries, keys and masks are kept, and
    weights are computed when they are asked for. Of formulas that are not understood the weights
    are kept. A compiled model runs uncompiled meanwhile.

    What looks like attention and is not recorded is named in ``calls.missed`` and in a warning at
    the end: a softmax over something square, and modules called Attention that asked for none.

    Args:
        model: the model; None records every call of attention in this thread, without names.
        rows: which queries `weights` gives where it is not told; all, if None.
        layers: which calls are kept: numbers, counted in the order in which modules first ask, or
            patterns of module paths.
        heads: which heads `weights` gives where it is not told.
    """
    _check(layers)
    keep_freed_pages()  # what a recording kept serves the next one
    recording = _Recording(rows, layers, heads, model)
    with ExitStack() as undo:
        for module in model.modules() if model is not None else ():
            if _ATTENTION.search(type(module).__name__):
                recording.watch(module, undo)
        if _COMPILERS & sys.modules.keys():  # else nothing was compiled, and it is slow to load
            # Code that is already compiled shows none of its steps.
            undo.enter_context(_UNCOMPILED)
        undo.enter_context(Interceptor(recording.note, recording.miss))
        yield recording.calls
    if recording.calls.missed:
        told = "; ".join(f"{name or 'a call'}: {why}" for name, why in recording.calls.missed[:5])
        more = f"; and {len(recording.calls.missed) - 5} more" * (len(recording.calls.missed) > 5)
        warnings.warn(
            f"not all attention was recorded, see calls.missed: {told}{more}", stacklevel=3
        )


class _Uncompiled:
    """While any thread records, all run what is compiled as it was written: torch knows one stance.

    The first to begin sets it, and the last to end puts back what was, whoever that is.
    """

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0
        self._undo = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._count == 0:
                self._undo.enter_context(torch.compiler.set_stance("force_eager"))
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._undo.close()


_UNCOMPILED = _Uncompiled()
_COMPILERS = {"torch._dynamo", "torch.nn.attention.flex_attention"}

#: Names of modules that compute attention, as people give them.
_ATTENTION = re.compile(r"(Attention|Attn)(V?\d+)?$")


class _Recording:
    """What was asked so far, and where in the model we are."""

    def __init__(
        self, rows: Pick | None, layers: Layers | None, heads: Pick | None, model: nn.Module | None
    ) -> None:
        self.calls = Calls()
        self._rows, self._layers, self._heads = rows, layers, heads
        self._names: dict[int, str] | None = None  # of the model's modules
        if model is not None:
            self._names = {id(module): name for name, module in model.named_modules()}
        self._heard = 0  # of attention so far, recorded or missed
        self._numbers: dict[str | int, int] = {}
        self._thread = threading.get_ident()

    def watch(self, module: nn.Module, undo: ExitStack) -> None:
        """Know whether a module that should ask for attention does, until `undo`."""
        heard_before: list[int] = []

        def enter(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                heard_before.append(self._heard)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() == self._thread:
                nothing = heard_before.pop() == self._heard
                if nothing and output is not None:
                    self.miss(f"{type(module).__name__} ran without a recognised attention call")

        undo.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
        undo.callback(module.register_forward_hook(leave, always_call=True).remove)

    def _asking(self) -> str | None:
        """The path of the innermost module of the model that is at work; None: there is none.

        Attention is asked for a few times in a pass, so the frames of the stack are looked through
        then: hooks on all modules would cost each of their calls something.
        """
        if self._names is None:
            return ""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_varnames[:1] == ("self",):
                name = self._names.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return name
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def note(self, asked: CallArguments | Tensor) -> None:
        name = self._asking()
        if name is None:
            return  # not by this model
        self._heard += 1
        seen = len(self._numbers)
        layer = self._numbers.setdefault(seen if self._names is None else name, seen)
        if not _chosen(self._layers, name, layer):
            return
        kind: type[Call] = Call
        if isinstance(asked, Tensor):
            kind, asked = WeighedCall, CallArguments(asked, asked, Dot(), None)
        self.calls.append(kind(name, layer, *asked, rows=self._rows, heads=self._heads))

    def miss(self, reason: str) -> None:
        name = self._asking()
        if name is None:
            return
        self._heard += 1
        missed = Missed(name, reason)
        if missed not in self.calls.missed:
            self.calls.missed.append(missed)


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
