"""Positional encodings: sinusoidal, learned and rotary."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sinusoidal(nn.Module):
    """x + p with p[i, 2j] = sin(i / base^(2j/d)) and p[i, 2j+1] = cos(i / base^(2j/d))."""

    def __init__(self, base: float = 10000.0) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """(…, n, d) -> (…, n, d), the first row standing at position `start`."""
        angles = _angles(x, start, self.base)  # (n, ceil(d / 2))
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return x + waves[..., : x.shape[-1]].to(x.dtype)

    def extra_repr(self) -> str:
        return f"base={self.base}"


class Learned(nn.Module):
    """x + p with a learned row p[i] for each of `length` positions."""

    def __init__(
        self,
        length: int,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """(…, n, d) -> (…, n, d), the first row standing at position `start`."""
        stop = start + x.shape[-2]
        if stop > len(self.weight):
            raise ValueError(
                f"x must end at position {len(self.weight)} at the latest, "
                f"the number of positions learned; got {stop}"
            )
        return x + self.weight[start:stop]

    def extra_repr(self) -> str:
        return f"length={self.weight.shape[0]}, d_model={self.weight.shape[1]}"


class Rotary(nn.Module):
    """Queries and keys rotated by their position, so that qᵀk depends on i − j alone.

    Pair j of the dimensions of a token at position i is rotated by the angle i / base^(2j/d). Pairs
    are (j, j + d/2), or neighbours (2j, 2j + 1) where ``interleaved=True``.
    """

    def __init__(self, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__()
        self.base, self.interleaved = base, interleaved

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """(…, n, d) -> (…, n, d), the first row standing at position `start`."""
        if x.shape[-1] % 2:
            raise ValueError(f"rotary needs heads of even size; got {x.shape[-1]}")
        angles = _angles(x, start, self.base)  # (n, d / 2)
        sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        if self.interleaved:
            left, right = x[..., 0::2], x[..., 1::2]
        else:
            left, right = x.chunk(2, dim=-1)
        rotated = left * cos - right * sin, right * cos + left * sin
        if self.interleaved:
            return torch.stack(rotated, dim=-1).flatten(-2)
        return torch.cat(rotated, dim=-1)

    def extra_repr(self) -> str:
        return f"base={self.base}, interleaved={self.interleaved}"


def _angles(x: Tensor, start: int, base: float) -> Tensor:
    """i / base^(2j/d) for the positions i of `x` (…, n, d) and j up to d/2, at least in float32."""
    n, d = x.shape[-2:]
    # Half types cannot count beyond 2048, let alone tell the angles of neighbours apart.
    dtype = torch.promote_types(x.dtype, torch.float32)
    positions = torch.arange(start, start + n, dtype=dtype, device=x.device)
    pairs = torch.arange(0, d, 2, dtype=dtype, device=x.device)
    return positions.unsqueeze(-1) * base ** (-pairs / d)
