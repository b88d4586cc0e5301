"""One cache of kernels for several processes, processors and users without a home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.jit import target as targets

_TOY = """
import json, sys, numpy as np, toy_kernel as toy
tokens = np.linspace(-3, 3, 35, dtype=np.float32).reshape(7, 5)
out, visits = np.empty_like(tokens), np.zeros(7, np.int64)
address = toy.exponentials.address("float32")
toy.run(toy.Inputs(tokens, 2.0), address, out, visits, count=7, scratch=toy.Scratch((5,)))
print(json.dumps([out.tolist(), "numba" in sys.modules]))
"""


def _begun(folder: Path, *remove: str, before: str = "", **environment: str) -> Any:
    own = {**os.environ, "QKV_CACHE_DIR": str(folder), **environment}
    own["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    for name in remove:
        own.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-c", before + _TOY], env=own, stdout=subprocess.PIPE, text=True
    )


def _answer(process: Any) -> tuple[list[list[float]], bool]:
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    out, by_numba = json.loads(printed)
    return out, by_numba


def test_two_processes_may_compile_the_same_kernel_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    both = [_begun(tmp_path), _begun(tmp_path)]
    first, second = (_answer(each) for each in both)
    assert first[0] == second[0]
    assert len(list((tmp_path / "kernels").iterdir())) == 2  # one file a function, nothing else
    third = _answer(_begun(tmp_path))
    assert third == (first[0], False)


def test_processors_of_two_kinds_share_a_cache(tmp_path: Path) -> None:
    """As on machines with one home: each has code of its own, and finds it again."""
    tmp_path.chmod(0o700)
    kinds = ["x86-64-v2", "x86-64-v3"]
    if not targets.target().triple.startswith("x86_64") or len(targets.levels()) == 0:
        pytest.skip("this processor has less than x86-64-v3")
    begun = [_begun(tmp_path, NUMBA_CPU_NAME=kind) for kind in kinds]
    first = [_answer(each) for each in begun]
    names = [path.name for path in (tmp_path / "kernels").iterdir()]
    assert sorted("v2" in name for name in names) == [False, False, True, True]
    again = [_answer(_begun(tmp_path, NUMBA_CPU_NAME=kind)) for kind in kinds]
    for (out, _), (same, by_numba) in zip(first, again, strict=True):
        assert out == same
        assert not by_numba
    for row, other in zip(first[0][0], first[1][0], strict=True):
        assert row == pytest.approx(other, rel=1e-6)


def test_a_user_without_a_home_and_a_package_that_is_read_only(tmp_path: Path) -> None:
    """Kernels are compiled, kept in the folder for what is temporary, and found there again."""
    before = (
        "import pathlib, pwd, qkv.jit.cache as c\n"
        "c.PACKAGE = pathlib.Path('/proc/none')\n"
        "def nobody(*_): raise KeyError('getpwuid(): uid not found')\n"
        "pwd.getpwuid = nobody\n"
    )
    home = ("HOME", "XDG_CACHE_HOME", "QKV_CACHE_DIR", "USER", "LOGNAME")
    options: dict[str, str] = {"before": before, "TMPDIR": str(tmp_path)}
    first = _answer(_begun(tmp_path, *home, **options))
    assert _answer(_begun(tmp_path, *home, **options)) == (first[0], False)
