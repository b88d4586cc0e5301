"""What docs/trust.md promises: of numbers that are not finite, and of input that means no good."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fuzz import faults
from torch import Tensor
from translate.toy import begun
from typer.testing import CliRunner

import qkv
from qkv import translate, words
from qkv.cli.app import app
from qkv.jit import cache
from qkv.translate.data.text import read_pairs

MB = 2**20


# Numbers that are not finite.


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_a_scale_that_is_not_positive_hides_keys_all_the_same(scale: float) -> None:
    tokens = [torch.randn(1, 2, 17, 8) for _ in range(3)]
    similarity = qkv.ScaledDot(scale=scale)
    for mask in (None, qkv.mask.Causal(), qkv.mask.Window(2, 1)):
        wanted = qkv.attend(*tokens, similarity=similarity, mask=mask, operator="dense")
        for operator in ("sdpa", None):
            found = qkv.attend(*tokens, similarity=similarity, mask=mask, operator=operator)
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("operator", "similarity", "compiled"),
    [
        ("sdpa", "scaled_dot", False),
        ("fused", "scaled_dot", False),
        ("fused", "scaled_dot", True),
        ("fused", "euclidean", False),
    ],
)
def test_gradients_of_scores_near_two_billion_are_those_of_the_formula(
    operator: str, similarity: str, compiled: bool
) -> None:
    """Their last digit is worth a hundred: exp of a difference of two may be any number."""
    n, m, d = 67, 401, 1
    size = {"scaled_dot": 4e4, "euclidean": 1e9}[similarity]
    tokens = [torch.randn(2, n, d) * size, torch.randn(2, m, d) * size, torch.randn(2, m, 5)]
    kind: Any = qkv.ScaledDot(scale=1.03737) if similarity == "scaled_dot" else similarity
    mask = qkv.mask.Causal() & (torch.rand(n, m) < 0.9)

    def gradients(name: str, wrap: Callable[..., Any]) -> tuple[Tensor, ...]:
        parts = [x.clone().requires_grad_() for x in tokens]
        answer = wrap(lambda *given: qkv.attend(*given, similarity=kind, mask=mask, operator=name))(
            *parts
        )
        return torch.autograd.grad(answer.square().sum(), parts)

    graph = partial(torch.compile, backend="aot_eager")
    found = gradients(operator, graph if compiled else lambda call: call)
    for ours, wanted in zip(found, gradients("dense", lambda call: call), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("similarity", ["dot", "cosine", "euclidean", "gaussian"])
def test_tokens_without_dimensions_are_all_alike(similarity: str) -> None:
    query, value = torch.empty(3, 0), torch.randn(5, 2)
    for mask, kept in ((None, value), (qkv.mask.TopK(2), value[:2])):
        found = qkv.attend(query, torch.empty(5, 0), value, similarity=similarity, mask=mask)
        torch.testing.assert_close(found, kept.mean(0).expand(3, 2))


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("operator", ["sdpa", "banded", "fused", "dense"])
def test_tokens_may_lie_in_memory_in_any_order(name: str, operator: str) -> None:
    """Padding keeps the order of axes, and PyTorch's kernel reads rows of another as it likes."""
    sizes = {"query": (2, 3, 17, 7), "key": (2, 3, 17, 7), "value": (2, 3, 17, 5)}
    tokens = {each: torch.randn(size) for each, size in sizes.items()}
    if name != "value":
        tokens["value"] = torch.randn(2, 3, 17, 11)  # wider, so that the others are padded
    mask = qkv.mask.Window(4, 2)
    plain = qkv.attend(**tokens, mask=mask, operator="dense")
    for order in ((0, 2, 3, 1), (3, 2, 1, 0), (0, 1, 3, 2)):
        back = [order.index(axis) for axis in range(4)]
        moved = tokens[name].permute(order).contiguous().permute(back)
        assert not moved.is_contiguous()
        found = qkv.attend(**{**tokens, name: moved}, mask=mask, operator=operator)
        torch.testing.assert_close(found, plain)


# Files of more than they seem.


def _read_vectors(path: Path) -> None:
    words.load(path, cache=False)


def _read_latin_table(path: Path) -> None:
    qkv.Database(path, key="k", value="v", csv={"encoding": "latin-1"})


@pytest.mark.parametrize(
    ("name", "line", "read"),
    [
        ("pairs.tsv.gz", b"eins\tone\n", read_pairs),
        ("vectors.gz", b"word 0.5 0.25\n", _read_vectors),
        ("table.csv.gz", b"1.5,2.5\n", _read_latin_table),
    ],
)
def test_what_comes_out_of_a_compressed_file_is_limited(
    name: str, line: bytes, read: Callable[[Path], Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / name
    head = b"k,v\n" if "csv" in name else b""
    path.write_bytes(gzip.compress(head + line * (17 * MB // len(line))))
    told = rf"{name} must unpack to at most 16,777,216 bytes, and more came from its [\d,]+; "
    with pytest.raises(ValueError, match=told + "unpack it first, or set QKV_UNPACK_LIMIT"):
        read(path)
    path.write_bytes(gzip.compress(head + line * 40))
    monkeypatch.setenv("QKV_UNPACK_LIMIT", "90")
    with pytest.raises(ValueError, match=f"{name} must unpack to at most 90 bytes"):
        read(path)
    monkeypatch.setenv("QKV_UNPACK_LIMIT", "much")
    with pytest.raises(ValueError, match="QKV_UNPACK_LIMIT must be a number of bytes; got 'much'"):
        read(path)
    monkeypatch.setenv("QKV_UNPACK_LIMIT", str(40 * len(line) + len(head)))
    read(path)


def test_a_line_of_any_length_is_refused_while_it_is_read(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"a" * MB)
    with pytest.raises(ValueError, match=r"line 1 is longer than 2,101,248 bytes"):
        words.load(bomb, cache=False)
    with pytest.raises(ValueError, match=r"line 1 is longer than 1,048,576 bytes"):
        read_pairs(bomb)


def test_a_file_that_is_refused_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for content in ("0 3\n", "the 0.5 0.25\ncat 0.5\n"):
        (tmp_path / "vectors.txt").write_text(content)
        with pytest.raises(ValueError, match=r"vectors.txt|at least one word"):
            words.load(tmp_path / "vectors.txt")
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_condition_of_many_parts_is_refused_in_words() -> None:
    database = qkv.Database(pa.table({"k": [1.0], "v": [2.0]}), key="k", value="v")
    many = " or ".join(["k=1"] * 1200)
    with pytest.raises(ValueError, match=r"where has more than 200 comparisons; `in \(…\)`"):
        database.query(1.0, where=many)
    assert database.query(1.0, where=" and ".join(["k=1"] * 200)).value == 2.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust")
    training = begun(folder).training
    training.checkpoint.save(training.interpreter.model, {}, {"step": 1}, True)
    return folder / "model"


def _changed(checkpoint: Path, folder: Path, change: Any) -> Path:
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(version=-5), "format version -5, which is unknown"),
        (lambda c: c.update(version=True), "format version True, which is unknown"),
        (lambda c: c["best"].update(weights=".."), "'..' is no file"),
        (lambda c: c["model"].update(hidden=10**9), "must have shape|does not fit|is incomplete"),
        (lambda c: c["model"].update(embedding=-1), "is incomplete|must"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_refused(
    checkpoint: Path, tmp_path: Path, change: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        translate.load(_changed(checkpoint, tmp_path, change))


def test_brackets_without_end_are_damage(checkpoint: Path, tmp_path: Path) -> None:
    folder = _changed(checkpoint, tmp_path, lambda c: None)
    (folder / "config.json").write_text("[" * 200_000)
    with pytest.raises(ValueError, match="is truncated or damaged"):
        translate.load(folder)


# Files that are not what they should be.


def test_a_pipe_in_place_of_a_kernel_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f-cpu-0.code")
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(cache.read(tmp_path / "f-cpu-0.code")))
    reader.daemon = True
    reader.start()
    reader.join(20)
    assert found == [None]


def test_without_a_home_kernels_are_kept_all_the_same(tmp_path: Path) -> None:
    """And where the package may not be written to."""
    code = (
        "import pathlib, qkv.jit.cache as c;"
        "c.PACKAGE = pathlib.Path('/proc/none'); print(c.directory())"
    )
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", f"import os; os.environ.pop('HOME', None); {code}"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()).is_dir()


def test_without_a_home_vectors_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    (tmp_path / "vectors.txt").write_text("cat 1.0 2.0\ndog 2.0 1.0\n")
    assert len(words.load(tmp_path / "vectors.txt").words) == 2


def test_formulas_of_spreadsheets_are_written_as_they_came(tmp_path: Path) -> None:
    """A table is data: whoever opens it decides whether =cmd() is run; nothing of ours runs it."""
    table = pa.table({"k": [1.0, 2.0], "v": ["=cmd()", "@sum"]})
    answer = qkv.Database(table, key="k", value="v").query(1.0)
    assert answer.value == "=cmd()"
    source, out = tmp_path / "table.csv", tmp_path / "answers.csv"
    source.write_text("k,v\n1,=cmd()\n2,@sum\n")
    options = ["--key", "k", "--value", "v", "--json", "--out", str(out)]
    done = CliRunner().invoke(app, ["query", str(source), *options, "1"])
    assert done.exit_code == 0, done.output
    [row] = csv.DictReader(out.read_text().splitlines())
    assert row["value"] == "=cmd()"


def test_interrupting_a_benchmark_leaves_no_traceback(tmp_path: Path) -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import qkv.benchmarks.core as core, sys, time\n"
        "def measure():\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
        "    yield\n"
        "core.measure = measure\n"
        "sys.argv = ['qkv', 'bench', 'core', '--json', sys.argv[1]]\n"
        "from qkv.__main__ import main\n"
        "main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "figures.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert (first, process.returncode) == ("begun\n", 130), (printed, said)
    assert "Traceback" not in printed + said
    assert not list(tmp_path.iterdir())  # no half of the figures


# Faults: a few of what `make faults` does hundreds of times.


@pytest.mark.parametrize("name", ["save", "cache"])
def test_nothing_half_written_is_read_again(name: str) -> None:
    rng = np.random.default_rng(1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(4):
            faults.killed(faults.VICTIMS[name], rng, 0.3)
        faults.on_a_full_disk(faults.VICTIMS[name], rng)
        faults.on_a_read_only_disk(faults.VICTIMS[name])
    finally:
        torch.set_num_threads(before)
