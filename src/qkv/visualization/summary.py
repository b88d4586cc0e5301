"""What a block of weights says in short: numbers per head, fewer tokens, several layers in one.

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
    """How spread the attention of each head is, in bits: −Σ w log₂ w of a row, (…, n, m) -> (…).

    The mean over the rows. 0 where each row looks at one key; m keys that share equally have
    log₂ m.

    >>> import numpy as np, qkv
    >>> qkv.summary.entropy(np.array([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    array(1.5)
    """
    (own,), _ = as_tensors(weights=weights)
    found = torch.special.entr(own).sum(-1).mean(-1) / math.log(2)
    return _like(weights, found)


def distance(weights: ArrayT) -> ArrayT:
    """How far each head looks, in tokens: the mean of Σ w·abs(i − j) over the rows; -> (…).

    Rows stand at the end of the keys, as in :class:`qkv.mask.Causal`. Rows that look at nothing
    do not count.

    >>> import numpy as np, qkv
    >>> qkv.summary.distance(np.eye(3)[[1, 2, 0]])  # to the next, the last to the first
    array(1.33333333)
    """
    (own,), _ = as_tensors(weights=weights)
    n, m = own.shape[-2:]
    here = torch.arange(m - n, m, device=own.device).unsqueeze(-1)
    apart = (here - torch.arange(m, device=own.device)).abs().to(own.dtype)  # (n, m)
    looking = own.sum(-1) > 0
    far = (own * apart).sum(-1).sum(-1) / looking.sum(-1).clamp(min=1)
    return _like(weights, far)


def information(weights: ArrayT) -> ArrayT:
    """What each head tells beyond popular keys and fixed distances, in bits: (…, n, m) -> (…).

    The mean over the rows of Σ w log₂(w / e) over keys more than one token away, where e is what
    one would expect without reading: the share of all attention that the key gets, or that its
    distance from the query gets, whichever is greater. A head tells nothing that looks evenly at
    all keys, at the same key from everywhere, around the token itself, or always as far back.

    >>> import numpy as np, qkv
    >>> even, same, own = np.full((4, 4), 0.25), np.eye(4)[[0, 0, 0, 0]], np.eye(4)
    >>> qkv.summary.information(np.stack([even, same, own, np.eye(4)[[3, 2, 1, 0]]]))
    array([0., 0., 0., 1.])
    """
    (own,), _ = as_tensors(weights=weights)
    n, m = own.shape[-2:]
    popular = own.mean(-2, keepdim=True).expand_as(own)
    apart = torch.arange(m, device=own.device) - torch.arange(n, device=own.device)[:, None] + n - 1
    shares = own.new_zeros(*own.shape[:-2], n + m - 1)  # of each distance
    shares.index_add_(-1, apart.flatten(), own.flatten(-2) / n)
    expected = torch.maximum(popular, shares[..., apart])
    bits = torch.special.xlogy(own, own) - torch.special.xlogy(own, expected)
    bits = torch.where((apart - (m - 1)).abs() > 1, bits, 0)  # rows stand at the end of the keys
    return _like(weights, bits.sum((-2, -1)) / (n * math.log(2)))


def most_telling(weights: ArrayT) -> tuple[int, int]:
    """The layer and the head of most :func:`information`, of weights (layers, heads, n, m)."""
    (own,), _ = as_tensors(weights=weights)
    bits = torch.as_tensor(information(own)).nan_to_num(nan=-1.0)
    layer, head = divmod(int(bits.argmax()), own.shape[-3])
    return layer, head


def mean_over_heads(weights: ArrayT) -> ArrayT:
    """(…, heads, n, m) -> (…, n, m)."""
    (own,), _ = as_tensors(weights=weights)
    if own.ndim < 3:
        raise ValueError(f"weights must have shape (..., heads, n, m); got {tuple(own.shape)}")
    return _like(weights, own.mean(-3))


def rollout(weights: ArrayT, residual: float = 0.5) -> ArrayT:
    """What the last layer's tokens hold of the first's: (layers, …, heads, n, n) -> (…, n, n).

    Layer by layer, the mean over heads with a share `residual` of each token itself, multiplied up:
    attention rollout (Abnar and Zuidema, 2020), where that share is one half.

    >>> import numpy as np, qkv
    >>> back = np.array([[1.0, 0.0], [1.0, 0.0]])  # both look at the first
    >>> qkv.summary.rollout(np.stack([back, back])[:, None])
    array([[1.  , 0.  ],
           [0.75, 0.25]])
    """
    (own,), _ = as_tensors(weights=weights)
    if own.ndim < 4 or own.shape[-1] != own.shape[-2]:
        raise ValueError(
            f"weights must have shape (layers, ..., heads, n, n); got {tuple(own.shape)}"
        )
    if not 0 <= residual <= 1:
        raise ValueError(f"residual must be between 0 and 1; got {residual}")
    itself = torch.eye(own.shape[-1], dtype=own.dtype, device=own.device)
    held = itself
    for layer in own.mean(-3):
        mixed = _rows_to_one(residual * itself + (1 - residual) * layer)
        held = mixed @ held
    return _like(weights, held)


def hide(weights: ArrayT, keys: Sequence[int] = (0,)) -> ArrayT:
    """Without these keys: what is left of each row is scaled up to 1. (…, n, m) -> (…, n, m − …).

    By default without the first, on which many models lay down what they have no use for. A row
    with nothing left is 0.

    >>> import numpy as np, qkv
    >>> qkv.summary.hide(np.array([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]]))
    array([[0.75, 0.25],
           [0.  , 0.  ]])
    """
    (own,), _ = as_tensors(weights=weights)
    m = own.shape[-1]
    for key in keys:
        if not -m <= key < m:
            raise ValueError(f"keys must be between 0 and {m - 1}; got {key}")
    hidden = {key % m for key in keys}
    kept = torch.tensor([key for key in range(m) if key not in hidden], device=own.device)
    return _like(weights, _rows_to_one(own[..., kept.long()]))


def merge(
    weights: ArrayT,
    queries: Sequence[int | None] | None = None,
    keys: Sequence[int | None] | None = None,
) -> ArrayT:
    """From subwords to words: (…, n, m) -> (…, words, words).

    A word gets what its tokens get together, and looks where its tokens look on average. `queries`
    and `keys` give for each token the number of its word, from 0 on; None is no word (padding, a
    separator) and is left out, and what is left of each row is scaled up to 1.

    >>> import numpy as np, qkv
    >>> weights = np.array([[0.2, 0.2, 0.6], [0.0, 0.2, 0.8], [0.5, 0.25, 0.25]])
    >>> qkv.summary.merge(weights, [0, 0, 1], [0, 0, 1])  # the first two tokens are one word
    array([[0.3 , 0.7 ],
           [0.75, 0.25]])
    """
    (own,), _ = as_tensors(weights=weights)
    if keys is not None:
        own = own @ _membership("keys", keys, own.shape[-1], own)
        own = _rows_to_one(own)
    if queries is not None:
        members = _membership("queries", queries, own.shape[-2], own)  # (n, words)
        own = members.mT @ own / members.sum(0).unsqueeze(-1)
        own = _rows_to_one(own)
    return _like(weights, own)


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


def _like(weights: ArrayT, found: Tensor) -> ArrayT:
    """What was found, in the kind of array that was given."""
    return found.detach().numpy() if isinstance(weights, np.ndarray) else found
