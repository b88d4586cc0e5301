"""Dot products with a bias of the distance alone: the kernel's mask is a view of one line.

With queries in reverse order, what is added to query a and key j is line[a + j]: the block (n, m)
is an overlapping view of n + m − 1 numbers, which PyTorch's kernel reads as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.mask import Causal
from qkv.operators.base import Result
from qkv.operators.tiles import spans
from qkv.problem import Problem
from qkv.tracing import sizes_are_known

#: Under Causal, queries go in so many blocks, each with the keys that some of it may see.
CAUSAL_BLOCKS = 8

#: (query, key, value, mask, queries that see nothing) -> the kernel's answer.
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Result]


def line_of(problem: Problem) -> Tensor | None:
    """What is added at each distance from −(m − 1) to n − 1, (…, n + m − 1), −inf where the mask
    hides it; None where the bias or the mask depends on more than the distance."""
    if problem.position_bias is None or not has_line(problem):
        return None
    distance = torch.arange(1 - problem.m, problem.n, device=problem.query.device)
    line = problem.position_bias.along(distance)
    if line is None or problem.mask is None:
        return line
    allowed = problem.mask.allowed_at(distance)
    assert allowed is not None, "it has a line"
    return torch.where(allowed, line, -torch.inf)


def has_line(problem: Problem) -> bool:
    """Whether bias and mask depend on the distance alone."""
    nowhere = torch.arange(0, device=problem.query.device)
    if problem.position_bias is None or problem.position_bias.along(nowhere) is None:
        return False
    return problem.mask is None or problem.mask.allowed_at(nowhere) is not None


def share(problem: Problem) -> float:
    """Of all pairs, those that are visited."""
    return (CAUSAL_BLOCKS + 1) / (2 * CAUSAL_BLOCKS) if _skips_ahead(problem) else 1.0


def _skips_ahead(problem: Problem) -> bool:
    """Whether blocks of queries leave out the keys that are ahead of all of them."""
    if not isinstance(problem.mask, Causal) or not sizes_are_known(problem.n, problem.m):
        return False
    return CAUSAL_BLOCKS < problem.n <= problem.m


def attend_along(
    problem: Problem, line: Tensor, query: Tensor, key: Tensor, value: Tensor, attend: Attend
) -> Result:
    """The answer to queries, keys and values of four axes, by a kernel that takes masks."""
    n, m = problem.n, problem.m
    line = line.to(torch.promote_types(query.dtype, torch.float32))
    line = line.expand(*problem.batch, n + m - 1).reshape(*query.shape[:2], n + m - 1)
    skips = _skips_ahead(problem)
    answers, log_totals = [], []
    for start, stop in spans(n, -(-n // CAUSAL_BLOCKS)) if skips else [(0, n)]:
        seen = stop + m - n if skips else m
        own = line[..., n - stop : n - start + seen - 1]
        answer, log_total = attend(
            query[..., start:stop, :].flip(-2),
            key[..., :seen, :],
            value[..., :seen, :],
            _sliding(own, seen),
            None if problem.mask is None else _all_hidden(own, seen),
        )
        answers.append(answer.flip(-2))
        if log_total is not None:
            log_totals.append(log_total.flip(-1))
    return torch.cat(answers, dim=-2), torch.cat(log_totals, dim=-1) if log_totals else None


def _sliding(line: Tensor, size: int) -> Tensor:
    """Every run of so many numbers of the line, (…, runs, size): a view, if the size is known."""
    if sizes_are_known(size):
        return line.unfold(-1, size, 1)
    first = torch.arange(line.shape[-1] - size + 1, device=line.device)
    return line[..., first.unsqueeze(-1) + torch.arange(size, device=line.device)]


def _all_hidden(line: Tensor, size: int) -> Tensor:
    """Of each run of so many numbers of the line, whether all are −inf; without the block."""
    count = (line != -torch.inf).cumsum(-1)
    before = F.pad(count, (1, 0))[..., : count.shape[-1] - size + 1]
    return count[..., size - 1 :] == before
