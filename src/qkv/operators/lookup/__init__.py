"""The hard look-up by hashing: each key and each query is visited once."""

from qkv.operators.lookup.offer import answer as answer
from qkv.operators.lookup.offer import estimate as estimate
from qkv.operators.lookup.offer import offer as offer
from qkv.operators.lookup.offer import refusal as refusal
