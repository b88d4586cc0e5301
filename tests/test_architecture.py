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
    "atomic_write",
    "optional_dependencies",
    "tracing",
    "memory",
    "jit",
    "formula",
    "similarity",
    "mask",
    "bias",
    "normalize",
    "partial",
    "dropout",
    "problem",
    "grouped",
    "cost",
    "nonfinite",
    "operators",
    "plan",
    "pooling",
    "with_weights",
    "visualization",
    "plot",
    "summary",
    "cluster",
    "nn",
    "integrations",
    "recording",
    "words",
    "translate",
    "staircase",
    "bandwidth",
    "regression",
    "table",
    "warmup",
    "gallery",
    "explore",
    "benchmarks",
    "cli",
    "__main__",
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


MODULES = {
    ".".join(("qkv", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in SOURCE.rglob("*.py")
}


def _graph() -> dict[str, set[str]]:
    """Which module imports which when it is imported itself, submodules and all."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        found = graph[name] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                # `from package import module`, or a name of the package itself
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (full & MODULES.keys()) or {node.module}
    return graph


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


#: Who may import what, beyond the order of the rooms: all others may not.
GUESTS = {
    "qkv.operators.fused": {"qkv.operators", "qkv.plan", "qkv.benchmarks"},
    "numba": {"qkv.jit.compiler", "qkv.jit.lowering", "qkv.jit.numba_target"},
    "llvmlite": {
        "qkv.jit.compiler", "qkv.jit.lowering", "qkv.jit.numba_target", "qkv.jit.loader",
        "qkv.jit.target", "qkv.formula.compiled", "qkv.formula.emit", "qkv.formula.vector",
    },
}  # fmt: skip


@pytest.mark.parametrize("host", GUESTS)
def test_some_rooms_are_for_few(host: str) -> None:
    for path in SOURCE.rglob("*.py"):
        importer = ".".join(("qkv", *path.relative_to(SOURCE).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if any(_within(name, host) for name in names):
                assert any(_within(importer, guest) for guest in GUESTS[host]), importer


def test_compiled_code_knows_nothing_of_attention() -> None:
    for name, imported in _graph().items():
        if _within(name, "qkv.jit"):
            ours = {each for each in imported if _within(each, "qkv")}
            assert all(
                _within(each, "qkv.jit") or each == "qkv.optional_dependencies" for each in ours
            ), name


def test_compiled_functions_can_be_read() -> None:
    """None is longer than 80 lines or wider than 12 parameters."""
    compiled = {"kernel", "kernel_in_order", "callback", "device", "device_in_order"}
    seen = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and compiled & {
                getattr(each, "id", "") for each in node.decorator_list
            }:
                seen += 1
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 80, node.name
                assert len(node.args.args) <= 12, node.name
    assert seen > 80


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: imported & MODULES.keys() for name, imported in _graph().items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for imported in graph[name]:
                # A package imports its modules, and they may import each other through it.
                if imported != "qkv" and not _within(name, imported):
                    visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_cache_of_kernels_is_no_part_of_attention() -> None:
    """Who only looks for compiled code registers no operator and imports no Numba."""
    loaded = _modules_after("import torch, qkv.jit.cache, qkv.jit.kernels, qkv.jit.ahead")
    assert not {name for name in loaded if _within(name, "qkv.operators")}
    assert not {"numba", "llvmlite"} & loaded


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
        "starlette", "transformers", "typer", "uvicorn",
    }  # fmt: skip


def test_help_does_not_wait_for_torch() -> None:
    assert "torch" not in _modules_after("import qkv.cli")


def test_the_public_names_are_there() -> None:
    for name in qkv.__all__:
        assert getattr(qkv, name) is not None
        assert name in dir(qkv)
    with pytest.raises(AttributeError, match=r"^module 'qkv' has no attribute 'attention'$"):
        _ = qkv.attention
