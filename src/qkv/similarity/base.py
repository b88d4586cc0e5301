"""What "alike" means: the contract every similarity keeps.

A similarity turns a query and a key into a score, and says how scores become weights:

- ``softmax``: weights are softmax(scores), Eq. 3; scores are any real numbers;
- ``proportional``: weights are scores / sum of scores, Eq. 4; scores are kernels, never negative.

Both are one thing in logarithms: weights = softmax(log_score), with log_score = score for the
first kind and log(score) for the second. Every operator works on ``log_score`` only, so a kernel
that underflows far from the data still has a nearest key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from qkv.formula.forms import form as traced_form
from qkv.formula.forms import was_traced
from qkv.formula.traced import Traced
from qkv.tracing import is_eager

#: Types in which a sum over many keys would lose too much; they are computed in float32.
HALF = (torch.float16, torch.bfloat16)


class DotForm(NamedTuple):
    """A similarity written as a dot product, with a term for each key and one for each query.

    ``log_score = scale * query @ key.T + key_bias + offset``. The offset is the same for all keys,
    so it changes only the total that :class:`qkv.Partial` carries. None stands for 0.
    """

    query: Tensor  # (..., n, d)
    key: Tensor  # (..., m, d)
    scale: float = 1.0
    key_bias: Tensor | None = None  # (..., m)
    offset: Tensor | None = None  # (..., n)


class FusedForm(NamedTuple):
    """A similarity as a fused kernel takes it: what is left to do for each pair."""

    kind: str
    query: Tensor  # (..., n, p)
    key: Tensor  # (..., m, p)
    parameter: Tensor  # (...,): what the kind needs beside the tokens


class SortedForm(NamedTuple):
    """A kernel of one-dimensional keys as sums over sorted keys take it."""

    kernel: str
    bandwidth: float


class PreparedSize(NamedTuple):
    """The columns of a prepared token: so many times those of the token, and so many more."""

    times: int
    more: int

    def columns(self, dim: int) -> int:
        return self.times * dim + self.more


class Similarity(nn.Module):
    """Scores of queries against keys; subclasses write :meth:`score` and little else.

    Calling a similarity gives the plain formula, (…, n, d_q), (…, m, d_k) -> (…, n, m). It is
    split in two so that work done once per token is never done once per pair:

    - :meth:`prepare` maps queries and keys on their own (projections, norms);
    - :meth:`score` compares prepared queries with prepared keys, each pair on its own.
    """

    weighting: Literal["softmax", "proportional"] = "softmax"

    #: What kind of work a pair is, as :mod:`qkv.cost` prices it.
    family: str = "any"

    #: True where every score of a pair may be 0 (log_score -inf), so that a row may end up empty.
    may_vanish: bool = False

    #: True where scores are known never to be negative, so that weights proportional to them need
    #: no logarithm, in which a negative one would show as NaN.
    nonnegative: bool = False

    #: True where scores are a step function of the tokens, so that their gradient is 0.
    has_steps: bool = False

    #: True where :meth:`as_dot` looks at the data to decide.
    depends_on_spread: bool = False

    #: True where each head has numbers of its own, so that scores depend on their head.
    per_head: bool = False

    #: True where it is written with an operator, so that it goes into brackets.
    is_combined = False

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise ValueError unless the sizes of `query` and `key` can be compared."""
        if query.shape[-1] != key.shape[-1]:
            raise ValueError(
                f"key must have shape (..., m, {query.shape[-1]}) to match query; "
                f"got {tuple(key.shape)}"
            )

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The per-token half of the formula; leaves half precision behind."""
        return widen(query), widen(key)

    def prepared_size(self) -> PreparedSize | None:
        """The size of what :meth:`prepare` makes of tokens; None: nobody knows."""
        return PreparedSize(1, 0) if type(self).prepare is Similarity.prepare else None

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores (…, n, m) of prepared queries (…, n, p) against prepared keys (…, m, p)."""
        raise TypeError(f"{type(self).__name__} must define score(query, key)")

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        """The logarithm of the unnormalised weight of each pair; -inf where it is 0."""
        scores = self.score(query, key)
        return log_or_never(scores) if self.weighting == "proportional" else scores

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.score(*self.prepare(query, key))

    def log_scores(self, query: Tensor, key: Tensor) -> Tensor:
        """:meth:`log_score` of tokens as they come, where all pairs are scored at once."""
        return self.log_score(*self.prepare(query, key))

    def tensors(self) -> tuple[Tensor, ...]:
        """The parameters; similarities that know theirs need not search for them."""
        return tuple(self.parameters())

    def signature(self) -> Hashable | None:
        """All that :meth:`check` and the choice of an operator depend on; None: nobody knows."""
        if not type(self).__module__.startswith("qkv.similarity."):
            return None  # a class of someone else's may depend on anything
        known: list[object] = [type(self)]
        for tensor in self.tensors():
            known += (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)
        return tuple(known)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | str:
        """This similarity as a dot product, or one clause saying why it is none."""
        return f"{type(self).__name__} is not a dot product"

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm | str:
        """This similarity as a fused kernel takes it, or one clause saying why there is none.

        The kernel of a class that brings its own formula is derived from it.
        """
        if not may_be_fused(self):
            return f"{type(self).__name__} has no fused kernel"
        if type(self).log_score is not Similarity.log_score:
            return self.derive(self.log_score, query, key, proportional=False)
        return self.derive(self.score, query, key, self.weighting == "proportional")

    @property
    def formula(self) -> object:
        """Whose formula it is that a kernel may be derived from."""
        return self

    def derive(
        self,
        compare: Callable[[Tensor, Tensor], Tensor],
        query: Tensor,
        key: Tensor,
        proportional: bool,
    ) -> FusedForm | str:
        """The fused form of what `compare` makes of prepared tokens."""

        def score(query: Tensor, key: Tensor) -> Tensor:
            return compare(*self.prepare(query, key))

        return derived_form(score, self, query, key, proportional)

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        """This similarity as a kernel over sorted keys, or one clause saying why it is none."""
        return f"{type(self).__name__} has no sorted implementation"

    def __init_subclass__(cls, **options: object) -> None:
        """A subclass with a formula of its own does not inherit the shortcuts of another."""
        super().__init_subclass__(**options)
        formulas = {"prepare", "score", "log_score", "profile", "log_profile", "forward"}
        if cls.__dict__.keys() & formulas:
            shortcuts = ("as_dot", "as_fused", "as_sorted", "log_scores", "nonnegative", "family")
            for shortcut in (*shortcuts, "has_steps", "prepared_size"):
                if shortcut not in cls.__dict__:
                    setattr(cls, shortcut, getattr(Similarity, shortcut))

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Similarity:
        """This similarity for entries `start` to `stop` of the leading axis `axis` alone."""
        return self

    def describe(self) -> str:
        """Its name, or how it is put together, in one line."""
        return type(self).__name__

    def __add__(self, other: Similarity | Callable[[Tensor, Tensor], Tensor]) -> Similarity:
        """Scores added; see :mod:`qkv.similarity.algebra`."""
        from qkv.similarity.algebra.pairs import Sum, as_part

        return Sum(self, as_part(other, "+"))

    def __mul__(self, other: Similarity | float | Tensor) -> Similarity:
        """A multiple of the scores, or a product of kernels."""
        from qkv.similarity.algebra import Product, Scaled
        from qkv.similarity.algebra.pairs import as_part

        if isinstance(other, (float, int, Tensor)):
            return Scaled(self, other)
        return Product(self, as_part(other, "*"))

    def __rmul__(self, factor: float | Tensor) -> Similarity:
        return self * factor

    def soft_cap(self, cap: float) -> Similarity:
        """cap · tanh(score / cap): scores between −cap and cap."""
        from qkv.similarity.algebra import SoftCapped

        return SoftCapped(self, cap)

    def with_temperature(
        self, temperature: float | Sequence[float] | Tensor, learnable: bool = False
    ) -> Similarity:
        """score / temperature, one or one for each head; learned as its logarithm."""
        from qkv.similarity.algebra import Tempered

        return Tempered(self, temperature, learnable)

    def pair_width(self, dim: int) -> int:
        """How many numbers :meth:`score` holds at once for a pair of tokens of size `dim`."""
        return 1

    def pair_flops(self, dim: int) -> int:
        """Floating-point operations :meth:`score` spends on a pair of tokens of size `dim`."""
        return 2 * dim


def may_be_fused(similarity: Similarity) -> bool:
    """Whether :meth:`Similarity.as_fused` is worth asking: our own say what they have, but for
    combinations, whose kernels are derived."""
    own = type(similarity)
    package, _, room = own.__module__.partition(".similarity.")
    ours = package == "qkv" and not room.startswith("algebra.")
    return not ours or own.as_fused is not Similarity.as_fused


def may_be_dot(similarity: Similarity) -> bool:
    """Whether :meth:`Similarity.as_dot` is worth asking."""
    return type(similarity).as_dot is not Similarity.as_dot


class FromCallable(Similarity):
    """Any callable (query, key) -> scores as a similarity, with softmax weights.

    The score of a pair must depend on that pair alone: operators call it on tiles.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def check(self, query: Tensor, key: Tensor) -> None:
        """Sizes are the callable's own business."""

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        # Unlike the base class, half types stay: the callable may hold half parameters.
        return query, key

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        scores = self.function(query, key)
        batch = query.shape[:-2]
        if key.shape[:-2] != batch:
            batch = torch.broadcast_shapes(batch, key.shape[:-2])
        expected = (*batch, query.shape[-2], key.shape[-2])
        if not isinstance(scores, Tensor):
            raise TypeError(f"similarity must return a tensor; got {type(scores).__name__}")
        if scores.shape != expected:
            raise ValueError(
                f"similarity must return scores of shape {expected} for query "
                f"{tuple(query.shape)} and key {tuple(key.shape)}; got {tuple(scores.shape)}"
            )
        return widen(scores)

    @property
    def formula(self) -> object:
        return self.function

    def signature(self) -> Hashable | None:
        # Whether a kernel was derived before decides on who is worth asking.
        return super().signature(), was_traced(self.function)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm | str:
        return derived_form(self.function, self.function, query, key, proportional=False)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.parameters()) if isinstance(self.function, nn.Module) else ()

    def pair_width(self, dim: int) -> int:
        return dim  # nothing is known of the callable; most build one block of differences

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", "")


def compares_pairs(function: Callable[..., Tensor]) -> bool:
    """Whether a callable takes queries and keys, not a distance alone."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except ValueError:  # some functions of torch do not tell
        return False
    required = [each for each in parameters if each.default is each.empty]
    return len(required) == 2 and all(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in required
    )


def derived_form(
    formula: Callable[[Tensor, Tensor], Tensor],
    owner: object,
    query: Tensor,
    key: Tensor,
    proportional: bool,
) -> FusedForm | str:
    """A formula as a fused kernel takes it, or why it has none; `owner` is whose formula it is."""
    if not is_eager(query, key):
        return "a formula is compiled only where nobody traces or transforms it"
    form = traced_form(formula, owner, query, key, proportional)
    if isinstance(form, str):
        return f"the formula has no kernel: {form}"
    return FusedForm(*form)


def widen(tensor: Tensor) -> Tensor:
    """Half precision to float32; everything else unchanged."""
    return tensor.float() if tensor.dtype in HALF else tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right; where heads (axis −3) share the right side, torch would copy it for each."""
    if left.ndim < 3 or right.ndim < 4 or right.shape[-3] != 1 or left.shape[-3] == 1:
        return left @ right
    if isinstance(left, Traced):  # of which no product is computed
        return left @ right
    rows = left.flatten(-3, -2) @ right.squeeze(-3)
    products: Tensor = rows.unflatten(-2, left.shape[-3:-1])
    return products


def log_or_never(scores: Tensor) -> Tensor:
    """log(scores) with -inf at 0 and a gradient of 0 there; NaN and negative scores show as NaN."""
    zero = scores == 0
    return torch.where(zero, -torch.inf, torch.log(torch.where(zero, 1.0, scores)))


def steps(scores: Tensor, *tokens: Tensor) -> Tensor:
    """Scores, or what is made of them, as a step function of `tokens`: their gradient is 0."""
    if isinstance(scores, Traced):  # comparisons have no slope in a program
        return scores
    if is_eager(scores, *tokens):
        return _Steps.apply(scores, *tokens) if torch.is_grad_enabled() else scores  # type: ignore[no-untyped-call]
    for token in tokens:
        # Times 0 keeps a token in the graph; a NaN of its own it adds where it stands already.
        scores = scores + (token * 0).nan_to_num(0.0).sum()
    return scores


class _Steps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, *tokens: Tensor) -> Tensor:
        ctx.save_for_backward(*tokens)
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        # In the graph of what is differentiated once more.
        still = (grad * 0).nan_to_num(0.0).sum() if torch.is_grad_enabled() else None

        def nothing(token: Tensor) -> Tensor:
            if still is None:
                return token.new_zeros(()).expand_as(token)
            return (token * 0).nan_to_num(0.0) + still

        return grad, *(
            nothing(token) if wanted else None
            for token, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
        )
