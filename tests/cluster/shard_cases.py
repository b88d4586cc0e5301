"""Cases that every rank of a team runs: what it finds equals what one process finds."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import qkv
from qkv import cluster
from qkv.benchmarks.measure import peak_extra_bytes
from qkv.cluster import sharding

N, D, D_V, BATCH, HEADS = 29, 5, 3, 2, 3


class CityBlock(torch.nn.Module):
    """A similarity of someone's own, with something to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -self.scale * (query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1)


def similarities() -> dict[str, Callable[[], Any]]:
    return {
        "dot": lambda: None,
        "bilinear": lambda: qkv.Bilinear(D, D),
        "cosine": lambda: qkv.Cosine(),
        "additive": lambda: qkv.Additive(D, D, 7),
        "gaussian": lambda: qkv.Gaussian(bandwidth=0.8, learnable=True),
        "triangular": lambda: qkv.Triangular(bandwidth=4.0),
        "laplacian": lambda: qkv.Laplacian(bandwidth=1.5),
        "euclidean": lambda: qkv.Euclidean(),
        "equal": lambda: qkv.Equal(),
        "sum": lambda: 0.5 * qkv.ScaledDot() + qkv.Additive(D, D, 7),
        "callable": CityBlock,
    }


def masks(n: int) -> dict[str, Callable[[], Any]]:
    return {
        "none": lambda: None,
        "causal": qkv.mask.Causal,
        "window": lambda: qkv.mask.Window(3, 2),
        "lengths": lambda: qkv.mask.Lengths([n - 4, 3]),
        "blocks": lambda: qkv.mask.Blocks(6),
        "both": lambda: qkv.mask.Causal() & qkv.mask.Lengths([n, 11]),
        "boolean": lambda: torch.rand(n, n, generator=torch.Generator().manual_seed(2)) < 0.4,
        "floating": lambda: torch.randn(
            n, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64
        ).requires_grad_(),
    }


def _tokens(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(BATCH, HEADS, n, D), (BATCH, 1, n, D), (BATCH, HEADS, n, D_V)]
    return [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]


def _similarity(name: str) -> Any:
    torch.manual_seed(5)
    found = similarities()[name]()
    return found.double() if isinstance(found, torch.nn.Module) else found


def _learned(*things: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for thing in things:
        if isinstance(thing, torch.nn.Module):
            found += list(thing.parameters())
        elif isinstance(thing, Tensor) and thing.requires_grad:
            found.append(thing)
    return found


def _lengths(n: int, ranks: int, split: str) -> list[int]:
    even = sharding.even_lengths(n, ranks)
    if split == "even":
        return even
    rest = n - 2  # one rank has two positions, one has none, if there are three; the last the rest
    return [2, rest] if ranks == 2 else [2, 0, *sharding.even_lengths(rest, ranks - 2)]


def same_as_one_process(
    group: Any, layout: Any, similarity: str, mask: str, split: str = "even", dropout: float = 0.0
) -> None:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    whole = [token.requires_grad_() for token in _tokens(N)]
    if similarity == "equal":
        whole = [token.detach().round().requires_grad_() for token in whole]
    own_similarity, own_mask = _similarity(similarity), masks(N)[mask]()
    torch.manual_seed(11)
    expected = qkv.attend(*whole, similarity=own_similarity, mask=own_mask, dropout=dropout)
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4)).double()
    learned = _learned(own_similarity, own_mask)
    wanted = torch.autograd.grad(
        expected, [*whole, *learned], slope, allow_unused=True, materialize_grads=True
    )

    placed = sharding.chunks(_lengths(N, ranks, split), layout)

    def mine(tensor: Tensor) -> Tensor:
        runs = placed[rank]
        return torch.cat([tensor.narrow(-2, run.position, run.length) for run in runs], -2)

    query, key, value = whole
    if layout == "replicated":
        tokens = [query.detach(), mine(key.detach()), mine(value.detach())]
        answer_wanted, slope_here = expected, slope
    else:
        tokens = [mine(token.detach()) for token in whole]
        answer_wanted, slope_here = mine(expected), mine(slope)
    tokens = [token.clone().requires_grad_() for token in tokens]
    torch.manual_seed(11 if rank == 0 else 12)  # the first rank's seed counts
    answer = cluster.attend(
        *tokens, similarity=own_similarity, mask=own_mask, dropout=dropout, group=group,
        layout=layout,
    )  # fmt: skip
    torch.testing.assert_close(answer, answer_wanted, rtol=1e-10, atol=1e-12)
    found = torch.autograd.grad(
        answer, [*tokens, *learned], slope_here, allow_unused=True, materialize_grads=True
    )
    of_query = wanted[0] if layout == "replicated" else mine(wanted[0])
    for name, one, other in zip(
        ("query", "key", "value"), found, (of_query, mine(wanted[1]), mine(wanted[2])), strict=False
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: n + m)
    for one, other in zip(found[3:], wanted[3:], strict=True):
        total = one.clone()
        if layout != "replicated":
            dist.all_reduce(total, group=group)
        torch.testing.assert_close(total, other, rtol=1e-9, atol=1e-11)


def biased(group: Any, layout: Any) -> None:
    """Biases by position, learned ones too."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    tokens = _tokens(N)
    table = torch.nn.Parameter(torch.randn(9, dtype=torch.float64))

    def bias(query_position: Tensor, key_position: Tensor) -> Tensor:
        return table[(key_position - query_position).clamp(-4, 4) + 4]

    expected = qkv.attend(*tokens, bias=bias, mask=qkv.mask.Causal())
    (wanted,) = torch.autograd.grad(expected.square().sum(), table)
    placed = sharding.chunks(_lengths(N, ranks, "even"), layout)
    runs = placed[rank]

    def mine(tensor: Tensor) -> Tensor:
        return torch.cat([tensor.narrow(-2, run.position, run.length) for run in runs], -2)

    query = tokens[0] if layout == "replicated" else mine(tokens[0])
    answer = cluster.attend(
        query, mine(tokens[1]), mine(tokens[2]), bias=bias, mask=qkv.mask.Causal(), group=group,
        layout=layout,
    )  # fmt: skip
    own = expected if layout == "replicated" else mine(expected)
    torch.testing.assert_close(answer, own, rtol=1e-10, atol=1e-12)
    (found,) = torch.autograd.grad(answer.square().sum(), table)
    if layout != "replicated":
        dist.all_reduce(found, group=group)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def round_trip(group: Any, layout: Any, n: int) -> None:
    whole = torch.arange(2.0 * n * 3).view(2, n, 3)
    part = cluster.shard(whole, layout=layout, group=group)
    assert torch.equal(cluster.unshard(part, layout=layout, group=group), whole)


def counted(group: Any, layout: Any) -> tuple[list[int], list[int], list[int], int, int]:
    """What the plan says, and what was sent forwards and backwards."""
    from qkv.cluster import attention

    made: list[Any] = []
    plain = attention.Exchange

    def watched(*words: Any) -> Any:
        made.append(plain(*words))
        return made[-1]

    query, key, value = _tokens(N)
    if layout != "replicated":
        query = cluster.shard(query, layout=layout, group=group)
    shards = [cluster.shard(each, group=group, layout=layout) for each in (key, value)]
    plan = cluster.explain(query, *shards, group=group, layout=layout)
    attention.Exchange = watched  # type: ignore[misc,assignment]
    try:
        tokens = [each.clone().requires_grad_() for each in (query, *shards)]
        answer = cluster.attend(*tokens, group=group, layout=layout)
        forwards = made[0].sent
        answer.sum().backward()
        return plan.sent, plan.sent_back, plan.received, forwards, made[0].sent - forwards
    finally:
        attention.Exchange = plain  # type: ignore[misc]


def refused(group: Any, what: str) -> str:
    rank = dist.get_rank(group)
    query, key, value = _tokens(N)
    try:
        match what:
            case "ranking":
                cluster.attend(query, key, value, mask=qkv.mask.TopK(3), group=group)
            case "layout":
                cluster.attend(query, key, value, group=group, layout="star")  # type: ignore[arg-type]
            case "queries":
                cluster.attend(query[..., rank:, :], key, value, group=group)
            case "sizes":
                cluster.attend(query, key, value[..., rank:], group=group)
            case "value":
                cluster.attend(query, key, value[..., rank:, :], group=group)
            case "second derivatives":
                query.requires_grad_()
                answer = cluster.attend(query, key, value, group=group)
                torch.autograd.grad(answer.sum(), query, create_graph=True)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return "nothing was refused"


def measured(group: Any, layout: Any) -> tuple[int, int]:
    """What the plan says that this rank holds, and what it does hold at most."""
    rank = dist.get_rank(group)
    tokens = torch.randn(3, 8, 2048, 256).unbind()
    query, *shards = (cluster.shard(each, layout="ring", group=group).clone() for each in tokens)
    query = tokens[0].clone() if layout == "replicated" else query
    del tokens
    held = query.nbytes + sum(each.nbytes for each in shards)
    plan = cluster.explain(query, *shards, group=group, layout=layout)
    with torch.no_grad():
        cluster.attend(query, *shards, group=group, layout=layout)  # what is kept is made once
        twice = [
            peak_extra_bytes(lambda: cluster.attend(query, *shards, group=group, layout=layout))
            for _ in range(2)
        ]
    return plan.memory[rank], held + min(twice)


def one_sleeps(group: Any, layout: Any) -> str:
    """The last rank says nothing for longer than ranks wait; what the others are told."""
    last = dist.get_world_size(group) - 1
    impatient = dist.new_group([*range(last + 1)], timeout=dt.timedelta(seconds=1))
    if dist.get_rank(group) == last:
        time.sleep(2)
        return ""
    try:
        cluster.attend(*_tokens(N), group=impatient, layout=layout)
    except cluster.ClusterError as error:
        return str(error)
    return "nobody noticed"


def one_dies(group: Any) -> list[str]:
    """The last rank ends without a word; what the others are told."""
    query, key, value = _tokens(N)
    cluster.attend(query, key, value, group=group, layout="ring")
    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        os._exit(1)
    told = ["nobody noticed", "nobody noticed"]
    for place, layout in enumerate(["ring", "replicated"]):
        try:
            for _ in range(100):
                cluster.attend(query, key, value, group=group, layout=layout)  # type: ignore[arg-type]
        except cluster.ClusterError as error:
            told[place] = str(error)
    return told


def layer(group: Any, layout: Any, similarity: Any) -> None:
    """A layer over shards, wrapped by DistributedDataParallel, learns what one process does."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(3)
    options: dict[str, Any] = {"batch_first": True, "mask": qkv.mask.Causal(), "kv_heads": 1}
    plain = qkv.nn.MultiheadAttention(8, 2, similarity=similarity, **options).double()
    shared = qkv.nn.MultiheadAttention(
        8, 2, similarity=similarity, group=group, layout=layout, **options
    ).double()
    shared.load_state_dict(plain.state_dict())
    wrapped = DistributedDataParallel(shared, process_group=group)
    words = torch.randn(2, 13, 8, dtype=torch.float64)
    expected = plain(words, words, words, need_weights=False)[0]
    expected.square().sum().backward()
    own = cluster.shard(words, layout=layout, group=group)
    answer = wrapped(own, own, own, need_weights=False)[0]
    whole = cluster.unshard(answer, layout=layout, group=group)
    torch.testing.assert_close(whole, expected, rtol=1e-10, atol=1e-12)
    answer.square().sum().backward()
    ranks = dist.get_world_size(group)
    for one, other in zip(shared.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None  # which DistributedDataParallel has averaged
        torch.testing.assert_close(one.grad * ranks, other.grad, rtol=1e-9, atol=1e-11)


def fully_sharded(group: Any, layout: Any) -> None:
    """A layer over shards, its parameters sharded by FSDP2, learns what one process does."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    options: dict[str, Any] = {"batch_first": True, "mask": qkv.mask.Causal()}
    plain = qkv.nn.MultiheadAttention(8, 2, similarity=qkv.Additive, **options).double()
    shared = qkv.nn.MultiheadAttention(
        8, 2, similarity=qkv.Additive, group=group, layout=layout, **options
    ).double()
    shared.load_state_dict(plain.state_dict())
    fully_shard(shared, mesh=DeviceMesh.from_group(group, "cpu"))
    words = torch.randn(2, 13, 8, dtype=torch.float64)
    expected = plain(words, words, words, need_weights=False)[0]
    expected.square().sum().backward()
    own = cluster.shard(words, layout=layout, group=group)
    answer = shared(own, own, own, need_weights=False)[0]
    whole = cluster.unshard(answer, layout=layout, group=group)
    torch.testing.assert_close(whole, expected, rtol=1e-10, atol=1e-12)
    answer.square().sum().backward()
    ranks = dist.get_world_size(group)
    for one, other in zip(shared.parameters(), plain.parameters(), strict=True):
        assert one.to_local().numel() < one.numel()  # each rank holds some of it
        assert one.grad is not None  # which FSDP2 has averaged
        torch.testing.assert_close(
            one.grad.full_tensor() * ranks, other.grad, rtol=1e-9, atol=1e-11
        )


def decoding(group: Any, similarity: Any, kv_heads: int) -> None:
    """Step by step with a cache over ranks: the answers of the whole at once, and no key is
    repeated for the heads that share it."""
    torch.manual_seed(3)
    ranks = dist.get_world_size(group)
    options: dict[str, Any] = {"batch_first": True, "mask": qkv.mask.Causal()}
    options |= {"similarity": similarity, "kv_heads": kv_heads}
    plain = qkv.nn.MultiheadAttention(8, 4, **options).double()
    shared = qkv.nn.MultiheadAttention(8, 4, group=group, **options).double()
    shared.load_state_dict(plain.state_dict())
    words = torch.randn(2, 9, 8, dtype=torch.float64)
    cache = qkv.nn.KVCache(-(-9 // ranks), group)
    asked: list[int] = []
    attend = cluster.attend

    def watched(query: Tensor, key: Tensor, *others: Any, **options: Any) -> Tensor:
        asked.append(key.shape[1])
        return attend(query, key, *others, **options)

    with torch.no_grad(), mock.patch.object(cluster, "attend", watched):
        expected = plain(words, words, words, need_weights=False)[0]
        steps = [
            shared(part, part, part, need_weights=False, cache=cache)[0]
            for part in words.split([4, 1, 1, 3], dim=1)
        ]
    assert set(asked) == {kv_heads if similarity is None else 1}
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-10, atol=1e-12)
    assert cache.length == 9
    assert cache.key.shape[-2] <= -(-9 // ranks)
