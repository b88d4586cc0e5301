"""Exact attention over keys that several processes share out, on torch.distributed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from qkv import grouped
from qkv.bias import BiasLike, PositionBias, Sum
from qkv.cluster.block import Answered, Question
from qkv.cluster.costs import ShardPlan, tensor_plan
from qkv.cluster.exchange import Exchange
from qkv.cluster.replicated import Replicated
from qkv.cluster.ring import Ring, Shards
from qkv.cluster.sharding import Layout, check_layout, chunks
from qkv.dropout import draw
from qkv.mask import MaskLike, as_mask
from qkv.problem import with_bias
from qkv.similarity import SimilarityLike, as_similarity

_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}


def attend(
    query: Tensor,
    key_shard: Tensor,
    value_shard: Tensor,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    dropout: float = 0.0,
    group: Any = None,
    layout: Layout = "replicated",
    enable_gqa: bool = False,
) -> Tensor:
    """:func:`qkv.attend` over the keys of all ranks of a process group; every rank calls it.

    Args:
        query: (…, n, d_q). With ``layout="replicated"`` the same on all ranks, as in decoding or
            in retrieval over a sharded memory; else this rank's shard of the queries.
        key_shard: (…, m_r, d_k), this rank's keys; shards may differ in length, and be empty.
        value_shard: (…, m_r, d_v).
        similarity, mask, bias: as :func:`qkv.attend` takes them. Positions, and tensors given as
            masks, are those of the whole sequence. Masks that rank scores are refused, and so are
            second derivatives.
        dropout: drops the weights that one process would with the first rank's seed.
        group: of torch.distributed; None is the default group. gloo is tested; NCCL is not.
        layout: "replicated"; "ring", where ranks hold consecutive runs of the sequence; or
            "zigzag", a ring whose ranks hold two runs each, as :func:`qkv.cluster.shard` deals
            them, so that under Causal all have as much to do.
        enable_gqa: grouped heads, as in :func:`qkv.attend`: keys and values are neither copied nor
            sent for every head.

    Returns:
        (…, n, d_v), for the queries that came. Gradients are exact: those of a shard arrive on its
        rank. In "replicated", where every rank computes the same loss, those of queries, parameters
        and biases are the sum over all ranks, on each. In a ring, where a rank's loss is of its own
        queries, those of parameters and biases are of these too, as in every other layer of a
        model with sharded sequences: DistributedDataParallel or an all-reduce adds them up.
    """
    if enable_gqa:
        tokens, limits = (query, key_shard, value_shard), with_bias(mask, bias)
        grouped.check(*tokens)
        chosen, whole = as_similarity(similarity), None if limits is None else as_mask(limits)
        answers = [
            attend(
                *part[:3], similarity=part.similarity, mask=part.mask, dropout=dropout,
                group=group, layout=layout,
            )
            for part in grouped.by_key_head(*tokens, chosen, whole)
        ]  # fmt: skip
        return grouped.joined(answers, tokens, value_shard.shape[-1])
    exchange, question, shards = _asked(
        query, key_shard, value_shard, similarity, mask, bias, dropout, group, layout
    )
    job: Replicated | Ring
    if layout == "replicated":
        job = Replicated(question, exchange, shards.keys[exchange.rank][0].position)
    else:
        job = Ring(question, exchange, shards)
    if not torch.is_grad_enabled():
        return job.forward(query, key_shard, value_shard).answer
    leaves = question.leaves(query, key_shard)
    answer: Tensor = _Attention.apply(job, query, key_shard, value_shard, *leaves)  # type: ignore[no-untyped-call]
    return answer


def explain(
    query: Tensor,
    key_shard: Tensor,
    value_shard: Tensor,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    group: Any = None,
    layout: Layout = "replicated",
) -> ShardPlan:
    """What :func:`attend` would move and hold on each rank; every rank calls it."""
    exchange, question, shards = _asked(
        query, key_shard, value_shard, similarity, mask, bias, 0.0, group, layout
    )
    return tensor_plan(
        ranks=exchange.ranks,
        layout=layout,
        entries=math.prod(question.batch),
        queries=[sum(run.length for run in own) for own in shards.queries],
        keys=[sum(run.length for run in own) for own in shards.keys],
        sizes=(query.shape[-1], key_shard.shape[-1], value_shard.shape[-1]),
        itemsize=query.element_size(),
        key_entries=(math.prod(key_shard.shape[:-2]), math.prod(value_shard.shape[:-2])),
    )


class _Attention(torch.autograd.Function):
    """Attention as one step of the graph: ranks exchange gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, job: Replicated | Ring, *tensors: Tensor) -> Tensor:
        answer, log_total = job.forward(*tensors[:3])
        ctx.job = job
        ctx.save_for_backward(*tensors, answer, log_total)
        return answer

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():  # else a graph of this would silently lack its own part
            raise NotImplementedError(
                "qkv.cluster.attend has no second derivatives: call backward or autograd.grad "
                "with create_graph=False"
            )
        query, key, value, *leaves, answer, log_total = ctx.saved_tensors
        answered = Answered(answer, log_total, gradient)
        return None, *ctx.job.backward((query, key, value), answered, leaves)


def _asked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: SimilarityLike,
    mask: MaskLike | None,
    bias: BiasLike | None,
    dropout: float,
    group: Any,
    layout: Layout,
) -> tuple[Exchange, Question, Shards]:
    """The question, checked on all ranks alike."""
    check_layout(layout)
    exchange = Exchange(group)
    for name, tensor in (("query", query), ("key_shard", key), ("value_shard", value)):
        if not isinstance(tensor, Tensor) or tensor.ndim < 2 or tensor.dtype not in _DTYPES:
            got = f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor)
            raise TypeError(f"{name} must be a floating tensor of two axes or more; got {got}")
    own = [query.shape[-2], key.shape[-2], query.shape[-1], key.shape[-1], value.shape[-1],
           _DTYPES[query.dtype], int(value.shape[-2] != key.shape[-2])]  # fmt: skip
    told = exchange.facts(own)
    if any(each[6] for each in told):
        raise ValueError(
            f"value_shard must have shape (..., {key.shape[-2]}, d_v) to match key_shard on every "
            f"rank; on this one it has {tuple(value.shape)}"
        )
    if any(each[2:6] != own[2:6] for each in told):
        raise ValueError(
            "query, key_shard and value_shard must have the same sizes and type on all ranks; got "
            + "; ".join(f"rank {rank} {each[2:5]}" for rank, each in enumerate(told))
        )
    queries, keys = [each[0] for each in told], [each[1] for each in told]
    if layout == "replicated" and len(set(queries)) > 1:
        raise ValueError(
            f"query must be the same on all ranks under layout='replicated'; got {queries} queries"
        )
    n = queries[0] if layout == "replicated" else sum(queries)
    of_queries = chunks(queries, layout)
    shards = Shards(of_queries, chunks(keys, layout))
    batch = tuple(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2]))
    chosen, limits, added = _parted(similarity, mask, bias, batch, n, sum(keys))
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
    row_keys = None
    if dropout:
        row_keys = draw(dropout, batch, n, query.device).row_keys
        exchange.from_first(row_keys)
    question = Question(chosen, limits, added, dropout, row_keys, batch, n, sum(keys))
    return exchange, question, shards


def _parted(
    similarity: SimilarityLike,
    mask: MaskLike | None,
    bias: BiasLike | None,
    batch: tuple[int, ...],
    n: int,
    m: int,
) -> tuple[Any, Any, PositionBias | None]:
    """The similarity, what limits, and what is added by position."""
    together = with_bias(mask, bias)
    if together is None:
        return as_similarity(similarity), None, None
    whole = as_mask(together)
    whole.check(batch, n, m)
    if whole.needs_scores:
        raise ValueError(
            f"mask {whole!r} ranks the scores of all keys, which no rank has: qkv.cluster.attend "
            "takes masks by position and tensors"
        )
    limits, biases = whole.without_positions()
    each = [own for own in biases if isinstance(own, PositionBias)]
    added = None if not each else Sum(each) if len(each) > 1 else each[0]
    return as_similarity(similarity), limits, added
