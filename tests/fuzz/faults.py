"""Processes that die while they write, and disks that are full or may not be written to.

    python tests/fuzz/faults.py --times 100

A victim writes the same kind of file over and over; it is killed at a random moment, and what lies
on disk is read as the next process would read it: it must be one of the whole files that were
written, or none. Victims are forked, one thread each, so that a hundred of them take seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

#: A victim lives at most so many seconds; some need longer until they write.
LONGEST = 0.6
LONGEST_OF = {"train": 2.0, "warmup": 3.0, "gallery": 2.0, "query": 1.5}


class Victim(NamedTuple):
    """Writes into a folder until it is killed, and how to tell that nothing there is half."""

    write: Callable[[Path], None]
    check: Callable[[Path], None]


def _train(folder: Path) -> None:
    from translate.toy import RECIPE, begun

    recipe = replace(RECIPE, epochs=100)
    begun(folder, recipe=recipe).training.run()


def _trained(folder: Path) -> None:
    from qkv import translate
    from qkv.translate.training.callbacks import NullCallback

    if not (folder / "model" / "config.json").exists():
        return  # it died before its first checkpoint
    assert len(translate.load(folder / "model").translate(["abc"])) == 1
    translate.resume(folder / "model", NullCallback())


def _save(folder: Path) -> None:
    from qkv.regression import NadarayaWatsonRegressor

    x = np.linspace(0, 1, 200)[:, None]
    models = [NadarayaWatsonRegressor(bandwidth=0.1).fit(x, x[:, 0] + up) for up in (0.0, 5.0)]
    while True:
        for model in models:
            model.save(folder / "model.safetensors")


def _saved(folder: Path) -> None:
    from qkv.regression import NadarayaWatsonRegressor

    if (folder / "model.safetensors").exists():
        model = NadarayaWatsonRegressor.load(folder / "model.safetensors")
        answer = model.predict(np.array([[0.5]]))[0]
        assert min(abs(answer - 0.5), abs(answer - 5.5)) < 1e-9


def _cache(folder: Path) -> None:
    from qkv.jit import cache as kernels
    from qkv.words import cache as words
    from qkv.words.reading import Block

    block = Block([f"w{i}" for i in range(500)], np.ones((500, 20), np.float32))
    while True:
        kernels.write(folder / "f-cpu-0.code", b"a" * 10**6)
        kernels.write(folder / "f-cpu-0.code", b"b" * 10**6)
        words.keep(folder / "vectors", iter([block]))


def _cached(folder: Path) -> None:
    from qkv.jit import cache as kernels
    from qkv.words import cache as words

    code = kernels.read(folder / "f-cpu-0.code")
    assert code in (None, b"a" * 10**6, b"b" * 10**6)
    assert code is not None or not (folder / "f-cpu-0.code").exists()
    vectors = words.opened(folder / "vectors")
    assert vectors is None or len(vectors.words) == 500


def _query(folder: Path) -> None:
    from typer.testing import CliRunner

    from qkv.cli.app import app
    from qkv.table.samples import SALARIES

    while True:
        for out in ("answers.csv", "answers.parquet"):
            arguments = ["query", str(SALARIES), "--key", "gpa", "--value", "salary"]
            arguments += ["--similarity", "gaussian", "--bandwidth", "0.1", "--json"]
            CliRunner().invoke(app, [*arguments, "--out", str(folder / out), "3.5"])


def _queried(folder: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet as pq

    for name, read in (("answers.csv", pyarrow.csv.read_csv), ("answers.parquet", pq.read_table)):
        if (folder / name).exists():
            assert read(folder / name).num_rows == 1


def _warm(folder: Path) -> None:
    """Compile as `qkv warmup` does, for one function, into an empty cache."""
    from jit import toy_kernel

    from qkv.jit import cache as kernels

    os.environ["QKV_CACHE_DIR"] = str(folder)
    kernels.directory.cache_clear()
    while True:
        for function in (toy_kernel.exponentials, toy_kernel.run):
            function.machine_code("float64")  # compiled, and kept
        for code in folder.rglob("*.code"):
            code.unlink()


def _warmed(folder: Path) -> None:
    from qkv.jit import cache as kernels

    for path in folder.rglob("*.code"):
        if not path.name.startswith("."):  # else a write that was cut off
            assert kernels.read(path) is not None, path


@cache
def _example() -> list[Any]:
    from qkv.gallery.run import run

    return [run("tokens")]


def _gallery(folder: Path) -> None:
    from qkv.gallery.page import write

    while True:
        write(_example(), folder)


def _shown(folder: Path) -> None:
    page = folder / "index.html"
    if page.exists():
        assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")


VICTIMS = {
    "train": Victim(_train, _trained),
    "save": Victim(_save, _saved),
    "cache": Victim(_cache, _cached),
    "query": Victim(_query, _queried),
    "warmup": Victim(_warm, _warmed),
    "gallery": Victim(_gallery, _shown),
}


def killed(victim: Victim, rng: np.random.Generator, longest: float = LONGEST) -> bool:
    """Kill one at a random moment and check what it left; whether it had written anything.

    Every other one is killed soon after its first file, so that writes are hit however long it
    takes to begin them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        child = _forked(lambda: victim.write(folder))
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0.0, longest))
        else:
            end = time.monotonic() + 20 * longest
            while time.monotonic() < end and not _holds_files(folder):
                time.sleep(0.0005)
            time.sleep(rng.uniform(0.0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        victim.check(folder)
        # Those who come after it write over what it left.
        return _holds_files(folder)


def _holds_files(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))


def on_a_read_only_disk(victim: Victim) -> None:
    """Nothing may be written; what lay there before is as it was."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "kept"
        folder.mkdir()
        (folder / "before").write_text("whole")

        def write() -> None:
            _renounce_privileges()
            signal.alarm(2)
            victim.write(folder)

        folder.chmod(0o500)
        os.waitpid(_forked(write), 0)
        assert [path.name for path in folder.iterdir()] == ["before"]
        assert (folder / "before").read_text() == "whole"
        folder.chmod(0o700)
        victim.check(folder)


def _renounce_privileges() -> None:
    """Root may write where nobody may, by a capability; without it, it is as other users are."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def on_a_full_disk(victim: Victim, rng: np.random.Generator) -> None:
    """No file may grow beyond some bytes, as on a full disk; whatever is said, nothing is half."""
    with tempfile.TemporaryDirectory() as name:
        folder, most = Path(name), int(rng.integers(1, 50_000))

        def write() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            signal.alarm(1)
            victim.write(folder)

        os.waitpid(_forked(write), 0)
        victim.check(folder)


def _forked(work: Callable[[], None]) -> int:
    """A child that does this, says nothing, and ends."""
    child = os.fork()
    if child:
        return child
    with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        work()
    os._exit(0)


def prepare() -> None:
    """Import what victims need; with one thread, which is what survives a fork."""
    import torch

    torch.set_num_threads(1)
    import numba  # noqa: F401
    import pyarrow  # noqa: F401
    import sklearn  # noqa: F401
    import typer.testing  # noqa: F401
    from jit import toy_kernel  # noqa: F401
    from translate import toy  # noqa: F401

    import qkv.gallery.page
    import qkv.gallery.run
    import qkv.jit.compiler
    import qkv.regression
    import qkv.table
    import qkv.words  # noqa: F401

    _example()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("victims", nargs="*", default=list(VICTIMS))
    parser.add_argument("--times", type=int, default=100)
    told = parser.parse_args()
    prepare()
    rng = np.random.default_rng()
    failed = 0
    for name in told.victims:
        victim = VICTIMS[name]
        wrote = 0
        for which in range(told.times):
            try:
                longest = LONGEST_OF.get(name, LONGEST)
                wrote += killed(victim, rng, longest)
                if which < told.times // 4:
                    on_a_full_disk(victim, rng)
                if which < told.times // 20:
                    on_a_read_only_disk(victim)
            except Exception as error:
                failed += 1
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
        print(
            f"{name}: killed {told.times} times, {wrote} after it had written; "
            f"{told.times // 4} times on a full disk, {told.times // 20} on a read-only one; "
            f"{failed} failed so far",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
