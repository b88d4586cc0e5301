"""Local fits: the mean that attention gives (degree 0), and the line through it (degree 1).

A local line minimises Σ K(x, kᵢ) (yᵢ − a − bᵀ(kᵢ − x))². Its ingredients are attention too, with
products of keys and targets as values: a = ȳ + bᵀ(x − k̄), with b = cov(k, k)⁺ cov(k, y) under the
weights. Where the keys in sight do not spread, b is 0 and the mean remains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.regression import rows
from qkv.regression.examples import Array, Examples, Keys, Places, Width
from qkv.regression.pool import Everyone, pool
from qkv.similarity import Kernel

#: Products of keys lose eps · (spread / bandwidth)²; beyond this they are formed about each query.
SAFE_SPREAD = 2000.0
_FLAT = 1e-9  # a spread of keys, relative to the bandwidth squared, that gives no slope
_THIN = 1e-7  # a spread relative to that along another axis, too thin for a slope of any accuracy
_ALMOST_ALL = 1 - 1e-6


class Fit(NamedTuple):
    answer: Array  # (n, k)
    log_total: Array  # (n,); -inf where there is nothing to attend to
    reach: Array  # (n,): 1 + the squared distance from the mean key, in units of its covariance


class Others(NamedTuple):
    """What the fit without each example says of it."""

    answer: Array  # (m, k); the mean of all others for one that sees none of them
    leverage: Array  # (m,): the example's share in its own fitted value


def fit(examples: Examples, kernel: Kernel, width: Width, query: Keys, degree: int) -> Fit:
    """The fitted values at the queries."""
    if degree == 0 or examples.keys.number.shape[1] == 0:
        said = pool(examples, kernel, width, query, examples.target)
        return Fit(said.answer, said.log_total, np.ones(len(query)))
    return _line(examples, kernel, width, query)


class LeaveOneOut:
    """What the fit without each example says of it, at any number of widths, each in one pass.

    Both fits are weighted least squares, for which ŷ₋ᵢ = (ŷᵢ − Lᵢᵢ yᵢ)/(1 − Lᵢᵢ) holds.
    """

    def __init__(self, examples: Examples, kernel: Kernel, degree: int) -> None:
        self.examples, self.kernel = examples, kernel
        self.straight = degree == 1 and examples.keys.number.shape[1] > 0
        self.everyone = Everyone(examples, kernel, examples.target)
        self.prior = _means_of_others(examples)

    def at(self, width: Width) -> Others:
        said, share = self.everyone.without_itself(width)
        answer, target = said.answer, self.examples.target
        if self.straight:
            places = np.arange(len(target))
            line = _line(self.examples, self.kernel, width, self.examples.keys, own=places)
            share = np.minimum(share * line.reach, 1.0)
            # A line that must pass through a point says nothing of it; the mean of the others does.
            sound = (share < _ALMOST_ALL)[:, None]
            rest = np.where(sound, 1 - share[:, None], 1.0)
            answer = np.where(sound, (line.answer - share[:, None] * target) / rest, answer)
        alone = said.log_total == -np.inf
        if alone.any():
            answer = np.where(alone[:, None], self.prior, answer)
            share = np.where(alone, 1.0, share)
        return Others(answer, share)


def _means_of_others(examples: Examples) -> Array:
    """The mean of all examples but one, for each of them."""
    copies, target = examples.copies, examples.target
    total, taken = copies.sum(), np.minimum(copies, 1.0)
    rest = (total - taken)[:, None]
    sums = total * examples.mean - taken[:, None] * target
    return np.where(rest > 0, np.divide(sums, rest, where=rest > 0, out=np.zeros_like(sums)),
                    examples.mean)  # fmt: skip


def _line(
    examples: Examples, kernel: Kernel, width: Width, query: Keys, own: Places | None = None
) -> Fit:
    unit, key, target = width.bandwidth, examples.keys.number, examples.target
    centre = key.mean(axis=0)
    z, x = (key - centre) / unit, (query.number - centre) / unit
    if max(np.abs(z).max(), np.abs(x).max(initial=0)) <= SAFE_SPREAD:
        columns = np.hstack([z, _outer(z, z), target, _outer(z, target)])
        said = pool(examples, kernel, width, query, columns, own)
        d, k = z.shape[1], target.shape[1]
        mean_z, zz, mean_y, zy = np.split(said.answer, np.cumsum([d, d * d, k]), axis=1)
        moments = mean_z - x, zz.reshape(-1, d, d), mean_y, zy.reshape(-1, d, k)
        covariance = moments[1] - mean_z[:, :, None] * mean_z[:, None, :]
        slope_side = moments[3] - mean_z[:, :, None] * mean_y[:, None, :]
        return _solve(moments[0], covariance, mean_y, slope_side, said.log_total)
    parts = []
    for batch, weights, log_total in rows.weights(examples, kernel, width, query, own):
        step = (key[None] - query.number[batch, None]) / unit  # (rows, m, d)
        mean_z, mean_y = np.einsum("nm,nmd->nd", weights, step), weights @ target
        step -= mean_z[:, None]
        covariance = np.einsum("nm,nmd,nme->nde", weights, step, step, optimize=True)
        slope_side = np.einsum("nm,nmd,mk->ndk", weights, step, target, optimize=True)
        parts.append(_solve(mean_z, covariance, mean_y, slope_side, log_total))
    return Fit(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _outer(left: Array, right: Array) -> Array:
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)


def _solve(
    offset: Array, covariance: Array, mean: Array, slope_side: Array, log_total: Array
) -> Fit:
    """From the moments under the weights to the fit; `offset` is the mean key as seen from x."""
    eigenvalues, vectors = np.linalg.eigh(covariance)
    largest = eigenvalues[:, -1:]
    steep = eigenvalues > np.maximum(_FLAT, _THIN * largest)
    inverse = np.divide(1.0, eigenvalues, where=steep, out=np.zeros_like(eigenvalues))
    seen = np.einsum("nde,nd->ne", vectors, offset)  # the offset along each axis of the spread
    sides = np.einsum("nde,ndk->nek", vectors, slope_side)
    answer = mean - np.einsum("ne,ne,nek->nk", seen, inverse, sides)
    return Fit(answer, log_total, 1 + (seen**2 * inverse).sum(axis=1))
