"""The direction of imports, and what they cost."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType

import import_graph
import pytest
import torch
from import_graph import MODULES, SOURCE, imports, room

import qkv

#: From the ground up, as in docs/architecture.md: a module imports only what stands before it.
ORDER = [
    "atomic_write",
    "user_cache",
    "optional_dependencies",
    "tracing",
    "linear",
    "unpacked",
    "memory",
    "autograd_leaves",
    "broadcast",
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
    "nested",
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


@pytest.mark.parametrize("home", ORDER)
def test_imports_only_go_down(home: str) -> None:
    modules = [name for name in MODULES if name != "qkv" and room(name) == home]
    assert modules, f"{home} is in the order but not in the source"
    allowed = {*ORDER[: ORDER.index(home) + 1], "qkv"}
    for module in modules:
        assert {room(each) for each in imports(module)} <= allowed, module


def test_every_module_has_its_place() -> None:
    assert {room(module) for module in MODULES} == {*ORDER, "qkv"}
    # Translation has rooms of its own, in the order in which a sentence goes through them.
    inner = ["data", "models", "decoding", "training"]
    for module in MODULES:
        if _within(module, "qkv.translate") and module.count(".") > 2:
            subroom = module.split(".")[2]
            others = {e.split(".")[2] for e in imports(module) if _within(e, "qkv.translate")}
            assert others <= set(inner[: inner.index(subroom) + 1]), module


#: Imports inside functions that go up within their folder, each for a reason that cannot be had
#: without: the operators of a base class make its subclasses, an answer prints itself, a function
#: is compiled when it is first called, a traced tensor meets another one.
UPWARD = {
    ("qkv.formula.traced", "qkv.formula.pairwise"),
    ("qkv.jit.kernels", "qkv.jit.compiler"),
    ("qkv.mask.base", "qkv.mask.boolean_ops"),
    ("qkv.similarity.base", "qkv.similarity.algebra"),
    ("qkv.table.answer", "qkv.table.report"),
    ("qkv.table.answers", "qkv.table.report"),
    ("qkv.table.curve", "qkv.table.report"),
}

PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


@pytest.mark.parametrize("package", PACKAGES)
def test_within_a_folder_imports_only_go_down_too(package: str) -> None:
    """Its files and folders can be put in an order in which each imports only earlier ones."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if module != package and _within(module, package):
            targets = {_child(package, e) for e in imports(module) if _within(e, package)}
            importer = _child(package, module)
            known = {target for target in targets if (importer, target) not in UPWARD}
            graph.setdefault(importer, set()).update(known - {importer, package})
    try:
        order = tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
    assert set(order) == graph.keys()


def test_what_goes_up_within_a_folder_does_so_in_functions_alone() -> None:
    for importer, target in UPWARD:
        assert any(_within(e, target) for e in imports(importer)), importer
        for node in ast.parse(MODULES[importer].read_text(encoding="utf-8")).body:
            assert not (isinstance(node, ast.ImportFrom) and _within(node.module or "", target))


def _child(package: str, module: str) -> str:
    """The file or folder directly in a package that a module belongs to."""
    return ".".join(module.split(".")[: package.count(".") + 2])


#: Rooms that ask the public functions as users do, by way of the package's own names.
PROGRAMS = {"benchmarks", "cli", "explore", "gallery"}


def test_no_room_goes_round_by_the_names_of_the_whole_package() -> None:
    """`import qkv` in a room that `qkv` exports would be an import upwards in disguise."""
    for module in MODULES:
        if "qkv" in imports(module):
            assert room(module) in PROGRAMS or _names_of_root(module) == {"__version__"}, module


def _names_of_root(module: str) -> set[str]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return {
        alias.name if isinstance(node, ast.ImportFrom) else "qkv"
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module == "qkv")
        or (isinstance(node, ast.Import) and any(each.name == "qkv" for each in node.names))
        for alias in node.names
        if f"qkv.{alias.name}" not in MODULES
    }


#: What other rooms may import of a room, beside the names that its package exports. The rest is
#: private to the room. Rooms that only commands use (gallery, explore, benchmarks) have no list.
OPEN = {
    # what is asked of workers and ranks, what it costs, and who has which positions
    "cluster": {"costs", "exchange", "jobs", "sharding"},
    # programs, and the functions that they compile to
    "formula": {"builtin", "compiled", "forms", "program", "traced"},
    # a library of compiled code: every file is for others but compiler, loader and code generation
    "jit": {
        "ahead", "arguments", "builtins", "cache", "kernels", "scratch", "signature", "target",
        "threads",
    },
    # a recording reads the questions of heads, and torch's masks, as the layer does
    "nn": {"heads", "torch_masks"},
    # all operators, for the planner; the reference, for who wants weights; what is not finite; sums
    # over sorted keys, for regression and tables; one compiled formula, for the benchmark of the
    # bare loop
    "operators": {
        "arithmetic", "banded", "base", "dense", "fused", "fused.additive", "fused.inputs",
        "lookup", "sdpa", "sorted", "sorted.bucket_sort", "sorted.operands", "sorted.polynomial",
        "sorted.sorted_keys", "streamed", "topk",
    },
    # the formulas that operators derive their kernels from, and wrappers that only rooms make
    "similarity": {
        "adaptive", "base", "distance", "dot", "gated", "log_tempered", "pair_scores", "prepared",
    },
    "table": {
        "aggregation", "answers", "query_runner", "columns", "report", "samples", "similarity_spec",
        "sources", "sources.base", "where",
    },
    "translate": {
        "data.batches", "data.dates", "data.sources", "data.text", "data.vocabulary",
        "decoding.search", "models.recurrent", "models.transformer", "training.callbacks",
        "training.checkpoint", "training.metrics", "training.ranks", "training.setup",
        "training.train",
    },
    "visualization": {
        "plot", "plot.curve", "plot.palette", "summary", "terminal", "viewer", "viewer.page",
    },
    "words": {"pieces", "pretrained", "sentence"},
}  # fmt: skip


#: Modules that only give others the names that users import.
FACES = {"qkv", "qkv.plot", "qkv.summary"}


def test_no_room_reaches_into_the_private_files_of_another() -> None:
    used: dict[str, set[str]] = {name: set() for name in OPEN}
    for module in MODULES:
        for each in imports(module):
            if room(each) in OPEN and room(each) != room(module) and module not in FACES:
                inside = each.removeprefix(f"qkv.{room(each)}").removeprefix(".")
                used[room(each)] |= {inside} - {""}
                assert not inside or inside in OPEN[room(each)], f"{module} imports {each}"
    assert used == OPEN  # and nothing is open that nobody uses


def test_the_drawing_of_the_imports_is_up_to_date() -> None:
    """`python tests/import_graph.py` draws it anew."""
    assert import_graph.drawn()[1] == import_graph.drawing()


def _graph() -> dict[str, set[str]]:
    """Which module imports which when it is imported itself."""
    return {name: imports(name, whole=False) for name in MODULES}


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
            ground = {"qkv.atomic_write", "qkv.optional_dependencies", "qkv.user_cache"}
            assert all(_within(each, "qkv.jit") or each in ground for each in ours), name


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
    graph = _graph()
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


def test_where_to_find_what_is_there() -> None:
    """Each file that CONTRIBUTING.md sends to, and each name that it says is in one."""
    root = Path(__file__).parent.parent
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where to find")[2]
    places = set(re.findall(r"`([\w/]+(?:/|\.py|\.md|\.toml|\.txt))`", page))
    assert len(places) > 25
    for place in places:
        assert (SOURCE / place).exists() or (root / place).exists(), place
    named = re.findall(r"`(\w+)` (?:of|in) `([\w/]+\.py)`", page)
    assert len(named) >= 8
    for name, place in named:
        file = SOURCE / place if (SOURCE / place).exists() else root / place
        assert re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")), (name, place)


def test_what_the_documents_write_works_after_import_qkv() -> None:
    """Every dotted name, each in a process of its own that has imported nothing but `qkv`, save
    those in modules that the documents import by name."""
    root = Path(__file__).parent.parent
    text = "\n".join(
        page.read_text(encoding="utf-8") for page in [root / "README.md", *root.glob("docs/*.md")]
    )
    imported = {
        "qkv.explore.formula", "qkv.integrations.transformers", "qkv.table.accessor",
        "qkv.table.duckdb", "qkv.table.samples", "qkv.translate.search",
    }  # fmt: skip
    assert imported <= set(re.findall(r"(?:from|import) (qkv\.[\w.]+)", text))
    written = re.findall(r"(?<![\w./:\"-])(qkv(?:\.[A-Za-z_]\w*)+)", text)
    paths = sorted({path for path in written if not any(_within(path, x) for x in imported)})
    assert len(paths) > 80
    code = """
import os, sys, torch, qkv
for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            thing = qkv
            for name in path.split(".")[1:]:
                thing = getattr(thing, name)
        except BaseException as error:
            print(path, repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    assert told.stdout == ""


@pytest.mark.parametrize(
    ("similarity", "serves", "most"),
    [("scaled_dot", "sdpa", 22), ("additive", "fused", 35), ("gaussian", "fused", 35)],
)
def test_a_query_takes_a_short_way_down(similarity: str, serves: str, most: int) -> None:
    """So few of our functions, and no operator that does not serve it, once its kind is known."""
    tokens = torch.randn(3, 2, 3, 370, 16).unbind()
    kind = qkv.similarity.Additive(16, 16, 8) if similarity == "additive" else similarity
    for _ in range(2):
        qkv.attend(*tokens, similarity=kind)
    passed: list[CodeType] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            passed.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        qkv.attend(*tokens, similarity=kind)
    finally:
        sys.setprofile(before)
    steps = [code for code, _ in groupby(passed)]
    assert 0 < len(steps) <= most
    files = {Path(code.co_filename).relative_to(SOURCE).parts for code in steps}
    visited = {parts[1].removesuffix(".py") for parts in files if parts[0] == "operators"}
    assert visited - {"aten_flash"} == {serves}
