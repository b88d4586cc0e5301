"""What the machine code of search and loss depends on, and what it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qkv.jit import Kernel
from qkv.translate import beam, compare, likely, scores


@pytest.mark.parametrize(
    ("kernel", "module", "constant"),
    [
        (beam.advance, beam, "END"),
        (beam.advance, beam, "PAD"),
        (likely._search, likely, "END"),
        (likely._search, likely, "BEGIN"),
        (compare._compare, compare, "_FAR"),
        (scores._turn, scores, "_PART"),
    ],
)
def test_another_constant_is_another_kernel(
    kernel: Kernel, module: object, constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernel.digest()
    monkeypatch.setattr(module, constant, getattr(module, constant) + 1)
    assert kernel.digest() != before
    monkeypatch.undo()
    assert kernel.digest() == before


def test_declaring_kernels_does_not_import_numba() -> None:
    code = "import sys, qkv.translate.search, qkv.translate.loss; print('numba' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
