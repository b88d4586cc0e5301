"""PyTorch's own `context_parallel` beside ours, on gloo ranks.

It knows the kernels of GPUs alone. Where one of the CPU stands in for them, its ring runs here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel

import qkv
from qkv import cluster

_aten = torch.ops.aten
_SHAPE = (3, 2, 3, 24, 8)  # query, key and value of two batch entries and three heads


def _shards(mesh: DeviceMesh) -> tuple[Any, list[Tensor]]:
    """Its context over queries, keys and values, which become this rank's when it is entered."""
    whole = [each.clone() for each in torch.randn(_SHAPE, dtype=torch.float64).unbind()]
    return context_parallel(
        mesh, buffers=whole, buffer_seq_dims=[2] * 3, no_restore_buffers=set(whole)
    ), whole


def unaided(group: Any, *, causal: bool, gradients: bool) -> str:
    """What it says to CPUs where it cannot serve; "" where its answer is ours."""
    mesh = DeviceMesh.from_group(group, "cpu")
    entered, tokens = _shards(mesh)
    try:
        with entered, torch.set_grad_enabled(gradients):
            asked = [each.requires_grad_(gradients) for each in tokens]
            answer = F.scaled_dot_product_attention(*asked, is_causal=causal)
            if gradients:
                answer.sum().backward()
    except (NotImplementedError, RuntimeError) as error:
        return str(error)
    ours = cluster.attend(*tokens, group=group, layout="zigzag")
    torch.testing.assert_close(answer, ours, rtol=1e-12, atol=1e-13)
    return ""


def aided(group: Any) -> None:
    """Causal answers and gradients of its ring, on the kernel that stands in, are ours."""
    mesh = DeviceMesh.from_group(group, "cpu")
    entered, tokens = _shards(mesh)
    with torch.library._scoped_library("aten", "IMPL") as library, entered:
        library.impl("_scaled_dot_product_flash_attention", _forward, "CPU")
        library.impl("_scaled_dot_product_flash_attention_backward", _backward, "CPU")
        theirs = [each.clone().requires_grad_() for each in tokens]
        with torch.enable_grad():
            placed = [DTensor.from_local(each, mesh, [Shard(2)]) for each in theirs]
            found = _aten._scaled_dot_product_flash_attention(*placed, 0.0, True)[0].to_local()
            slope = torch.randn_like(found)
            found.backward(slope)
    # It deals sequences out as our zigzag does.
    ours = [each.clone().requires_grad_() for each in tokens]
    causal = qkv.mask.Causal()
    answer = cluster.attend(*ours, mask=causal, group=group, layout="zigzag")
    answer.backward(slope)
    # It merges in float32, whatever it is given.
    torch.testing.assert_close(answer, found, rtol=0, atol=1e-6)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=5e-6)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    answer, totals = _aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout, is_causal, scale=scale
    )
    nothing = torch.zeros((), dtype=torch.int64)
    lengths = query.shape[-2], key.shape[-2]
    return answer, totals, None, None, *lengths, nothing, nothing, answer.new_zeros(())


def _backward(
    slope: Tensor, query: Tensor, key: Tensor, value: Tensor, answer: Tensor, totals: Tensor,
    starts_q: Any, starts_k: Any, most_q: int, most_k: int, dropout: float, is_causal: bool,
    seed: Any, offset: Any, *, scale: float | None = None,
) -> Any:  # fmt: skip
    return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        slope, query, key, value, answer, totals, dropout, is_causal, scale=scale
    )
