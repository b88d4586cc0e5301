"""Names and files checked before heavy imports, so that mistakes are reported at once."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

#: As :mod:`qkv.similarity` knows them, which a test compares; importing that imports torch.
SIMILARITIES = (
    "dot", "scaled_dot", "cosine", "euclidean", "gaussian", "laplacian", "boxcar", "triangular",
    "epanechnikov", "biweight", "tricube", "equal",
)  # fmt: skip
LEARNED = ("additive", "bilinear", "gated")


def check_similarity(name: str | None, learned: bool = True) -> None:
    """Raise where no similarity has this name."""
    names = (*SIMILARITIES, *LEARNED) if learned else SIMILARITIES
    if name is not None and name not in names:
        raise ValueError(
            f"similarity must be one of {', '.join(names)}; got {name!r}{did_you_mean(name, names)}"
        )


def check_file(path: str | Path, argument: str) -> None:
    """Raise where there is no such file or folder; an address is not a path."""
    if "://" not in str(path) and not Path(path).exists():
        folder = Path(path).parent
        siblings = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        hint = did_you_mean(Path(path).name, siblings)
        raise ValueError(
            f"{argument} must be a file or folder; there is no file {str(path)!r}{hint}"
        )


def check_suffix(path: Path | None, argument: str, *suffixes: str) -> None:
    """Raise where a file that is to be written has another suffix."""
    if path is not None and path.suffix.lower() not in suffixes:
        raise ValueError(f"{argument} must end in {' or '.join(suffixes)}; got {path.name!r}")


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """The end of an error: the name that was probably meant; empty if none is close."""
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
