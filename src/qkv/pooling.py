"""The formula: Attention(q, D) = Σᵢ α(q, kᵢ) vᵢ. Check, plan, run."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from qkv import grouped, nested, plan
from qkv.bias import BiasLike
from qkv.broadcast import query_rows
from qkv.mask import MaskLike, as_mask
from qkv.memory import budget, readable
from qkv.nonfinite import quarantine
from qkv.operators.arithmetic import settled, settled_weights
from qkv.operators.base import Result
from qkv.operators.dense import weigh
from qkv.partial import Partial
from qkv.problem import Array, Problem, as_tensors, validate, with_bias
from qkv.similarity import SimilarityLike, as_similarity
from qkv.tracing import can_read_values, is_finite

ArrayT = TypeVar("ArrayT", Tensor, npt.NDArray[np.floating[Any]])


def attend(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    dropout: float = 0.0,
    operator: str | None = None,
    enable_gqa: bool = False,
) -> ArrayT:
    """What the values say, each weighted by how alike its key and the query are (Eq. 1).

    A soft look-up; a student with a GPA of 3.5 asks what others with about that GPA earn:

    >>> import numpy as np, qkv
    >>> gpa, salary = np.array([[3.0], [3.4], [3.6], [4.0]]), np.array([[52.], [60.], [64.], [72.]])
    >>> qkv.attend(np.array([[3.5]]), gpa, salary, similarity=qkv.Gaussian(bandwidth=0.1))
    array([[62.]])

    The attention of a language model, 8 heads, each token looking back only:

    >>> import torch
    >>> query, key, value = torch.randn(3, 2, 8, 128, 64).unbind()
    >>> qkv.attend(query, key, value, mask=qkv.mask.Causal()).shape
    torch.Size([2, 8, 128, 64])

    Any function of queries and keys is a similarity:

    >>> def city_block(query, key):
    ...     return -(query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1)
    >>> qkv.attend(query, key, value, similarity=city_block).shape
    torch.Size([2, 8, 128, 64])

    Args:
        query: (…, n, d_q).
        key: (…, m, d_k).
        value: (…, m, d_v). Leading axes broadcast. All are torch tensors or all NumPy arrays, of
            one floating type; the answer is of the same kind. All three may be nested tensors of
            layout torch.jagged, (batch, ragged, d) or (batch, heads, ragged, d); so is the answer.
        similarity: a :class:`qkv.Similarity`, the name of one without parameters, or a callable
            (query, key) -> scores whose score of a pair depends on that pair alone.
            None is :class:`qkv.ScaledDot`.
        mask: who may look at whom, see :mod:`qkv.mask`. True means may attend.
        bias: what is added to the scores by position, see :mod:`qkv.bias`: an object or a function
            (query position, key position) -> added scores.
        dropout: the share of weights dropped at random; the kept ones are scaled up. Which ones
            depends on torch's random seed alone, not on the operator.
        operator: force one by name: "topk", "lookup", "sorted", "banded", "sdpa", "fused", "dense"
            or "streamed". One that does not support the input says why.
        enable_gqa: grouped heads, as in torch's `scaled_dot_product_attention`: key and value may
            have fewer heads on axis −3 than query, of which each serves a group of neighbouring
            query heads and is not copied for them. Masks and biases are over the query's heads.

    Returns:
        (…, n, d_v). A query that may attend to nothing gets 0.
    """
    if isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor):
        q, k, v, numpy = query, key, value, False
    else:
        (q, k, v), numpy = as_tensors(query=query, key=key, value=value)
    if bias is not None:
        mask = with_bias(mask, bias)
    if q.is_nested or k.is_nested or v.is_nested:
        packed = nested.pack(q, k, v, mask)
        tokens = attend(
            *packed[:3], similarity=similarity, mask=packed.mask, dropout=dropout,
            operator=operator, enable_gqa=enable_gqa,
        )  # fmt: skip
        return nested.nested_like(tokens, q)  # type: ignore[return-value]
    if has_torch_function_variadic(q, k, v):
        # Someone watches or replaces torch's functions, as `qkv.record` does, and this is one.
        options: dict[str, Any] = {"similarity": similarity, "mask": mask, "dropout": dropout}
        if enable_gqa:
            grouped.check(q, k, v)
            options["enable_gqa"] = True
        asked: Any = attend
        answer: Tensor = handle_torch_function(
            asked, (q, k, v), q, k, v, **options, operator=operator
        )
    elif enable_gqa:
        parts = _parts(q, k, v, similarity, mask, dropout)
        answers = [_answer(part, operator)[0] for part in parts]
        answer = grouped.joined(answers, (q, k, v), v.shape[-1])
    else:
        answer, _ = _answer(validate(q, k, v, similarity, mask, dropout), operator)
    return answer.detach().numpy() if numpy else answer  # type: ignore[return-value]


def _parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: SimilarityLike,
    mask: MaskLike | None,
    dropout: float = 0.0,
    wants_total: bool = False,
) -> list[Problem]:
    """The problems that a question about grouped heads comes to."""
    whole = None if mask is None else as_mask(mask)
    return [
        validate(*part, dropout, wants_total)
        for part in grouped.questions(query, key, value, as_similarity(similarity), whole, dropout)
    ]


def _answer(problem: Problem, operator: str | None) -> Result:
    """The planned operator's answer, into which nothing leaks from what is masked."""
    if problem.mask is not None:
        problem = problem.simplified()
    if problem.mask is None:
        return plan.answer(problem, operator)
    if operator is None:
        leakproof = plan.leakproof_answer(problem)
        if leakproof is not None:
            return leakproof
    if not problem.needs_grad and can_read_values(problem.query):
        # NaN that leaked would show in an answer, and answers are fewer than keys.
        result = plan.answer(problem, operator)
        shows = result[0].shape[-1] > 0  # without values only the total could tell
        if not result[0].requires_grad and shows and is_finite(result[0]):
            return settled(problem, result) if problem.wants_total else result
        problem = problem._replace(asked_again=True)
    quarantined = quarantine(problem)
    answer, log_total = plan.answer(quarantined.problem, operator)
    if log_total is not None:
        log_total = quarantined.mark(log_total.unsqueeze(-1)).squeeze(-1)
    return settled(problem, (quarantined.mark(answer), log_total))


def attend_partial(
    query: Array,
    key: Array,
    value: Array,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    operator: str | None = None,
    enable_gqa: bool = False,
) -> Partial:
    """What *these* keys say, to be merged with what others say; see :class:`qkv.Partial`.

    Masks by position (:class:`~qkv.mask.Causal`, :class:`~qkv.mask.Window`, …) and biases count
    the keys given here, not those of the whole; ``bias=lambda i, j: alibi(i + ahead, j)`` moves on.
    """
    (q, k, v), _ = as_tensors(query=query, key=key, value=value)
    mask = with_bias(mask, bias)
    if not enable_gqa:
        return answer_partial(validate(q, k, v, similarity, mask, wants_total=True), operator)
    problems = _parts(q, k, v, similarity, mask, wants_total=True)
    parts = [answer_partial(problem, operator) for problem in problems]
    return Partial(
        grouped.joined([part.answer for part in parts], (q, k, v), v.shape[-1]),
        grouped.joined([part.log_total for part in parts], (q, k, v)),
    )


def answer_partial(problem: Problem, operator: str | None = None) -> Partial:
    """What the keys of a problem say that wants its total."""
    answer, log_total = _answer(problem, operator)
    assert log_total is not None, "every operator gives the total where it is asked for"
    return Partial(answer, log_total)


def weights(
    query: ArrayT,
    key: ArrayT,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    rows: slice | None = None,
    enable_gqa: bool = False,
) -> ArrayT:
    """The weights α(q, kᵢ) themselves, (…, n, m): ≥ 0, each row summing to 1 or all 0 (Eq. 2).

    `rows` gives those of some queries only, where all would not fit into memory; positions in
    `mask` and `bias` stay those of the whole.

    >>> import numpy as np, qkv
    >>> keys = np.array([[3.0], [3.4], [3.6], [4.0]])
    >>> qkv.weights(np.array([[3.5]]), keys, similarity="boxcar").round(2)
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    (q, k), numpy = as_tensors(query=query, key=key)
    if enable_gqa:
        grouped.check(q, k, k)
        k = grouped.for_every_head(k, q.shape[-3])  # weights are larger than keys
    asked = validate(q, k, k, similarity, with_bias(mask, bias))
    quarantined = quarantine(asked)
    problem = quarantined.problem
    start, stop, step = (rows or slice(None)).indices(problem.n)
    if step != 1:
        raise ValueError(f"rows must be a slice with step 1; got step {step}")
    stop = max(start, stop)
    size = problem.pairs // max(1, problem.n) * (stop - start) * max(4, q.element_size())
    limit = budget(q.device)
    if size > limit:
        fit = max(1, limit * (stop - start) // size)
        raise MemoryError(
            f"weights of {stop - start:,} queries take {readable(size)}, above the budget of "
            f"{readable(limit)}; rows=slice(0, {fit}) would fit"
        )
    prepared_query, prepared_key = problem.similarity.prepare(problem.query, problem.key)
    log_scores = problem.similarity.log_score(prepared_query[..., start:stop, :], prepared_key)
    added = None if problem.bias is None else query_rows(problem.bias, start, stop)
    weights, _ = weigh(problem, log_scores, added, start)
    if quarantined.tainted is not None:
        tainted = quarantined.tainted[..., start:stop]
        weights = quarantined._replace(tainted=tainted).mark(weights)
    weights = settled_weights(asked, weights, start, stop)
    weights = weights.expand(*problem.batch, stop - start, problem.m).to(q.dtype)
    return weights.detach().numpy() if numpy else weights  # type: ignore[return-value]


def explain(
    query: Array,
    key: Array,
    value: Array,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    dropout: float = 0.0,
    enable_gqa: bool = False,
) -> plan.Plan:
    """How :func:`attend` would answer, why so, and what it would cost; nothing is computed.

    >>> import torch, qkv
    >>> query = torch.randn(4096, 64)
    >>> print(qkv.explain(query, query, query, mask=qkv.mask.TopK(8)).operator)
    topk
    """
    (q, k, v), _ = as_tensors(query=query, key=key, value=value)
    mask = with_bias(mask, bias)
    if q.is_nested or k.is_nested or v.is_nested:
        q, k, v, mask = nested.pack(q, k, v, mask)
    if not enable_gqa:
        return plan.explain(validate(q, k, v, similarity, mask, dropout).simplified())
    first, *others = _parts(q, k, v, similarity, mask, dropout)
    return plan.explain(first.simplified()).times(1 + len(others))
