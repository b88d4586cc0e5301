"""Similarities made of others: sums, multiples, products of kernels, caps and temperatures.

    ScaledDot() + 0.5 * Cosine()              scores added
    Gaussian(2.0) * Boxcar(5.0)               kernels multiplied: near, and nothing beyond
    0.3 * Gaussian(0.1) + 0.7 * Gaussian(9)   kernels added
    ScaledDot().soft_cap(50.0)                50 · tanh(score / 50)
    ScaledDot().with_temperature([1.0] * 8, learnable=True)     one for each head

Where a combination is a dot product it says so, and runs as one.
"""

from qkv.similarity.algebra.multiples import Scaled as Scaled
from qkv.similarity.algebra.multiples import SoftCapped as SoftCapped
from qkv.similarity.algebra.multiples import Tempered as Tempered
from qkv.similarity.algebra.pairs import Product as Product
from qkv.similarity.algebra.pairs import Sum as Sum
