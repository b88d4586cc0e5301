"""Functions of torch that are made of others, written out; tokens' parts stay tokens' parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from qkv.formula.traced import refuse


def whole_power(x: Any, exponent: int) -> Any:
    """x to a whole power by multiplication; None for 0."""
    power, square = None, x
    while exponent:
        if exponent & 1:
            power = square if power is None else power * square
        exponent >>= 1
        if exponent:
            square = square * square
    return power


def _relu(x: Any, inplace: bool = False) -> Any:
    return torch.where(x <= 0, 0.0, x)


def _leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return torch.where(x > 0, x, x * negative_slope)


def _elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return torch.where(x > 0, x, alpha * torch.where(x > 0, 0.0, x).expm1())


def _silu(x: Any, inplace: bool = False) -> Any:
    return x * x.sigmoid()


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + ((x + 0.044715 * (x * x * x)) * math.sqrt(2 / math.pi)).tanh())
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    session = x.session
    if beta == 1 and threshold == 20:
        return session.elementwise("softplus", x)
    scaled = x * beta
    return torch.where(scaled > threshold, x, session.elementwise("softplus", scaled) / beta)


def _log_sigmoid(x: Any) -> Any:
    return torch.where(x < 0, x, 0.0) - (-x.abs()).exp().log1p()


def _acosh(x: Any) -> Any:
    beyond = x - 1
    return (beyond + (beyond * (beyond + 2)).sqrt()).log1p()


def _asinh(x: Any) -> Any:
    size = x.abs()
    return x.sign() * (size + size * size / (1 + (size * size + 1).sqrt())).log1p()


def _atanh(x: Any) -> Any:
    return 0.5 * (2 * x / (1 - x)).log1p()


def _cosh(x: Any) -> Any:
    return 0.5 * (x.exp() + (-x).exp())


def _sinh(x: Any) -> Any:
    half = x.expm1()
    return 0.5 * (half + half / (half + 1))


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if p in (None, "fro", 2, 2.0):
        squared = (x * x).sum(dim, keepdim=keepdim)
        return squared.session.elementwise("root", squared)
    if p in (math.inf, "inf"):
        return x.abs().amax(dim, keepdim=keepdim)
    if p in (-math.inf, "-inf"):
        return x.abs().amin(dim, keepdim=keepdim)
    if p == 1:
        return x.abs().sum(dim, keepdim=keepdim)
    if not isinstance(p, (int, float)) or p == 0:
        raise refuse(f"a norm of order {p!r} is not supported")
    size = x.abs()
    powers = whole_power(size, int(p)) if p == int(p) and 0 < p <= 8 else _flat_power(size, p)
    return _flat_power(powers.sum(dim, keepdim=keepdim), 1 / p)


def _flat_power(x: Any, exponent: float) -> Any:
    """A power whose slope is 0 at 0, as torch's norms have it."""
    zero = x == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, x) ** exponent)


def _vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    return _norm(x, ord, dim, keepdim)


def _linalg_norm(
    x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    if not isinstance(dim, int):
        raise refuse("a norm of matrices is not supported")
    return _norm(x, ord, dim, keepdim)


def _cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None) -> Any:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


def _pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return _norm(x1 - x2 + eps, p, -1, keepdim)


def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    def unit(x: Any) -> Any:
        return x / torch.linalg.vector_norm(x, 2, dim, keepdim=True).clamp_min(eps)

    return (unit(x1) * unit(x2)).sum(dim)


def _normalize(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    raise refuse("normalize of a pair is not supported")


def _matmul(a: Any, b: Any) -> Any:
    if b.dim() == 1:
        return (a * b).sum(-1)
    if a.dim() == 1:
        return (a.unsqueeze(-1) * b).sum(-2)
    if b.shape[-1] == 1:
        return (a * b.mT).sum(-1, keepdim=True)
    return (a.unsqueeze(-2) * b.mT.unsqueeze(-3)).sum(-1)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = _matmul(x, weight.mT)
    return product if bias is None else product + bias


def _baddbmm(added: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = _matmul(a, b) * alpha
    return product if beta == 0 else product + added * beta


def _einsum(equation: str, *operands: Any) -> Any:
    """Products of two, with at most one axis summed over at a time."""
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2 or len(operands) != 2:
        raise refuse(f"einsum({equation!r}) is not supported")
    letters = [term.replace("...", "") for term in terms]
    wanted = output.replace("...", "")
    summed = [x for x in dict.fromkeys(letters[0] + letters[1]) if x not in wanted]
    order = wanted + "".join(summed)
    if any(len(set(each)) != len(each) for each in letters) or ("..." in inputs) != (
        "..." in output
    ):
        raise refuse(f"einsum({equation!r}) is not supported")

    def arranged(x: Any, term: str) -> Any:
        lead = x.dim() - len(term)
        axes = [*range(lead), *(lead + term.index(each) for each in order if each in term)]
        x = x.permute(*axes)
        for place, each in enumerate(order):
            if each not in term:
                x = x.unsqueeze(lead + place)
        return x

    product = arranged(operands[0], letters[0]) * arranged(operands[1], letters[1])
    return product.sum(tuple(range(-len(summed), 0))) if summed else product


def _loss(reduction: str, loss: Any) -> Any:
    if reduction != "none":
        raise refuse("a loss over all pairs makes a score depend on other pairs")
    return loss


def _huber(x: Any, y: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    size = (x - y).abs()
    loss = torch.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta))
    return _loss(reduction, loss if weight is None else loss * weight)


def _smooth_l1(
    x: Any, y: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    beta: float = 1.0,
) -> Any:  # fmt: skip
    size = (x - y).abs()
    return _loss(reduction, torch.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta))


def _mse(
    x: Any, y: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Any = None,
) -> Any:  # fmt: skip
    difference = x - y
    return _loss(reduction, difference * difference)


def _l1(
    x: Any, y: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Any = None,
) -> Any:  # fmt: skip
    return _loss(reduction, (x - y).abs())


COMPOSITES: dict[str, Callable[..., Any]] = {
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / x.sqrt(),
    "exp2": lambda x: (x * math.log(2)).exp(),
    "log2": lambda x: x.log() * (1 / math.log(2)),
    "log10": lambda x: x.log() * (1 / math.log(10)),
    "tan": lambda x: x.sin() / x.cos(),
    "hypot": lambda x, y: (x * x + y * y).sqrt(),
    "relu": _relu,
    "relu6": lambda x, inplace=False: x.clamp(0.0, 6.0),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0, inplace=False: x.clamp(min_val, max_val),
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + x.abs()),
    "log_sigmoid": _log_sigmoid,
    "logsigmoid": _log_sigmoid,
    "acosh": _acosh,
    "arccosh": _acosh,
    "asinh": _asinh,
    "arcsinh": _asinh,
    "atanh": _atanh,
    "arctanh": _atanh,
    "cosh": _cosh,
    "sinh": _sinh,
    "norm": _norm,
    "linalg_vector_norm": _vector_norm,
    "linalg_norm": _linalg_norm,
    "cdist": _cdist,
    "pairwise_distance": _pairwise_distance,
    "cosine_similarity": _cosine_similarity,
    "normalize": _normalize,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "__rmatmul__": lambda a, b: _matmul(b, a),
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "inner": lambda a, b: (a.unsqueeze(-2) * b.unsqueeze(-3)).sum(-1),
    "linear": _linear,
    "baddbmm": _baddbmm,
    "addmm": _baddbmm,
    "einsum": _einsum,
    "addcmul": lambda x, a, b, *, value=1: x + a * b * value,
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "broadcast_tensors": lambda *operands: operands,
    "huber_loss": _huber,
    "smooth_l1_loss": _smooth_l1,
    "mse_loss": _mse,
    "l1_loss": _l1,
}
