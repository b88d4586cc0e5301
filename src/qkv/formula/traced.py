"""What a formula is handed in place of its tokens, so that it shows what it does with them.

What depends on queries alone or on keys alone is computed as it stands, by torch, once for each
token. What depends on both is not computed: a :class:`Session` is told of it.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

QUERY, KEY = 1, 2
PAIR = QUERY | KEY

_HERE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_NOTHING = torch.empty(0)


class RefusedError(Exception):
    """Why a formula has no program: the operation, and the line of the formula."""


def refuse(reason: str) -> RefusedError:
    """The refusal, which names the line that the formula has come to."""
    return RefusedError(f"{reason}{current_line()}")


def current_line() -> str:
    """The line of the formula that is being run, in brackets."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_HERE, _TORCH)):
        frame = frame.f_back
    return "" if frame is None else _shown(frame.f_code.co_filename, frame.f_lineno)


def line_of(error: BaseException) -> str:
    """The line of the formula in which an error arose, in brackets."""
    step, last = error.__traceback__, None
    while step is not None:
        if not step.tb_frame.f_code.co_filename.startswith((_HERE, _TORCH)):
            last = step
        step = step.tb_next
    return "" if last is None else _shown(last.tb_frame.f_code.co_filename, last.tb_lineno)


def _shown(name: str, number: int) -> str:
    if "/qkv/" in name:  # a line of the package does not help the author of a formula
        return ""
    source = linecache.getline(name, number).strip()
    return f" ({Path(name).name}:{number}{f': {source}' if source else ''})"


class Traced(Tensor):
    """A tensor in name only: `held` holds a token's numbers, a pair has none."""

    session: Session
    side: int  # QUERY, KEY or both
    held: Tensor | None
    number: int  # equal where the same was computed
    sizes: tuple[int, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = leaves(args)
        if kwargs:
            operands += leaves(kwargs)
        if not operands:
            raise RefusedError("a traced tensor was used where none can be found")
        side = 0
        for each in operands:
            side |= each.side
        return operands[0].session.call(func, args, kwargs, side)


def leaves(tree: Any) -> list[Traced]:
    """The traced tensors in the arguments of a call."""
    traced = []
    for each in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(each, Traced):
            traced.append(each)
        elif isinstance(each, (tuple, list, dict)):
            traced += leaves(each)
    return traced


def _unwrapped(tree: Any) -> Any:
    if isinstance(tree, Traced):
        return tree.held
    if type(tree) in (tuple, list):
        return type(tree)(map(_unwrapped, tree))
    if type(tree) is dict:
        return {name: _unwrapped(each) for name, each in tree.items()}
    return tree


#: What looks at the numbers in a tensor, so that what follows may depend on them.
LOOKS = {
    "__bool__", "__float__", "__int__", "__index__", "__complex__", "item", "tolist", "numpy",
    "__array__", "is_nonzero", "equal", "allclose", "nonzero", "unique", "data_ptr",
}  # fmt: skip


def name_of(func: Any) -> str:
    """The name of a torch function; that of a property's getter is the property's."""
    name: str = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = func.__self__.__name__
    return name


class Session:
    """One run of a formula. Subclasses say what becomes of operations on pairs."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.kept: list[Tensor] = []  # so that no identity is used twice
        self._plain: dict[int, int] = {}
        self.query, self.key = self.token(query, QUERY, -1), self.token(key, KEY, -2)

    def close(self) -> None:
        """Let go of the tokens: they hold this session, and would wait for the collector."""
        del self.query, self.key

    def token(self, real: Tensor, side: int, number: int) -> Traced:
        token = _new(self, side, number)
        token.held, token.sizes = real, tuple(real.shape)
        return token

    def pair(self, sizes: tuple[int, ...], number: int) -> Traced:
        pair = _new(self, PAIR, number)
        pair.held, pair.sizes = None, sizes
        return pair

    def plain(self, tensor: Tensor) -> int:
        """A number for a tensor that the formula brings itself."""
        known = self._plain.get(id(tensor))
        if known is None:
            self.kept.append(tensor)
            known = self._plain[id(tensor)] = -3 - len(self._plain)
        return known

    def call(self, func: Any, args: Any, kwargs: Any, side: int) -> Any:
        """What becomes of a call, whose arguments depend on queries, keys or both: its `side`."""
        from qkv.formula.pairwise import on_pairs

        if side == PAIR:
            return on_pairs(self, func, args, kwargs)
        name = name_of(func)
        if name in LOOKS:
            raise refuse(
                f"it looks at numbers by {name.strip('_')}, on which all that follows may depend"
            )
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            raise refuse(f"it writes to its tokens by {name}")
        if kwargs.get("out") is not None:
            raise refuse(f"it writes to a tensor by {name}")
        result = func(*_unwrapped(args), **_unwrapped(kwargs))
        return self._wrapped(result, side, func, args, kwargs)

    def _wrapped(self, result: Any, side: int, func: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(result, Tensor):
            number = self.token_call(func, args, kwargs, result, 0)
            return self.token(result, side, number)
        if isinstance(result, (tuple, list)) and any(isinstance(x, Tensor) for x in result):
            parts = [
                self.token(each, side, self.token_call(func, args, kwargs, each, i))
                if isinstance(each, Tensor)
                else each
                for i, each in enumerate(result)
            ]
            return parts if type(result) is list else tuple(parts)
        return result

    # What follows is told of in order.

    def token_call(self, func: Any, args: Any, kwargs: Any, result: Tensor, part: int) -> int:
        """An operation on tokens alone; gives the number of its result."""
        raise NotImplementedError

    def elementwise(self, op: str, *operands: Any) -> Traced:
        """An operation, entry by entry, of which one operand at least depends on a pair."""
        raise NotImplementedError

    def reduce(self, op: str, x: Any, dims: tuple[int, ...], keepdim: bool) -> Traced:
        """A reduction of a pair's features."""
        raise NotImplementedError

    def rearrange(self, x: Traced, order: tuple[int | None, ...]) -> Traced:
        """The axes of a pair in another order; None: a new one of size 1."""
        raise NotImplementedError


def _new(session: Session, side: int, number: int) -> Traced:
    traced: Traced = torch.Tensor._make_subclass(Traced, _NOTHING)
    traced.session, traced.side, traced.number = session, side, number
    return traced


def sizes_of(operand: Any) -> tuple[int, ...]:
    if isinstance(operand, Traced):
        return operand.sizes
    return tuple(operand.shape) if isinstance(operand, Tensor) else ()


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of all together; NumPy's and torch's rule."""
    if len(shapes) == 1 or (len(shapes) == 2 and (shapes[0] == shapes[1] or not shapes[1])):
        return shapes[0]
    sizes: list[int] = []
    for place in range(1, max(map(len, shapes)) + 1):
        size = 1
        for shape in shapes:
            if len(shape) >= place and shape[-place] != 1:
                if size not in (1, shape[-place]):
                    raise refuse(f"shapes {shapes} do not broadcast")
                size = shape[-place]
        sizes.append(size)
    return tuple(reversed(sizes))
