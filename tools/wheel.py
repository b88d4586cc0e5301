"""Build a wheel that brings its kernels, compiled for two levels of x86-64.

It is made from a copy of the sources, so that the tree stays as it is, and tried where Numba
cannot be imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
LEVELS = ("x86-64-v3", "x86-64-v4")
PARTS = ("src", "pyproject.toml", "README.md", "LICENSE")

COMPILE = """
import time
from qkv.warmup import prebuild
said = 0.0
for done, total, last in prebuild():
    if time.perf_counter() - said > 2 or done == total:
        said = time.perf_counter()
        print(f"  {done} of {total} kernels compiled {last}", flush=True)
"""
TRY = """
import sys, time
sys.modules["numba"] = None  # so that importing it fails
import torch, qkv
query, key, value = torch.randn(3, 4, 300, 16, requires_grad=True).unbind()
start = time.perf_counter()
answer = qkv.attend(query, key, value, similarity=qkv.Additive(16, 16, 32), operator="fused")
answer.sum().backward()
taken = time.perf_counter() - start
print(f"additive attention, forward and backward, where there is no Numba: {taken:.2f} s")
"""


def run(*command: str, **environment: str) -> None:
    subprocess.run([sys.executable, *command], check=True, env={**os.environ, **environment})


def main() -> None:
    copy, tried, out = TREE / "build/wheel", TREE / "build/wheel-tried", TREE / "dist"
    for directory in (copy, tried):
        shutil.rmtree(directory, ignore_errors=True)
    for part in PARTS:
        if (TREE / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "prebuilt")
            shutil.copytree(TREE / part, copy / part, ignore=ignored)
        else:
            shutil.copy(TREE / part, copy / part)
    for level in LEVELS:
        sys.stdout.write(f"kernels for {level}\n")
        sys.stdout.flush()
        run("-c", COMPILE, PYTHONPATH=str(copy / "src"), NUMBA_CPU_NAME=level)
    run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(copy))
    wheel = max(out.glob("qkv-*.whl"), key=lambda path: path.stat().st_mtime)
    sizes = [path.stat().st_size for path in (copy / "src").rglob("*.code")]
    sys.stdout.write(
        f"{wheel.relative_to(TREE)}: {wheel.stat().st_size / 1e6:.1f} MB, "
        f"with {len(sizes)} kernels of {sum(sizes) / 1e6:.1f} MB unpacked\n"
    )
    sys.stdout.flush()
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tried), str(wheel))
    run("-c", TRY, PYTHONPATH=str(tried), QKV_CACHE_DIR=str(tried / "empty"))


if __name__ == "__main__":
    main()
