"""Kernels as machine code: what is kept on disk, what is trusted of it, and what loads it."""

from __future__ import annotations

import ast
import inspect
import json
import math
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.operators.fused import arguments, cache, kernels, machine, space

NAME = ("gaussian", "forward", "float32")
TOOLS = ("x86_64-unknown-linux-gnu", "skylake", "+avx2", "0.61.0", "0.44.0")


class Compiler:
    """Stands in for Numba: gives code that was compiled before, and counts how often."""

    def __init__(self, code: bytes) -> None:
        self.code, self.calls = code, 0

    def __call__(self, *name: str) -> bytes:
        assert name == NAME
        self.calls += 1
        return self.code


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """An empty cache, and a compiler that fills it at once."""
    from qkv.operators.fused import compiler as module

    found = Compiler(kernels.machine_code(*NAME))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(module, "compile_kernel", found)
    monkeypatch.setattr(cache, "directory", lambda: tmp_path)
    return found


def _only_file(directory: Path) -> Path:
    [file] = directory.iterdir()  # so nothing temporary is left
    return file


def test_compiles_once_and_keeps_the_code(compiler: Compiler, tmp_path: Path) -> None:
    assert kernels.machine_code(*NAME) == kernels.machine_code(*NAME) == compiler.code
    assert compiler.calls == 1
    assert _only_file(tmp_path).name.startswith("gaussian-forward-float32-")


@pytest.mark.parametrize("spoil", ["empty", "truncated", "flipped", "foreign", "directory"])
def test_a_file_that_is_not_whole_is_compiled_again(
    compiler: Compiler, tmp_path: Path, spoil: str
) -> None:
    kernels.machine_code(*NAME)
    file = _only_file(tmp_path)
    whole = file.read_bytes()
    if spoil == "directory":
        file.unlink()
        file.mkdir()
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        spoilt = {"empty": b"", "truncated": whole[:-1], "flipped": flipped, "foreign": b"\0" * 99}
        file.write_bytes(spoilt[spoil])
    assert kernels.machine_code(*NAME) == compiler.code
    assert compiler.calls == 2
    if spoil != "directory":  # which nothing can be written over
        assert file.read_bytes() == whole


def test_a_file_that_others_may_write_to_is_not_trusted(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.machine_code(*NAME)
    file = _only_file(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    for mode in (0o620, 0o602):
        file.chmod(mode)
        assert cache.read(file) is None
    file.chmod(0o600)
    assert cache.read(file) == compiler.code
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert cache.read(file) is None


@pytest.mark.parametrize("part", range(len(TOOLS)))
def test_another_machine_or_version_has_its_own_code(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    other = list(TOOLS)
    other[part] += "1"
    for tools in (TOOLS, tuple(other), TOOLS):
        monkeypatch.setattr(machine, "toolchain", lambda tools=tools: tools)
        kernels.machine_code(*NAME)
    assert compiler.calls == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_the_toolchain_names_the_processor_and_the_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import llvmlite
    import numba

    monkeypatch.setattr(machine, "target", machine.target.__wrapped__)
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    triple, processor, features, *versions = machine.toolchain()
    assert versions == [numba.__version__, llvmlite.__version__]
    assert triple
    assert processor
    assert features
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert machine.target() == (triple, "generic", "")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+sse2")
    assert machine.target() == (triple, "generic", "+sse2")


def test_a_disk_that_cannot_be_written_to_costs_only_time(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "gone")
    assert kernels.machine_code(*NAME) == compiler.code


def test_an_interrupted_write_leaves_nothing(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernels.machine_code(*NAME)
    assert not list(tmp_path.iterdir())


def test_many_threads_load_a_kernel_once(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_loaded", {})
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: kernels.kernel(*NAME[:2], torch.float32), range(16)))
    assert len(found) == 1
    assert compiler.calls == 1


def _load_again() -> None:
    kernels._loaded.clear()
    kernels.kernel(*NAME[:2], torch.float32)


def test_a_child_forked_while_a_kernel_loads_can_load_it() -> None:
    with kernels._lock:
        child = multiprocessing.get_context("fork").Process(target=_load_again)
        child.start()
    child.join(60)
    assert child.exitcode == 0


_FIRST_CALL = """
import json, sys, torch, qkv
torch.manual_seed(0)
query, key, value = (torch.randn(5, 67, 3, requires_grad=True) for _ in range(3))
answer = qkv.attend(query, key, value, similarity="boxcar", operator="fused")
print(json.dumps({"answer": answer.tolist(), "loaded": sorted(sys.modules)}))
"""


def test_a_new_process_gives_the_same_bits_without_numba(tmp_path: Path) -> None:
    def first_call() -> dict[str, Any]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", _FIRST_CALL]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    tmp_path.chmod(0o700)
    compiled, loaded = first_call(), first_call()
    assert compiled["answer"] == loaded["answer"]
    assert "numba" in compiled["loaded"]
    assert not {"numba", "scipy"} & set(loaded["loaded"])


def test_who_uses_no_kernel_does_not_load_llvm() -> None:
    code = "import sys, torch, qkv; x = torch.ones(2, 2); qkv.attend(x, x, x); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"llvmlite", "numba"} & set(done.stdout.split())


def _unpacked(driver: Any) -> list[str]:
    """The names that a driver gives to its buffers."""
    [names] = [
        [name.id for name in node.targets[0].elts if isinstance(name, ast.Name)]
        for node in ast.walk(ast.parse(inspect.getsource(driver)))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Name)
        and node.value.id == "space"
        and isinstance(node.targets[0], ast.Tuple)
    ]
    return names


def test_operands_and_buffers_are_those_that_the_drivers_take() -> None:
    from qkv.operators.fused.backward import backward_units
    from qkv.operators.fused.forward import forward_chunks

    for way, driver, buffers in (
        ("forward", forward_chunks, space.forward_buffers(1, 1, 1)),
        ("backward", backward_units, space.backward_buffers(1, 1, 1, 1)),
    ):
        first, *operands, last = inspect.signature(driver).parameters
        assert (first, last) == ("counter", "space")
        assert operands == list(arguments.OPERANDS[way])
        assert _unpacked(driver) == list(buffers)


def test_the_buffers_of_a_thread_share_no_cache_line() -> None:
    room = space.forward_space("additive", 4, chunk=24, d=5, value_depth=7)
    buffers = space.forward_buffers(24, 10, 7)
    places, at = [], 0
    for of, shape in buffers.values():
        place, *found = room.words[at : at + 1 + len(shape)]
        assert tuple(found) == shape
        places.append((place, place + math.prod(shape) * (4 if of == "real" else 8)))
        at += 1 + len(shape)
    assert at == len(room.words)
    assert all(start % space.LINE == 0 for start, _ in places)
    ends = [start for start, _ in places[1:]] + [room.size]
    assert all(stop <= end for (_, stop), end in zip(places, ends, strict=True))
    assert room.size % space.LINE == 0


@pytest.mark.parametrize(
    ("at", "wrong", "message"),
    [
        (1, torch.zeros(3, 5, dtype=torch.float64), "query must be contiguous torch.float32 of 3"),
        (2, torch.zeros(5, 3).T, r"key must be contiguous .* got torch.float32 of shape \(3, 5\)"),
        (3, torch.zeros(3), "value must be contiguous torch.float32 of 3 axes"),
        (6, torch.zeros(3, dtype=torch.int32), "start must be contiguous torch.int64 of 2 axes"),
    ],
)
def test_memory_of_another_kind_is_refused(at: int, wrong: torch.Tensor, message: str) -> None:
    expected = arguments.expected("forward", torch.float32)
    operands: list[Any] = [8 if each.axes == 0 else None for each in expected]
    room = space.forward_space("gaussian", 4, chunk=8, d=5, value_depth=7)
    arguments.pack(expected, operands, room, 0)
    operands[at] = wrong
    with pytest.raises(TypeError, match=message):
        arguments.pack(expected, operands, room, 0)


def test_leading_axes_are_taken_as_one() -> None:
    expected = arguments.expected("forward", torch.float32)
    query = torch.zeros(2, 3, 5, 7)
    operands: list[Any] = [8 if each.axes == 0 else None for each in expected]
    room = space.forward_space("gaussian", 4, chunk=8, d=7, value_depth=7)
    for tensor, leading in ((query, 6), (query[0], 3), (query[0, 0], 1)):
        operands[1] = tensor
        words = arguments.pack(expected, operands, room, 0)
        start = arguments.HEADER + 1
        assert list(words[start : start + 4]) == [tensor.data_ptr(), leading, 5, 7]


def test_a_sign_that_is_kept_beside_the_memory_counts() -> None:
    query, key, value = (torch.randn(11, 3, 2) for _ in range(3))
    negative = [torch._neg_view(x) for x in (query, key, value)]
    found = qkv.attend(*negative, similarity="laplacian", operator="fused")
    expected = qkv.attend(-query, -key, -value, similarity="laplacian", operator="fused")
    assert torch.equal(found, expected)


def _compiled(monkeypatch: pytest.MonkeyPatch, driver: Any) -> bytes:
    import numba

    from qkv.operators.fused import compiler
    from qkv.operators.fused.arithmetic import INNER_OPTIONS

    monkeypatch.setattr(compiler, "build", lambda *_: numba.njit(**INNER_OPTIONS)(driver))
    return compiler.compile_kernel(*NAME)


def test_code_that_calls_what_may_not_be_there_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def driver(counter: Any, *rest: Any) -> None:
        counter[0] = int(math.erf(counter[0]))

    with pytest.raises(RuntimeError, match="must not call erf"):
        _compiled(monkeypatch, driver)


def test_a_kernel_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(counter: Any, *rest: Any) -> None:
        raise ValueError

    code = _compiled(monkeypatch, driver)
    monkeypatch.setattr(kernels, "machine_code", lambda *_: code)
    kernel = kernels.Kernel(*NAME[:2], torch.float32)
    operands = [8 if each.axes == 0 else None for each in kernel.expected]
    room = space.forward_space("gaussian", 4, chunk=8, d=5, value_depth=7)
    for count in (1, 2):
        with pytest.raises(RuntimeError, match="a kernel stopped with status"):
            kernel.run(operands, room, count)
