"""The direction of imports, and what they cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qkv

SOURCE = Path(qkv.__file__).parent

#: From the ground up, as in docs/architecture.md: a module imports only what stands before it.
ORDER = [
    "disk",
    "extras",
    "looking",
    "memory",
    "similarity",
    "mask",
    "normalize",
    "partial",
    "dropout",
    "problem",
    "quarantine",
    "operators",
    "plan",
    "pooling",
    "summary",
    "regression",
    "nn",
    "integrations",
    "recording",
    "words",
    "labelled",
    "translate",
    "plot",
    "terminal",
    "viewer",
    "table",
    "gallery",
    "benchmarks",
    "cli",
]


def _home(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "qkv":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("qkv."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("qkv.")}
    return found


@pytest.mark.parametrize("home", ORDER)
def test_imports_only_go_down(home: str) -> None:
    files = [path for path in SOURCE.rglob("*.py") if _home(path) == home]
    assert files, f"{home} is in the order but not in the source"
    allowed = set(ORDER[: ORDER.index(home) + 1]) | {"__version__"}
    for path in files:
        assert _imports(path) <= allowed, path


def test_every_module_has_its_place() -> None:
    assert {_home(path) for path in SOURCE.rglob("*.py")} == {*ORDER, "__init__"}


def _modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_qkv_loads_no_optional_package() -> None:
    loaded = _modules_after("import qkv; qkv.attend")
    assert "torch" in loaded
    assert not loaded & {
        "dask", "matplotlib", "numba", "pyarrow", "rich", "safetensors", "scipy", "sklearn",
        "starlette", "transformers", "typer",
    }  # fmt: skip


def test_help_does_not_wait_for_torch() -> None:
    assert "torch" not in _modules_after("import qkv.cli")


def test_the_public_names_are_there() -> None:
    for name in qkv.__all__:
        assert getattr(qkv, name) is not None
        assert name in dir(qkv)
    with pytest.raises(AttributeError, match=r"^module 'qkv' has no attribute 'attention'$"):
        _ = qkv.attention
