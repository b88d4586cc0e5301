"""Packages that only some work needs: what is missing is said in one line, with the cure."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import PackageNotFoundError, distribution, requires
from typing import Any

#: What each extra is for.
EXTRAS = {
    "compile": "kernels compiled on this machine",
    "table": "questions to CSV, Parquet, DuckDB, PostgreSQL",
    "regress": "kernel regression",
    "plot": "figures",
    "view": "the view in notebooks",
    "explore": "the explorer, a page to play with",
    "words": "sentences by word vectors and MiniLM",
    "glove": "GloVe word vectors",
    "translate": "training translators",
    "transformers": "Hugging Face models",
    "tensorboard": "curves of trainings",
    "cluster": "several processes and machines",
}


def require(module: str, extra: str) -> Any:
    """The module, or an error that says how to install it and all else that its extra lacks."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{package} is not installed: {install(extra)}") from error


def install(extra: str) -> str:
    """The command that brings what an extra lacks, by the names of its packages.

    Not `qkv[extra]`, which an index may not know: the package may have come from a clone.
    """
    wanted = _lacking(extra)
    if not wanted:
        return f"pip install 'qkv[{extra}]'"
    return f"pip install {' '.join(repr(each) for each in wanted)}"


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [_name(each) for each in _lacking(extra)]


def _lacking(extra: str) -> list[str]:
    return [each for each in _packages(extra) if not _installed(_name(each))]


def _packages(extra: str) -> list[str]:
    """The requirements of an extra, as the installed package declares them."""
    try:
        declared = requires("qkv") or []
    except PackageNotFoundError:
        return []
    marked = (each.partition(";") for each in declared)
    return [need.strip() for need, _, marker in marked if re.search(rf"['\"]{extra}['\"]", marker)]


def _installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ]", requirement, maxsplit=1)[0]
