"""Self-attention: a sequence asks itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv import pooling
from qkv.bias import BiasLike, as_bias
from qkv.linear import Linear
from qkv.mask import MaskLike
from qkv.similarity import SimilarityLike, as_similarity


class SelfAttention(nn.Module):
    """softmax(QKᵀ/√d_q) V with Q = XW_Q, K = XW_K and V = XW_V; R^(n×d) -> R^(n×d_v).

    `similarity` replaces the scaled dot product by any other; a learned one meets queries and keys
    of size d_q. `bias` is added to the scores by position, see :mod:`qkv.bias`.

    >>> import torch, qkv.nn
    >>> layer = qkv.nn.SelfAttention(d=16, d_q=8, d_v=4)
    >>> words = torch.randn(5, 16)
    >>> layer(words).shape, layer.weights(words).shape
    (torch.Size([5, 4]), torch.Size([5, 5]))
    """

    def __init__(
        self,
        d: int,
        d_q: int,
        d_v: int,
        similarity: SimilarityLike = None,
        *,
        bias: BiasLike | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query = Linear(d, d_q, bias=False, device=device, dtype=dtype)
        self.key = Linear(d, d_q, bias=False, device=device, dtype=dtype)
        self.value = Linear(d, d_v, bias=False, device=device, dtype=dtype)
        self.similarity = as_similarity(similarity).to(device=device, dtype=dtype)
        self.bias = None if bias is None else as_bias(bias)

    def reset_parameters(self) -> None:
        """Draw every projection anew; a learned similarity has a `reset_parameters` of its own."""
        for projection in (self.query, self.key, self.value):
            projection.reset_parameters()

    def forward(self, x: Tensor, mask: MaskLike | None = None) -> Tensor:
        """(…, n, d) -> (…, n, d_v)."""
        query, key = self._asked(x)
        value: Tensor = self.value(x)
        return pooling.attend(
            query, key, value, similarity=self.similarity, mask=mask, bias=self.bias
        )

    def weights(self, x: Tensor, mask: MaskLike | None = None) -> Tensor:
        """How much each row of `x` looks at each other one, (…, n, n)."""
        query, key = self._asked(x)
        return pooling.weights(query, key, similarity=self.similarity, mask=mask, bias=self.bias)

    def _asked(self, x: Tensor) -> tuple[Tensor, Tensor]:
        d = self.query.in_features
        if x.ndim < 2 or x.shape[-1] != d:
            raise ValueError(f"x must have shape (..., n, {d}); got {tuple(x.shape)}")
        return self.query(x), self.key(x)
