"""What kernels can say beyond Python and NumPy; `lowering.py` says it in LLVM's words.

They are only declared here, so that modules with kernels can be imported without Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Builtin:
    """A function that only compiled code can call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.name} is for compiled code only")


@Builtin
def exp(x: Any) -> Any:
    """e to the x, for x at most 88 (float32) or 709 (float64); tiny results become 0.

    A call to libm inside a loop keeps LLVM from vectorising it and costs 20 to 30 times as much,
    so this is a range reduction, a polynomial and an exponent set by a bit cast.
    """


@Builtin
def ordered(x: Any) -> Any:
    """An integer that compares as x does; NaN lies beyond the infinities."""


@Builtin
def unordered(bits: Any) -> Any:
    """The number that `ordered` made this integer of."""


@Builtin
def finite_divide(numerator: Any, denominator: Any) -> Any:
    """A quotient of finite numbers.

    Only with `ninf` does LLVM use the machine's reciprocal estimate and a Newton step, three
    times as fast as a division. Callers check the range first; NaN still passes through.
    """


@Builtin
def noinline() -> None:
    """Have LLVM compile the function that calls this on its own, with the widest vectors.

    Inlined into a driver, its loops would lose what LLVM knows of their arrays. And for
    processors with AVX-512 LLVM prefers vectors of half the width, a caution that costs these
    loops a third of their speed; elsewhere that changes nothing.
    """


@Builtin
def noalias() -> None:
    """Promise that the arrays which the calling function is given do not overlap.

    Otherwise LLVM checks that before each vectorised loop, and gives up where there are many.
    """


@Builtin
def in_lines(buffer: Any, width: Any) -> Any:
    """The memory of a contiguous buffer (rows, …) as as many shorter lines, close together."""


@Builtin
def invoke(address: Any, arguments: Any) -> None:
    """Call the `callback` at an address with a tuple of numbers and contiguous arrays."""
