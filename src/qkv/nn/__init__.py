"""Attention as torch layers: thin modules that project, and ask the formula."""

from __future__ import annotations

from qkv.nn.cache import KVCache as KVCache
from qkv.nn.encoder import AttentionOptions as AttentionOptions
from qkv.nn.encoder import Embedding as Embedding
from qkv.nn.encoder import Encoder as Encoder
from qkv.nn.encoder import EncoderLayer as EncoderLayer
from qkv.nn.heads import HeadSimilarity as HeadSimilarity
from qkv.nn.multihead import MultiheadAttention as MultiheadAttention
from qkv.nn.paged import PagedCache as PagedCache
from qkv.nn.positions import Learned as Learned
from qkv.nn.positions import Rotary as Rotary
from qkv.nn.positions import Sinusoidal as Sinusoidal
from qkv.nn.replace_attention import swap as swap
from qkv.nn.self_attention import SelfAttention as SelfAttention
