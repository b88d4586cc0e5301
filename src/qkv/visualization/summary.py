"""Summaries of weights: numbers per head, fewer tokens, several layers in one matrix.

All take weights (…, n, m) whose rows sum to 1, or are all 0, as :func:`qkv.weights` and
:func:`qkv.record` give them; torch tensors in, torch tensors out, and NumPy alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.problem import as_tensors

ArrayT = TypeVar("ArrayT", Tensor, npt.NDArray[np.floating[Any]])


def entropy(weights: ArrayT) -> ArrayT:
    """The entropy of each head's attention in bits: −Σ w log₂ w of a row, (…, n, m) -> (…).

    The mean over the rows. 0 where each row attends to one key; m keys of equal weight give
    log₂ m.

    >>> import numpy as np, qkv
    >>> qkv.summary.entropy(np.array([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    array(1.5)
    """
    (tensor,), _ = as_tensors(weights=weights)
    bits = torch.special.entr(tensor).sum(-1).mean(-1) / math.log(2)
    return _like(weights, bits)


def distance(weights: ArrayT) -> ArrayT:
    """The attention distance of each head in tokens: the mean of Σ w·abs(i − j) over rows; -> (…).

    Rows are aligned to the end of the keys, as in :class:`qkv.mask.Causal`. Rows that attend to
    nothing do not count.

    >>> import numpy as np, qkv
    >>> qkv.summary.distance(np.eye(3)[[1, 2, 0]])  # to the next, the last to the first
    array(1.33333333)
    """
    (tensor,), _ = as_tensors(weights=weights)
    n, m = tensor.shape[-2:]
    here = torch.arange(m - n, m, device=tensor.device).unsqueeze(-1)
    apart = (here - torch.arange(m, device=tensor.device)).abs().to(tensor.dtype)  # (n, m)
    looking = tensor.sum(-1) > 0
    far = (tensor * apart).sum(-1).sum(-1) / looking.sum(-1).clamp(min=1)
    return _like(weights, far)


def information(weights: ArrayT) -> ArrayT:
    """The information of each head beyond popular keys and fixed distances, in bits: -> (…).

    The mean over the rows of Σ w log₂(w / e) over keys more than one token away, where e is the
    weight to be expected from key and distance alone: the share of all attention that the key
    gets, or that its distance from the query gets, whichever is greater. It is 0 for a head that
    attends evenly to all keys, always to the same key, around the token itself, or always at the
    same distance.

    >>> import numpy as np, qkv
    >>> even, same, own = np.full((4, 4), 0.25), np.eye(4)[[0, 0, 0, 0]], np.eye(4)
    >>> qkv.summary.information(np.stack([even, same, own, np.eye(4)[[3, 2, 1, 0]]]))
    array([0., 0., 0., 1.])
    """
    (tensor,), _ = as_tensors(weights=weights)
    n, m = tensor.shape[-2:]
    popular = tensor.mean(-2, keepdim=True).expand_as(tensor)
    apart = (
        torch.arange(m, device=tensor.device)
        - torch.arange(n, device=tensor.device)[:, None]
        + n
        - 1
    )
    shares = tensor.new_zeros(*tensor.shape[:-2], n + m - 1)  # of each distance
    shares.index_add_(-1, apart.flatten(), tensor.flatten(-2) / n)
    expected = torch.maximum(popular, shares[..., apart])
    bits = torch.special.xlogy(tensor, tensor) - torch.special.xlogy(tensor, expected)
    bits = torch.where((apart - (m - 1)).abs() > 1, bits, 0)  # rows stand at the end of the keys
    return _like(weights, bits.sum((-2, -1)) / (n * math.log(2)))


def most_telling(weights: ArrayT) -> tuple[int, int]:
    """The layer and the head of most :func:`information`, of weights (layers, heads, n, m)."""
    (tensor,), _ = as_tensors(weights=weights)
    bits = torch.as_tensor(information(tensor)).nan_to_num(nan=-1.0)
    layer, head = divmod(int(bits.argmax()), tensor.shape[-3])
    return layer, head


def mean_over_heads(weights: ArrayT) -> ArrayT:
    """(…, heads, n, m) -> (…, n, m)."""
    (tensor,), _ = as_tensors(weights=weights)
    if tensor.ndim < 3:
        raise ValueError(f"weights must have shape (..., heads, n, m); got {tuple(tensor.shape)}")
    return _like(weights, tensor.mean(-3))


def rollout(weights: ArrayT, residual: float = 0.5) -> ArrayT:
    """The attention of the last layer to the input tokens: (layers, …, heads, n, n) -> (…, n, n).

    Layer by layer, the mean over heads with a share `residual` of each token itself, multiplied up:
    attention rollout (Abnar and Zuidema, 2020), where that share is one half.

    >>> import numpy as np, qkv
    >>> back = np.array([[1.0, 0.0], [1.0, 0.0]])  # both look at the first
    >>> qkv.summary.rollout(np.stack([back, back])[:, None])
    array([[1.  , 0.  ],
           [0.75, 0.25]])
    """
    (tensor,), _ = as_tensors(weights=weights)
    if tensor.ndim < 4 or tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(
            f"weights must have shape (layers, ..., heads, n, n); got {tuple(tensor.shape)}"
        )
    if not 0 <= residual <= 1:
        raise ValueError(f"residual must be between 0 and 1; got {residual}")
    itself = torch.eye(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    accumulated = itself
    for layer in tensor.mean(-3):
        mixed = _rows_to_one(residual * itself + (1 - residual) * layer)
        accumulated = mixed @ accumulated
    return _like(weights, accumulated)


def hide(weights: ArrayT, keys: Sequence[int] = (0,)) -> ArrayT:
    """Without these keys, each row scaled to sum to 1 again: (…, n, m) -> (…, n, m − …).

    By default without the first, which many models use as an attention sink. A row with nothing
    left is 0.

    >>> import numpy as np, qkv
    >>> qkv.summary.hide(np.array([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]]))
    array([[0.75, 0.25],
           [0.  , 0.  ]])
    """
    (tensor,), _ = as_tensors(weights=weights)
    m = tensor.shape[-1]
    for key in keys:
        if not -m <= key < m:
            raise ValueError(f"keys must be between 0 and {m - 1}; got {key}")
    hidden = {key % m for key in keys}
    visible = torch.tensor([key for key in range(m) if key not in hidden], device=tensor.device)
    return _like(weights, _rows_to_one(tensor[..., visible.long()]))


def merge(
    weights: ArrayT,
    queries: Sequence[int | None] | None = None,
    keys: Sequence[int | None] | None = None,
) -> ArrayT:
    """From subwords to words: (…, n, m) -> (…, words, words).

    The weight of a word as a key is the sum over its tokens, its row as a query their mean.
    `queries` and `keys` give for each token the number of its word, from 0 on; tokens with None
    (padding, a separator) are left out, and each row is scaled to sum to 1 again.

    >>> import numpy as np, qkv
    >>> weights = np.array([[0.2, 0.2, 0.6], [0.0, 0.2, 0.8], [0.5, 0.25, 0.25]])
    >>> qkv.summary.merge(weights, [0, 0, 1], [0, 0, 1])  # the first two tokens are one word
    array([[0.3 , 0.7 ],
           [0.75, 0.25]])
    """
    (tensor,), _ = as_tensors(weights=weights)
    if keys is not None:
        tensor = tensor @ _membership("keys", keys, tensor.shape[-1], tensor)
        tensor = _rows_to_one(tensor)
    if queries is not None:
        members = _membership("queries", queries, tensor.shape[-2], tensor)  # (n, words)
        tensor = members.mT @ tensor / members.sum(0).unsqueeze(-1)
        tensor = _rows_to_one(tensor)
    return _like(weights, tensor)


def _membership(name: str, words: Sequence[int | None], tokens: int, like: Tensor) -> Tensor:
    """Which word each token belongs to, as a matrix of 0 and 1, (tokens, words)."""
    if len(words) != tokens:
        raise ValueError(f"{name} must name a word for each of {tokens} tokens; got {len(words)}")
    numbers = sorted({word for word in words if word is not None})
    if numbers != list(range(len(numbers))) or (tokens > 0 and not numbers):
        raise ValueError(f"{name} must number the words 0, 1, 2 and so on; got {list(words)}")
    members = like.new_zeros(tokens, len(numbers))
    for token, word in enumerate(words):
        if word is not None:
            members[token, word] = 1
    return members


def _rows_to_one(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def _like(weights: ArrayT, result: Tensor) -> ArrayT:
    """The result in the same kind of array as `weights`."""
    return result.detach().numpy() if isinstance(weights, np.ndarray) else result
