"""What torch's functions do to pairs, said in the few operations of a session."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.formula import composites
from qkv.formula.traced import Session, Traced, name_of, refuse, sizes_of

#: What is asked of a tensor without looking at its numbers.
ASKED = {
    "shape", "size", "ndim", "dim", "dtype", "device", "requires_grad", "is_cuda", "layout",
    "numel", "nelement", "is_floating_point", "is_complex", "__len__", "element_size",
    "is_sparse", "is_quantized", "is_meta", "is_nested", "__repr__", "is_contiguous",
}  # fmt: skip


def on_pairs(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a torch function some of whose operands depend on pairs."""
    name = name_of(func)
    if name in ASKED:
        return _asked(args[0], name, *args[1:], **kwargs)
    if kwargs.pop("out", None) is not None:
        raise refuse(f"it writes to a tensor by {name}")
    if name.endswith("_") and not name.endswith("__"):
        return _in_place(session, func, name, args, kwargs)
    handler = HANDLERS.get(name)
    if name == "where" and func is Tensor.where:
        args = (args[1], args[0], *args[2:])
    if handler is None:
        raise refuse(f"{name.strip('_')} of a pair is not supported")
    try:
        return handler(session, *args, **kwargs)
    except TypeError as error:
        raise refuse(
            f"{name.strip('_')} of a pair with these arguments is not supported"
        ) from error


def _in_place(session: Session, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    target = args[0]
    if not isinstance(target, Traced) or target.held is not None:
        raise refuse(f"it writes to its tokens by {name}")
    handler = HANDLERS.get(name[:-1])
    if handler is None or name in ("squeeze_", "unsqueeze_", "transpose_"):
        raise refuse(f"{name} of a pair is not supported")
    if getattr(target, "shared", False):
        raise refuse(f"{name} writes to a tensor of which there is a view")
    result = handler(session, *args, **kwargs)
    if result.sizes != target.sizes:
        raise refuse(f"{name} would change the shape of its tensor")
    target.number = result.number
    return target


def _asked(x: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    sizes = sizes_of(x)
    if name == "shape" or (name == "size" and not args and not kwargs):
        return torch.Size(sizes)
    if name == "size":
        return sizes[args[0] if args else kwargs["dim"]]
    if name in ("ndim", "dim"):
        return len(sizes)
    if name in ("numel", "nelement"):
        return math.prod(sizes)
    if name == "__len__":
        return sizes[0]
    tokens = x.session.query.held
    value = getattr(tokens, name)
    return value(*args, **kwargs) if callable(value) else value


Handler = Callable[..., Any]


def _plain(op: str) -> Handler:
    def run(session: Session, *operands: Any) -> Any:
        return session.elementwise(op, *operands)

    return run


def _scaled(op: str, reverse: bool = False) -> Handler:
    def run(session: Session, a: Any, b: Any, *, alpha: float = 1) -> Any:
        if alpha != 1:
            b = b * alpha
        return session.elementwise(op, b, a) if reverse else session.elementwise(op, a, b)

    return run


def _div(session: Session, a: Any, b: Any, *, rounding_mode: Any = None) -> Any:
    if rounding_mode is not None:
        raise refuse("div with a rounding mode is not supported")
    return session.elementwise("div", a, b)


def _where(session: Session, condition: Any, a: Any, b: Any) -> Any:
    return session.elementwise("where", condition, a, b)


def _masked_fill(session: Session, x: Any, mask: Any, value: Any) -> Any:
    return session.elementwise("where", mask, value, x)


def _clamp(session: Session, x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        x = session.elementwise("where", session.elementwise("lt", x, min), min, x)
    if max is not None:
        x = session.elementwise("where", session.elementwise("gt", x, max), max, x)
    return x


def _power(session: Session, x: Any, exponent: Any) -> Any:
    """Whole and half exponents by multiplication and roots, others by the logarithm."""
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        doubled = 2 * exponent
        if doubled == int(doubled) and 0 < abs(exponent) <= 8:
            power = composites.whole_power(x, int(abs(exponent)))
            if abs(exponent) % 1:
                root = x.sqrt()
                power = root if power is None else power * root
            return 1 / power if exponent < 0 else power
    if isinstance(x, (int, float)):  # a constant to the power of a pair
        if x <= 0:
            raise refuse("a power of a number that is not positive is not supported")
        return (exponent * math.log(x)).exp()
    return session.elementwise("power", x, exponent)


def _dims(x: Any, dim: Any) -> tuple[int, ...]:
    if dim is None:
        raise refuse("a reduction over all axes makes a score depend on other pairs")
    count = len(sizes_of(x))
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    return tuple(sorted(each % count for each in given))


def _reduced(op: str) -> Handler:
    def run(
        session: Session, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Any:
        return session.reduce(op, x, _dims(x, dim), keepdim)

    return run


def _mean(
    session: Session, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    return session.reduce("mean", x, _dims(x, dim), keepdim)


def _extreme(op: str) -> Handler:
    two = _plain({"max": "maximum", "min": "minimum"}[op])

    def run(
        session: Session, x: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None
    ) -> Any:
        if other is not None or isinstance(dim, Tensor):
            return two(session, x, dim if other is None else other)
        values = session.reduce(op, x, _dims(x, dim), keepdim)
        return Extreme((values, None))

    return run


class Extreme(tuple[Any, Any]):
    """What torch's max over an axis gives; places have no kernel."""

    @property
    def values(self) -> Any:
        return self[0]

    @property
    def indices(self) -> Any:
        raise refuse("the place of a maximum is not supported")


def _unsqueeze(session: Session, x: Traced, dim: int) -> Any:
    count = len(x.sizes)
    order: list[int | None] = [*range(count)]
    order.insert(dim % (count + 1), None)
    return session.rearrange(x, tuple(order))


def _squeeze(session: Session, x: Traced, dim: Any = None) -> Any:
    if dim is None:
        raise refuse("squeeze without an axis depends on how many queries there are")
    dropped = {d for d in _dims(x, dim) if x.sizes[d] == 1}
    return session.rearrange(x, tuple(i for i in range(len(x.sizes)) if i not in dropped))


def _getitem(session: Session, x: Any, index: Any) -> Any:
    if not isinstance(x, Traced) or x.held is not None:
        raise refuse("a look-up by pairs is not supported")
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(1 for part in parts if part is not None and part is not Ellipsis)
    if Ellipsis not in [part for part in parts if not isinstance(part, Tensor)]:
        parts.append(Ellipsis)
    order: list[int | None] = []
    at = 0
    for part in parts:
        if part is None:
            order.append(None)
        elif part is Ellipsis:
            rest = len(x.sizes) - taken
            order += range(at, at + rest)
            at += rest
        elif isinstance(part, slice) and part == slice(None):
            order.append(at)
            at += 1
        elif isinstance(part, int) and x.sizes[at] == 1:
            at += 1
        else:
            raise refuse("a part of the features of a pair is not supported")
    return session.rearrange(x, tuple(order))


def _permute(session: Session, x: Traced, *dims: Any) -> Any:
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = tuple(dims[0])
    return session.rearrange(x, tuple(d % len(x.sizes) for d in dims))


def _transpose(session: Session, x: Traced, a: int, b: int) -> Any:
    order = list(range(len(x.sizes)))
    a, b = a % len(order), b % len(order)
    order[a], order[b] = order[b], order[a]
    return session.rearrange(x, tuple(order))


def _turned(session: Session, x: Traced) -> Any:
    return _transpose(session, x, -1, -2)


def _same(session: Session, x: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("dtype") is not None or any(isinstance(each, torch.dtype) for each in args):
        wanted = kwargs.get("dtype") or next(x for x in args if isinstance(x, torch.dtype))
        if not wanted.is_floating_point:
            raise refuse(f"a pair as {wanted} is not supported")
    if not isinstance(x, Traced):  # a tensor of the formula's own, like a pair
        tokens = session.query.held
        assert tokens is not None
        return x.to(tokens.dtype)
    return x


def _expand(session: Session, x: Any, *sizes: Any) -> Any:
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    if len(sizes) == 1 and isinstance(sizes[0], Tensor):
        sizes = sizes_of(sizes[0])
    current = sizes_of(x)
    padded = (1,) * (len(sizes) - len(current)) + current
    if any(new not in (-1, old) for new, old in zip(sizes, padded, strict=True)):
        raise refuse("an expanded pair is not supported")
    while len(sizes_of(x)) < len(sizes):
        x = _unsqueeze(session, x, 0)
    return x


def _reshape(session: Session, x: Any, *sizes: Any) -> Any:
    """Axes of size 1 come and go; others stay."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    current = sizes_of(x)
    known = -math.prod(sizes) if -1 in sizes else math.prod(sizes)
    wanted = [math.prod(current) // max(1, known) if size == -1 else size for size in sizes]
    kept = [i for i, size in enumerate(current) if size != 1]
    if [size for size in wanted if size != 1] != [current[i] for i in kept]:
        raise refuse("a reshaped pair is not supported")
    following = iter(kept)
    return session.rearrange(x, tuple(None if size == 1 else next(following) for size in wanted))


HANDLERS: dict[str, Handler] = {
    **{
        name: _plain(name)
        for name in (
            "neg", "abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh",
            "sigmoid", "erf", "floor", "ceil", "mul", "maximum", "minimum",
            "lt", "le", "gt", "ge", "eq", "ne",
        )
    },
    **{
        name: _plain(op)
        for name, op in {
            "absolute": "abs", "negative": "neg", "sgn": "sign", "multiply": "mul",
            "__mul__": "mul", "__rmul__": "mul", "less": "lt", "less_equal": "le", "greater": "gt",
            "greater_equal": "ge", "not_equal": "ne", "logical_and": "and", "logical_or": "or",
            "logical_not": "not", "__and__": "and", "__or__": "or", "__invert__": "not",
            "bitwise_and": "and", "bitwise_or": "or", "bitwise_not": "not",
            **{f"__{op}__": op for op in ("lt", "le", "gt", "ge", "eq", "ne")},
        }.items()
    },
    "add": _scaled("add"), "__add__": _scaled("add"), "__radd__": _scaled("add"),
    "sub": _scaled("sub"), "__sub__": _scaled("sub"), "subtract": _scaled("sub"),
    "rsub": _scaled("sub", reverse=True), "__rsub__": _scaled("sub", reverse=True),
    "div": _div, "divide": _div, "true_divide": _div, "__truediv__": _div,
    "__rdiv__": lambda s, a, b: _div(s, b, a), "__rtruediv__": lambda s, a, b: _div(s, b, a),
    "pow": _power, "__pow__": _power, "float_power": _power,
    "__rpow__": lambda s, a, b: _power(s, b, a),
    "where": _where, "masked_fill": _masked_fill,
    "clamp": _clamp, "clip": _clamp,
    "clamp_min": lambda s, x, min: _clamp(s, x, min),
    "clamp_max": lambda s, x, max: _clamp(s, x, None, max),
    "sum": _reduced("sum"), "mean": _mean, "amax": _reduced("max"), "amin": _reduced("min"),
    "max": _extreme("max"), "min": _extreme("min"),
    "unsqueeze": _unsqueeze, "squeeze": _squeeze, "__getitem__": _getitem,
    "permute": _permute, "transpose": _transpose, "swapaxes": _transpose, "swapdims": _transpose,
    "mT": _turned, "expand": _expand, "expand_as": _expand, "broadcast_to": _expand,
    "view": _reshape, "reshape": _reshape,
    **dict.fromkeys(("contiguous", "clone", "to", "float", "double", "type_as", "type"), _same),
    **{name: (lambda s, *a, f=f, **k: f(*a, **k)) for name, f in composites.COMPOSITES.items()},
}  # fmt: skip
