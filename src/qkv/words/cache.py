"""A cache of word vectors on disk: a memory-mapped .npy file and a list of words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qkv.atomic_write import replacing_folder
from qkv.user_cache import user_cache
from qkv.words.reading import Block
from qkv.words.vectors import Vectors, WordVectors

_VECTORS, _WORDS = "vectors.npy", "words.txt"


def place(path: Path) -> Path:
    """Where the vectors of this file, as it is now, are kept; OSError for users without a home."""
    status = path.stat()
    state = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
    digest = hashlib.sha256(state.encode()).hexdigest()[:16]
    return user_cache() / "words" / f"{path.name}-{digest}"


def opened(directory: Path) -> WordVectors | None:
    """The vectors cached there; None where there are none, or where they are incomplete."""
    try:
        vectors = mapped(directory / _VECTORS)
        words = (directory / _WORDS).read_bytes().decode("utf-8").split("\n")
        return WordVectors(words, vectors)
    except (OSError, ValueError, TypeError):
        return None


def mapped(path: Path) -> Vectors:
    """The array of a .npy file, memory mapped."""
    array: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def keep(directory: Path, blocks: Iterator[Block]) -> None:
    """Write the vectors there, block by block; an interrupted write leaves nothing behind."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing_folder(directory) as unfinished:
        _write(unfinished, blocks)


def _write(directory: Path, blocks: Iterator[Block]) -> None:
    count, dim = 0, 0
    with (
        (directory / _VECTORS).open("wb") as numbers,
        (directory / _WORDS).open("w", encoding="utf-8", newline="") as words,
    ):
        for block in blocks:
            if count == 0:
                dim = block.vectors.shape[1]
                _write_header(numbers, 0, dim)
            words.writelines(
                ("\n" if count + i else "") + word for i, word in enumerate(block.words)
            )
            numbers.write(np.ascontiguousarray(block.vectors, "<f4").tobytes())
            count += len(block.words)
        # NumPy leaves room in the header for the count to grow.
        numbers.seek(0)
        _write_header(numbers, count, dim)


def _write_header(stream: object, count: int, dim: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
    np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
