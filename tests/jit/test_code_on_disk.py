"""Machine code on disk: what is kept, what is trusted of it, and what happens where it fails."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_kernel as toy

import qkv
from qkv.jit import cache, kernels
from qkv.jit import target as targets
from qkv.jit.kernels import Function, UnavailableError
from qkv.jit.target import Target

REAL = "float32"


class Compiler:
    """Stands in for Numba: gives code that was compiled before, and counts how often."""

    def __init__(self, code: bytes) -> None:
        self.code, self.calls = code, 0
        self.error: Exception | None = None

    def __call__(self, function: Function, real: str) -> bytes:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.code


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """An empty cache, a function that was never loaded, and a compiler that fills it at once."""
    from qkv.jit import compiler as module

    found = Compiler(toy.run.machine_code(REAL))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(module, "object_code", found)
    monkeypatch.setattr(cache, "directory", lambda: tmp_path)
    monkeypatch.setattr(toy.run, "_addresses", {})
    monkeypatch.setattr(toy.run, "_failures", {})
    return found


def _only_file(directory: Path) -> Path:
    [file] = directory.iterdir()  # so nothing temporary is left
    return file


def test_compiles_once_and_keeps_the_code(compiler: Compiler, tmp_path: Path) -> None:
    assert toy.run.machine_code(REAL) == toy.run.machine_code(REAL) == compiler.code
    assert compiler.calls == 1
    cpu = targets.target().cpu
    assert _only_file(tmp_path).name.startswith(f"toy_kernel.run-float32-{cpu}-")


@pytest.mark.parametrize("spoil", ["empty", "truncated", "flipped", "foreign", "directory"])
def test_a_file_that_is_not_whole_is_compiled_again(
    compiler: Compiler, tmp_path: Path, spoil: str
) -> None:
    toy.run.machine_code(REAL)
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
    assert toy.run.machine_code(REAL) == compiler.code
    assert compiler.calls == 2
    if spoil != "directory":  # which nothing can be written over
        assert file.read_bytes() == whole


def test_a_file_that_others_may_write_to_is_not_trusted(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.run.machine_code(REAL)
    file = _only_file(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    for mode in (0o620, 0o602):
        file.chmod(mode)
        assert cache.read(file) is None
    file.chmod(0o600)
    assert cache.read(file) == compiler.code
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert cache.read(file) is None


OTHERS = [("aarch64-linux-gnu", "znver3", "+avx2"), ("x86_64", "skylake", "+avx2"),
          ("x86_64", "znver3", "+avx2,+avx512f")]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: "-".join(other))
def test_another_processor_has_its_own_code(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: tuple[str, ...]
) -> None:
    """A home directory may be shared between machines."""
    for own in (Target("x86_64", "znver3", "+avx2"), Target(*other), Target(*OTHERS[0][:2], "")):
        monkeypatch.setattr(targets, "target", lambda own=own: own)
        toy.run.machine_code(REAL)
    assert compiler.calls == len(list(tmp_path.iterdir())) == 3
    toy.run.machine_code(REAL)
    assert compiler.calls == 3


def test_code_of_another_processor_is_not_loaded_whatever_it_is_called(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.run.machine_code(REAL)
    theirs = _only_file(tmp_path)
    monkeypatch.setattr(targets, "target", lambda: Target("x86_64", "skylake-avx512", ""))
    own = toy.run._file(REAL)
    assert "skylake-avx512" in own.name
    theirs.rename(own)
    assert cache.read(own) is None
    toy.run.machine_code(REAL)
    assert compiler.calls == 2


@pytest.mark.parametrize("at", [0, 1])
def test_another_version_of_the_compiler_has_its_own_code(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    toy.run.machine_code(REAL)
    newer = list(targets.compiler_versions())
    newer[at] += ".post1"
    monkeypatch.setattr(targets, "compiler_versions", lambda: tuple(newer))
    toy.run.machine_code(REAL)
    assert compiler.calls == 2


def test_a_changed_constant_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    toy.run.machine_code(REAL)
    before = toy.run.digest()
    monkeypatch.setattr(toy, "OFFSET", 5.0)
    assert toy.run.digest() != before
    toy.run.machine_code(REAL)
    assert compiler.calls == 2


def test_a_changed_constant_changes_the_answer(tmp_path: Path) -> None:
    """In new processes, with a module that is edited between them."""
    (tmp_path / "constants.py").write_text("END = 2.0\n")
    (tmp_path / "mine.py").write_text(
        "from qkv.jit import device, kernel\n"
        "from qkv.jit.signature import Double1\n"
        "from constants import END\n"
        "@device\n"
        "def end(): return END\n"
        "@kernel\n"
        "def fill(start: int, stop: int, out: Double1) -> None:\n"
        "    for i in range(start, stop): out[i] = end()\n"
    )
    code = "import numpy as np, mine; out = np.zeros(3); mine.fill(out, count=3); print(out[2])"
    cached = tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "QKV_CACHE_DIR": str(cached)}

    def printed() -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert printed() == "2.0"
    assert len(list((cached / "kernels").iterdir())) == 1
    (tmp_path / "constants.py").write_text("END = 33.0\n")
    assert printed() == "33.0"
    assert len(list((cached / "kernels").iterdir())) == 2


def test_the_processor_is_that_of_numbas_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.target.__wrapped__
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    triple, processor, features = target()
    assert processor
    assert "+sse2" in features
    monkeypatch.setenv("NUMBA_CPU_NAME", "x86-64-v3")  # which says itself what it has
    assert target() == (triple, "x86-64-v3", "")
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    assert target() == (triple, "haswell", features)
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+sse2")
    assert target() == (triple, "haswell", "+sse2")


V3 = "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
V4 = V3 + ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (Target("x86_64-linux", "znver3", V3), ["x86-64-v3"]),
        (Target("x86_64-linux", "skylake-avx512", V4), ["x86-64-v4", "x86-64-v3"]),
        (Target("x86_64-linux", "nehalem", "+sse4.2,-avx"), []),
        (Target("x86_64-linux", "x86-64-v3", ""), ["x86-64-v3"]),
        (Target("x86_64-linux", "x86-64-v2", ""), []),
        (Target("aarch64-linux", "neoverse-n1", V4), []),
    ],
)
def test_code_of_a_level_serves_the_processors_that_have_it(
    monkeypatch: pytest.MonkeyPatch, own: Target, expected: list[str]
) -> None:
    monkeypatch.setattr(targets, "target", lambda: own)
    assert [level.cpu for level in targets.levels()] == expected


def test_an_interrupted_write_leaves_nothing(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toy.run.machine_code(REAL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_costs_only_time(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refused)
    assert toy.run.address(REAL)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "gone")
    assert toy.run.machine_code(REAL) == compiler.code


def test_many_threads_load_a_kernel_once(compiler: Compiler) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: toy.run.address(REAL), range(16)))
    assert len(found) == 1
    assert compiler.calls == 1


def _load_again() -> None:
    toy.run._addresses.clear()
    toy.run.address(REAL)


def test_a_child_forked_while_a_kernel_loads_can_load_it() -> None:
    with kernels._lock:
        child = multiprocessing.get_context("fork").Process(target=_load_again)
        child.start()
    child.join(60)
    assert child.exitcode == 0


def test_code_is_kept_where_we_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so what cannot be written to is a file in the directory's place."""
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.delenv("QKV_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache, "PACKAGE", blocked)
    find = cache.directory.__wrapped__
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find().parent == tmp_path / "home" / ".cache" / "qkv"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find().parent == tmp_path / "xdg" / "qkv"
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("HOME", str(blocked))
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    assert find().parent.parent == tmp_path
    monkeypatch.setenv("QKV_CACHE_DIR", str(tmp_path / "chosen"))
    assert find().parent == tmp_path / "chosen"


def test_a_directory_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    assert cache._usable(ours)
    os.chmod(ours, 0o777)
    assert not cache._usable(ours)


def test_what_cannot_be_compiled_says_why_once(compiler: Compiler) -> None:
    compiler.error = RuntimeError("LLVM is\nbroken")
    for _ in range(2):
        with pytest.raises(
            UnavailableError, match=r"^toy_kernel.run cannot be compiled here: .*LLVM is b"
        ):
            toy.run.address(REAL)
    assert compiler.calls == 1
    assert toy.run.failure(REAL) is not None
    assert toy.run.failure("float64") is None


def test_code_that_cannot_be_loaded_says_why(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.jit import loader

    def refuse(code: bytes) -> int:
        raise RuntimeError("no memory for code")

    monkeypatch.setattr(loader, "link", refuse)
    with pytest.raises(UnavailableError, match="no memory for code"):
        toy.run.address(REAL)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel was loaded yet, and none can be."""
    import qkv.table  # noqa: F401  # what is imported later would remember that it failed
    from qkv.jit import loader

    def refuse(code: bytes) -> int:
        raise OSError("the linker is broken")

    monkeypatch.setattr(loader, "link", refuse)
    monkeypatch.setattr(kernels, "_warned", [])
    for function in kernels.FUNCTIONS.values():
        monkeypatch.setattr(function, "_addresses", {})
        monkeypatch.setattr(function, "_failures", {})
        monkeypatch.delitem(function.__dict__, "_entries", raising=False)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("learning", [False, True])
def test_a_broken_toolchain_leaves_slower_operators(learning: bool) -> None:
    query, key, value = torch.randn(3, 300, 5).unbind()
    query.requires_grad_(learning)
    options: dict[str, Any] = {"similarity": qkv.Laplacian(2.0)}
    assert qkv.explain(query, key, value, **options).operator == "fused"
    with pytest.warns(
        RuntimeWarning, match=r"the linker is broken; a slower operator is used"
    ) as said:
        found = qkv.attend(query, key, value, **options)
    assert len(said) == 1
    torch.testing.assert_close(found, qkv.attend(query, key, value, operator="dense", **options))
    plan = qkv.explain(query, key, value, **options)
    assert plan.operator != "fused"
    assert "the linker is broken" in plan.rejected["fused"]
    assert "the linker is broken" in str(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not a word more
        qkv.attend(query, key, value, **options)
    with pytest.raises(
        ValueError, match=r"operator 'fused' does not support this input: .*the linker is broken"
    ):
        qkv.attend(query, key, value, operator="fused", **options)


@pytest.mark.usefixtures("broken")
def test_sorted_keys_decline_as_well() -> None:
    key, value = torch.randn(2, 600, 1).unbind()
    options: dict[str, Any] = {"similarity": qkv.Gaussian(0.1)}
    assert qkv.explain(key, key, value, **options).operator == "sorted"
    with pytest.warns(RuntimeWarning, match="the linker is broken"):
        found = qkv.attend(key, key, value, **options)
    torch.testing.assert_close(found, qkv.attend(key, key, value, operator="dense", **options))
    assert "the linker is broken" in qkv.explain(key, key, value, **options).rejected["sorted"]


@pytest.mark.usefixtures("broken")
@pytest.mark.filterwarnings("ignore:.*the linker is broken:RuntimeWarning")
def test_regression_and_sorting_go_on_without_compiled_code() -> None:
    from qkv.operators.sorted.bucket_sort import BUCKET, ascending

    number = np.random.default_rng(0).normal(size=BUCKET + 7)
    np.testing.assert_array_equal(ascending(number).number, np.sort(number))
    x = number[:300, None]
    model = qkv.NadarayaWatsonRegressor(bandwidth="loo").fit(x, np.sin(x[:, 0]))
    assert model.loo_score() > 0.99


@pytest.mark.usefixtures("broken")
def test_a_table_that_cannot_be_weighed_says_why() -> None:
    from qkv.table.samples import SALARIES

    salaries = qkv.Database(SALARIES, key="gpa", value="salary")
    with pytest.raises(
        UnavailableError, match=r"table\.kernels\.weigh cannot be compiled here: .*linker"
    ):
        salaries.query(3.5, similarity="gaussian", bandwidth=0.1)


def _printed(code: str, **environment: str) -> tuple[Any, str]:
    """What a new process prints, as JSON, and what it says beside that."""
    own = {**os.environ, **environment}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=own, check=True, capture_output=True, text=True)
    return json.loads(done.stdout), done.stderr


_TOY = """
import json, sys, numpy as np, toy_kernel as toy
tokens = np.linspace(-3, 3, 35, dtype=np.float32).reshape(7, 5)
out, visits = np.empty_like(tokens), np.zeros(7, np.int64)
address = toy.exponentials.address("float32")
toy.run(toy.Inputs(tokens, 2.0), address, out, visits, count=7, scratch=toy.Scratch((5,)))
print(json.dumps([out.tolist(), "numba" in sys.modules]))
"""


def test_a_new_process_gives_the_same_bits_without_numba(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    own = {"QKV_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    (compiled, by_numba), _ = _printed(_TOY, **own)
    (loaded, again_by_numba), _ = _printed(_TOY, **own)
    assert by_numba
    assert not again_by_numba
    assert compiled == loaded


_ATTEND = """
import json, sys
if {blocked}:
    sys.modules["numba"] = None  # so that importing it fails
import torch, qkv
torch.manual_seed(0)
query, key, value = (torch.randn(5, 401, 3, requires_grad=True) for _ in range(3))
answer = qkv.attend(query, key, value, similarity="boxcar")
answer.sum().backward()
sorted_keys = torch.randn(600, 1)
if not {blocked}:
    qkv.attend(sorted_keys, sorted_keys, sorted_keys, similarity="gaussian", operator="sorted")
loaded = sorted(name for name, module in sys.modules.items() if module is not None)
print(json.dumps({{"answer": answer.tolist(), "loaded": loaded}}))
"""


def test_attention_does_not_import_numba_once_it_is_compiled() -> None:
    _printed(_ATTEND.format(blocked=False))
    found, _ = _printed(_ATTEND.format(blocked=False))
    assert not {"numba", "scipy"} & set(found["loaded"])


def test_the_package_can_bring_its_code(tmp_path: Path) -> None:
    """As a wheel does: compiled for a level of x86-64, used where Numba cannot be imported."""
    from shutil import copytree

    copytree(Path(qkv.__file__).parent, tmp_path / "qkv", ignore=lambda *_: ["__pycache__"])
    empty = {"PYTHONPATH": str(tmp_path), "QKV_CACHE_DIR": str(tmp_path / "empty")}
    level = {"NUMBA_CPU_NAME": "x86-64-v3"}
    if not [each for each in targets.levels() if each.cpu == "x86-64-v3"]:
        pytest.skip("this processor has less than x86-64-v3")
    code = (
        "from qkv.jit.ahead import jobs, prebuild\n"
        "if __name__ == '__main__':\n"
        "    wanted = [job for job in jobs(['qkv.operators.fused'])\n"
        "              if job[1] == 'float32' and ('boxcar' in job[0] or 'ward' in job[0])]\n"
        "    assert list(prebuild(['qkv.operators.fused'], wanted))\n"
    )
    (tmp_path / "build.py").write_text(code)
    command = [sys.executable, str(tmp_path / "build.py")]
    subprocess.run(command, env={**os.environ, **empty, **level}, check=True)
    found, said = _printed(_ATTEND.format(blocked=True), **empty)
    assert "numba" not in found["loaded"]
    assert not said
    assert not list((tmp_path / "empty" / "kernels").iterdir())
    # A processor that no level fits would compile its own, and says what it lacks.
    own = {**empty, "NUMBA_CPU_NAME": "x86-64-v2"}
    lacking, said = _printed(_ATTEND.format(blocked=True), **own)
    assert "numba is not installed: pip install " in said
    torch.testing.assert_close(torch.tensor(lacking["answer"]), torch.tensor(found["answer"]))


def test_who_uses_no_kernel_does_not_load_llvm() -> None:
    code = "import sys, torch, qkv; x = torch.ones(2, 2); qkv.attend(x, x, x); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"llvmlite", "numba"} & set(done.stdout.split())
