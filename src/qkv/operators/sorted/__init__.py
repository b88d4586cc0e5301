"""Kernels over one-dimensional keys in near-linear time: sort, then sum by cells."""

from qkv.operators.sorted.offer import answer as answer
from qkv.operators.sorted.offer import estimate as estimate
from qkv.operators.sorted.offer import offer as offer
from qkv.operators.sorted.offer import refusal as refusal
