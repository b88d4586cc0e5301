"""Which models of transformers ask its interface for attention, and which compute it themselves.

A model that computes attention itself never calls ours, and misreads the masks that are made for
it. What a class says that it supports does not tell the two apart, so its code is read: what the
functions of its layers call. A second look, at the first forward, sees who really asked.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, ClassVar

import torch
from torch import nn

_SOFTMAX = {"softmax", "Softmax"}
_PRODUCT = {"matmul", "bmm", "baddbmm", "einsum"}
_WHOLE = {"scaled_dot_product_attention", "multi_head_attention_forward"}
#: Among the names that code uses, in place of those that stand for transformers' interface.
_INTERFACE = "the attention interface"


def refusal_of_class(kind: type[nn.Module]) -> str | None:
    """Why no model of this class can be served, as its source file says; None: it may be."""
    files = [base.__module__ for base in kind.__mro__ if ".modeling_" in base.__module__]
    for name in dict.fromkeys(files):
        table = _table_of(name)
        if table is not None:
            return f"it takes its attention from its own {table}"
        layers = list(_layers_of(name))
        attention = [layer for layer in layers if "Attention" in layer.__name__]
        if attention and not any(map(asks_interface, layers)):
            example = next(filter(computes_itself, attention), attention[0])
            return f"its {example.__name__} computes attention itself"
    return None


def refusal_of_model(model: nn.Module) -> str | None:
    """Why this very model cannot be served, layer by layer; None: all its attention may be."""
    computing = [
        (path, layer) for path, layer in model.named_modules() if computes_itself(type(layer))
    ]
    if not computing:
        return None
    path, layer = computing[0]
    more = f", and {len(computing) - 1} more" if len(computing) > 1 else ""
    return f"its layer {path} ({type(layer).__name__}) computes attention itself{more}"


def asks_interface(kind: type[nn.Module]) -> bool:
    """Whether a layer's code asks transformers' interface for attention."""
    return _code_of(kind).asks_interface


def computes_itself(kind: type[nn.Module]) -> bool:
    """Whether a layer's code multiplies and takes a softmax, and asks nobody.

    A head that pools a sequence into one vector is none of the model's layers, and left alone.
    """
    return _code_of(kind).computes_attention and "Pool" not in kind.__name__


class FirstForward:
    """Looks at a model once, at its first forward, when all its layers are there.

    Layers that compute attention themselves are refused before anything is computed; layers that
    could ask for attention, ran and did not are told at the end.
    """

    #: The looks that are under way; attention tells each who asked.
    under_way: ClassVar[list[FirstForward]] = []

    def __init__(self, model: nn.Module, implementation: str) -> None:
        self._implementation = implementation
        self._asked: set[nn.Module] = set()
        self._ran: dict[nn.Module, str] = {}
        self._hooks = [model.register_forward_pre_hook(self._start)]

    def note(self, layer: nn.Module) -> None:
        """`layer` asks for attention."""
        self._asked.add(layer)

    def _start(self, model: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # a graph has no place for hooks that come and go
        self._unhook()
        check(model, self._implementation, refusal_of_model(model))
        for path, layer in model.named_modules():
            if asks_interface(type(layer)):
                runs = functools.partial(self._runs, path)
                self._hooks.append(layer.register_forward_pre_hook(runs))
        self._hooks.append(model.register_forward_hook(self._end, always_call=True))
        self.under_way.append(self)

    def _runs(self, path: str, layer: nn.Module, args: Any) -> None:
        self._ran[layer] = path

    def _end(self, model: nn.Module, args: Any, output: Any) -> None:
        self._unhook()
        self.under_way.remove(self)
        silent = [path for layer, path in self._ran.items() if layer not in self._asked]
        if silent and output is not None:
            check(model, self._implementation, f"its layer {silent[0]} ran without asking for it")

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def check(model: nn.Module, implementation: str, reason: str | None) -> None:
    """Refuse the model where there is a reason to."""
    if reason is not None:
        raise ValueError(
            f"{type(model).__name__} cannot use attn_implementation={implementation!r}: {reason}; "
            "use 'eager'"
        )


def _layers_of(module: str) -> Iterator[type[nn.Module]]:
    """The layers that a Python module defines, and those of other models that it builds on."""
    for each in vars(sys.modules[module]).values():
        if (
            inspect.isclass(each)
            and issubclass(each, nn.Module)
            and ".modeling_" in each.__module__
        ):
            yield each


def _table_of(module: str) -> str | None:
    """The name of a table from implementations to layers, in which ours cannot be found."""
    for name, each in vars(sys.modules[module]).items():
        if isinstance(each, dict) and inspect.isclass(each.get("eager")):
            return name
    return None


class _Code:
    """All code that the methods of a class run, as far as its own file has it."""

    def __init__(self, kind: type[nn.Module]) -> None:
        from transformers import PreTrainedModel

        self.asks_interface = False
        self._names: set[str] = set()
        self._codes: set[CodeType] = set()
        for base in kind.__mro__:
            if base.__module__.startswith("torch.") or base in PreTrainedModel.__mro__:
                continue  # that all models have in common
            for member in vars(base).values():
                self._add(getattr(member, "__func__", member))

    @property
    def computes_attention(self) -> bool:
        if self.asks_interface:
            return False
        if self._names & _WHOLE:
            return True
        return bool(self._names & _SOFTMAX) and (
            bool(self._names & _PRODUCT) or any(map(_multiplies, self._codes))
        )

    def _add(self, function: Any) -> None:
        from transformers import AttentionInterface

        function = inspect.unwrap(function) if callable(function) else function
        if not isinstance(function, FunctionType) or function.__code__ in self._codes:
            return
        for code in _nested(function.__code__):
            self._codes.add(code)
            self._names.update(code.co_names)
            for name in code.co_names:
                meant = function.__globals__.get(name)
                if isinstance(meant, AttentionInterface):
                    self.asks_interface = True
                elif isinstance(meant, FunctionType) and meant.__module__ == function.__module__:
                    self._add(meant)


_CODES: dict[type[nn.Module], _Code] = {}


def _code_of(kind: type[nn.Module]) -> _Code:
    if kind not in _CODES:
        _CODES[kind] = _Code(kind)
    return _CODES[kind]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _multiplies(code: CodeType) -> bool:
    return any(step.argrepr == "@" for step in dis.get_instructions(code))
