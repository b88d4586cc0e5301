"""Words and sentences: vectors, and models that were trained on them."""

from __future__ import annotations

from qkv.words import pretrained as pretrained
from qkv.words import sentence as sentence
from qkv.words.load import glove as glove
from qkv.words.load import load as load
from qkv.words.vectors import WordVectors as WordVectors
