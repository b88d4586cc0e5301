"""What a compiled function takes: arrays and numbers, alone or in NamedTuples.

Annotations say it. `Real2` is an array of two axes in the type that a kernel is compiled for,
float32 or float64; the other types are fixed. `PerThread[Scratch]` is a NamedTuple of buffers,
of which every thread gets its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_type_hints

T = TypeVar("T")


class Kind(NamedTuple):
    """The type of an operand, and its number of axes; 0 for a number."""

    of: str
    axes: int


class Leaf(NamedTuple):
    """One operand: its own name, or its field's."""

    name: str
    kind: Kind


class Group(NamedTuple):
    """The fields of one NamedTuple."""

    cls: type
    leaves: tuple[Leaf, ...]


_PER_THREAD = object()
PerThread = Annotated[T, _PER_THREAD]

Real: TypeAlias = Annotated[Any, Kind("real", 0)]
Real1: TypeAlias = Annotated[Any, Kind("real", 1)]
Real2: TypeAlias = Annotated[Any, Kind("real", 2)]
Real3: TypeAlias = Annotated[Any, Kind("real", 3)]
Real4: TypeAlias = Annotated[Any, Kind("real", 4)]
Double1: TypeAlias = Annotated[Any, Kind("float64", 1)]
Double2: TypeAlias = Annotated[Any, Kind("float64", 2)]
Double3: TypeAlias = Annotated[Any, Kind("float64", 3)]
Double4: TypeAlias = Annotated[Any, Kind("float64", 4)]
Int1: TypeAlias = Annotated[Any, Kind("int64", 1)]
Int2: TypeAlias = Annotated[Any, Kind("int64", 2)]
Int3: TypeAlias = Annotated[Any, Kind("int64", 3)]
Int32_1: TypeAlias = Annotated[Any, Kind("int32", 1)]
Int32_2: TypeAlias = Annotated[Any, Kind("int32", 2)]
UInt16_1: TypeAlias = Annotated[Any, Kind("uint16", 1)]
Bool1: TypeAlias = Annotated[Any, Kind("bool", 1)]
Bool3: TypeAlias = Annotated[Any, Kind("bool", 3)]

_PLAIN = {int: Kind("int64", 0), float: Kind("float64", 0), bool: Kind("bool", 0)}


class Signature(NamedTuple):
    """The parameters of a compiled function: operands first, then its scratch, if it has any."""

    operands: tuple[Leaf | Group, ...]
    scratch: Group | None

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """All operands in the order of their words."""
        leaves: list[Leaf] = []
        for operand in self.operands:
            leaves += operand.leaves if isinstance(operand, Group) else [operand]
        return tuple(leaves)

    @property
    def is_generic(self) -> bool:
        """Whether it is compiled for float32 and for float64."""
        leaves = self.leaves + (self.scratch.leaves if self.scratch else ())
        return any(leaf.kind.of == "real" for leaf in leaves)


def signature(function: Callable[..., Any], skip: int = 0) -> Signature:
    """The signature of a function, without its first `skip` parameters."""
    hints = get_type_hints(function, include_extras=True)
    operands: list[Leaf | Group] = []
    scratch: Group | None = None
    for name in list(inspect.signature(function).parameters)[skip:]:
        hint = hints[name]
        if _PER_THREAD in getattr(hint, "__metadata__", ()):
            scratch = _group(hint.__origin__)
        elif hasattr(hint, "_fields"):
            operands.append(_group(hint))
        else:
            operands.append(Leaf(name, _kind(hint)))
    return Signature(tuple(operands), scratch)


def _group(cls: Any) -> Group:
    hints = get_type_hints(cls, include_extras=True)
    return Group(cls, tuple(Leaf(name, _kind(hints[name])) for name in cls._fields))


def _kind(hint: Any) -> Kind:
    kind = _PLAIN.get(hint) or next(
        (each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Kind)), None
    )
    if kind is None:
        raise TypeError(f"compiled code takes numbers and arrays; got the annotation {hint!r}")
    return kind
