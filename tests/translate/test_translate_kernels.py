"""What the machine code of search and loss depends on, and what it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qkv.jit import Kernel
from qkv.similarity import pair_scores
from qkv.translate.decoding import beam, top_tokens
from qkv.translate.models import softmax_gradient


@pytest.mark.parametrize(
    ("kernel", "module", "constant"),
    [
        (beam.advance, beam, "END"),
        (beam.advance, beam, "PAD"),
        (top_tokens._search, top_tokens, "END"),
        (top_tokens._search, top_tokens, "BEGIN"),
        (pair_scores._compare, pair_scores, "FAR32"),
        (softmax_gradient._turn, softmax_gradient, "_PART"),
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
    code = "import sys, qkv.translate, qkv.translate.models.loss; print('numba' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
