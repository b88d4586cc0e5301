"""Similarities that are no dot products, at machine speed: kernels compiled for the CPU."""

from qkv.operators.fused.offer import answer as answer
from qkv.operators.fused.offer import estimate as estimate
from qkv.operators.fused.offer import leakproof as leakproof
from qkv.operators.fused.offer import offer as offer
from qkv.operators.fused.offer import refusal as refusal
from qkv.operators.fused.offer import share as share
