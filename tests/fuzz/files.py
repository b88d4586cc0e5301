"""Every file format that is read, with damage: an answer or one sentence, in bounded memory and
time.

A case is a sound file, damaged at random, and read in a process of its own that may take so much
memory and so many seconds. What is wrong with a file must be said as ValueError; any other error, a
crash, or a reading that takes more than it may, is a find.
"""

from __future__ import annotations

import atexit
import gzip
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qkv import unpacked as unpacked_limits

#: What one reading may take beyond what the process has, and how many seconds of work.
MOST_BYTES, MOST_SECONDS = 400 * 2**20, 20
#: Sentences are kept: a file that holds tens of megabytes, unpacked, may take so many times as much
#: more, and a second for so many bytes.
MOST_TIMES, BYTES_A_SECOND = 20, 2 * 2**20
#: So long the process may be silent; it may be stopped meanwhile.
SILENCE = 300.0

Damage = Callable[[np.random.Generator, bytes], bytes]
Reader = Callable[[Path], None]


def check(seed: int) -> int:
    """Read the damaged file of a seed; 1, for one reading."""
    return _Worker.shared().read(seed)


class _Worker:
    """A process that reads one file after the other, and is replaced where that kills it."""

    _one: _Worker | None = None

    def __init__(self) -> None:
        command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; "
                   "from fuzz.files import serve; serve()", "tests/fuzz"]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

        atexit.register(self.close)

    @classmethod
    def shared(cls) -> _Worker:
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def read(self, seed: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seed}\n")
        ready, _, _ = select.select([self._process.stdout], [], [], SILENCE)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.close()
            code = self._process.returncode
            raise AssertionError(
                f"seed {seed}: {describe(seed)}: "
                + (f"the process ended with {code}" if ready else "nothing came for minutes")
            )
        told = json.loads(line)
        if told["wrong"]:
            raise AssertionError(f"seed {seed}: {describe(seed)}: {told['wrong']}")
        return 1

    def close(self) -> None:
        """End the process; the next reading starts another."""
        self._process.kill()
        self._process.communicate()
        type(self)._one = None


def serve() -> None:
    """Read the files of the seeds that come in, one a line, and say what was wrong."""
    tables = Samples()  # imports all that readers need, before memory is limited
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = size + 2 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGVTALRM, _too_long)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    printed = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process lives
    os.dup2(printed.fileno(), 1)
    # The terminal's interrupt goes to all processes, and is for the one that asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        wrong = _wrong(tables, int(line))
        if printed.seek(0, os.SEEK_END):  # nobody asked for words among the answers
            printed.seek(0)
            wrong = wrong or f"reading prints {printed.read()[:200]!r}"
            printed.truncate(0)
        answers.write(json.dumps({"wrong": wrong}) + "\n")


class TooLongError(BaseException):
    """Not an Exception, so that nobody takes it for one of his own."""


def _too_long(*_: Any) -> None:
    raise TooLongError


def _wrong(samples: Samples, seed: int) -> str | None:
    rng = np.random.default_rng(seed)
    name = FORMATS[int(rng.integers(len(FORMATS)))]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = samples.damaged(name, rng, Path(folder))
        size = _unpacked_size(path)
        seconds = MOST_SECONDS + size / BYTES_A_SECOND
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            samples.read(name, path)
        except ValueError as error:
            if len(str(error)) > 2000:
                return f"a message of {len(str(error)):,} characters: {str(error)[:200]}"
        except TypeError as error:  # a column that was of numbers may now be of texts
            if "column '" not in str(error):
                return f"TypeError: {error}"
        except TooLongError:
            return f"reading takes more than {seconds:.0f} s"
        except BaseException as error:
            return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        most = MOST_BYTES + MOST_TIMES * size
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return f"reading takes {grown >> 20:,} MB" if grown > most else None


def _unpacked_size(path: Path) -> int:
    """The bytes that a file holds, as far as it can be unpacked and may be."""
    size = path.stat().st_size
    if path.suffix != ".gz":
        return size
    unpacked, most = 0, max(unpacked_limits.ALWAYS, unpacked_limits.MOST_TIMES * size)
    with gzip.open(path) as stream:
        try:
            while unpacked < most and (block := stream.read(2**20)):
                unpacked += len(block)
        except (OSError, EOFError, zlib.error):
            pass
    return max(size, unpacked)


def describe(seed: int) -> str:
    """The format that a seed damages."""
    return FORMATS[int(np.random.default_rng(seed).integers(len(FORMATS)))]


FORMATS = (
    "words.txt", "words.bin", "words.gz", "pairs.tsv", "pairs.tsv.gz", "table.csv", "table.csv.gz",
    "table.parquet", "table.arrow", "table.feather", "index.arrow", "model.safetensors",
    "checkpoint/config.json", "checkpoint/vocabulary.json", "checkpoint/weights", "costs.json",
    "kernel.code", "queries.csv", "table.duckdb",
)  # fmt: skip


class Samples:
    """Sound files of every format, and who reads them."""

    def __init__(self) -> None:
        import pyarrow as pa

        import qkv
        import qkv.table
        import qkv.translate
        import qkv.words  # noqa: F401

        rng = np.random.default_rng(0)
        self._sound: dict[str, dict[str, bytes]] = {}
        self._table = pa.table(
            {"k": rng.normal(size=40), "v": rng.integers(0, 9, 40), "t": ["a", "b", "c", None] * 10}
        )
        with tempfile.TemporaryDirectory() as folder:
            self._make(Path(folder))

    def _make(self, folder: Path) -> None:
        import duckdb
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.parquet as pq
        from sklearn.utils.validation import check_array  # noqa: F401

        import qkv
        from qkv.jit import cache
        from qkv.regression import NadarayaWatsonRegressor

        vectors = "".join(f"w{i} {i / 7:.4f} {-i:.3f} 0.5\n" for i in range(30)).encode()
        self._add("words.txt", vectors)
        binary = b"30 3\n" + b"".join(
            f"w{i} ".encode() + struct.pack("<3f", i, -i, 0.5) for i in range(30)
        )
        self._add("words.bin", binary)
        self._add("words.gz", gzip.compress(vectors))
        pairs = "".join(f"eins {i}\tone {i}\n" for i in range(30)).encode()
        self._add("pairs.tsv", pairs)
        self._add("pairs.tsv.gz", gzip.compress(pairs))
        pa.csv.write_csv(self._table, folder / "t.csv")
        csv = (folder / "t.csv").read_bytes()
        self._add("table.csv", csv)
        self._add("table.csv.gz", gzip.compress(csv))
        pq.write_table(self._table, folder / "t.parquet", row_group_size=9)
        self._add("table.parquet", (folder / "t.parquet").read_bytes())
        with pa.ipc.new_file(folder / "t.arrow", self._table.schema) as out:
            out.write_table(self._table)
        self._add("table.arrow", (folder / "t.arrow").read_bytes())
        pyarrow.feather.write_feather(self._table, folder / "t.feather")
        self._add("table.feather", (folder / "t.feather").read_bytes())
        self._indexed = folder / "i.csv"
        self._add("index.arrow", b"")  # made anew for each case: it names its file
        x = np.linspace(0, 1, 20)[:, None]
        NadarayaWatsonRegressor(bandwidth=0.2).fit(x, x[:, 0]).save(folder / "m.safetensors")
        self._add("model.safetensors", (folder / "m.safetensors").read_bytes())
        checkpoint = _checkpoint(folder / "checkpoint")
        for file in ("config.json", "vocabulary.json", "weights"):
            self._sound[f"checkpoint/{file}"] = checkpoint
        lines = {"threads": 2, "lines": {}}
        self._add("costs.json", json.dumps(lines).encode())
        cache.write(folder / "kernel.code", b"\x7fELF" + bytes(200))
        self._add("kernel.code", (folder / "kernel.code").read_bytes())
        self._add("queries.csv", b"k\n1.5\n2.5\n")
        with duckdb.connect(str(folder / "d.duckdb")) as connection:
            connection.register("given", self._table)
            connection.execute("CREATE TABLE t AS SELECT * FROM given")
        self._add("table.duckdb", (folder / "d.duckdb").read_bytes())
        self._memory = qkv.Database(self._table, key="k", value="v")

    def _add(self, name: str, content: bytes) -> None:
        self._sound[name] = {name: content}

    def damaged(self, name: str, rng: np.random.Generator, folder: Path) -> Path:
        """The files of a format in a folder, one of them damaged; the one to read."""
        import pyarrow.csv

        import qkv

        if name == "index.arrow":
            pyarrow.csv.write_csv(self._table, folder / "i.csv")
            qkv.Database(folder / "i.csv", key="k", value="v").indexed(folder / name)
            path = folder / name
            # An index is the user's own, mapped and trusted as it is; it may be cut off.
            content = path.read_bytes()
            path.write_bytes(content[: int(rng.integers(len(content)))])
            return path
        files = self._sound[name]
        for file, content in files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)
        victim = next((file for file in files if file.startswith(name)), name)
        content = files[victim]
        if victim.endswith(".gz") and rng.random() < 0.7:  # what is inside is damaged
            content = gzip.compress(damage(rng, gzip.decompress(content)), 1)
        else:
            content = damage(rng, content)
        (folder / victim).write_bytes(content)
        return folder / victim

    def read(self, name: str, path: Path) -> None:
        """Read a file as qkv does, and use what came of it."""
        import qkv
        from qkv import cost, translate, words
        from qkv.jit import cache
        from qkv.regression import NadarayaWatsonRegressor
        from qkv.translate.data.text import read_pairs

        match name:
            case "words.txt" | "words.bin" | "words.gz":
                words.load(path, cache=False)
            case "pairs.tsv" | "pairs.tsv.gz":
                read_pairs(path)
            case "model.safetensors":
                NadarayaWatsonRegressor.load(path).predict(np.array([[0.5]]))
            case "checkpoint/config.json" | "checkpoint/vocabulary.json" | "checkpoint/weights":
                translate.load(path.parent).translate(["ab"])
            case "costs.json":
                cost._read(path)
            case "kernel.code":
                sound = self._sound[name][name] == path.read_bytes()
                assert (cache.read(path) is None) != sound
            case "queries.csv":
                from qkv.cli.query_parsing import keys_of_file

                keys_of_file(self._memory, path)
            case "index.arrow":
                database = qkv.Database(path.with_name("i.csv"), key="k", value="v")
                database.indexed(path).query(0.5, similarity="gaussian", bandwidth=1)
            case _:
                options = {"table": "t"} if name == "table.duckdb" else {}
                database = qkv.Database(path, key="k", value="v", **options)
                database.query(0.5, similarity="gaussian", bandwidth=1)


def _checkpoint(folder: Path) -> dict[str, bytes]:
    """A translator of a few letters, as it lies on disk."""
    from translate.toy import begun

    folder.mkdir()
    training = begun(folder).training
    training.checkpoint.save(training.interpreter.model, {}, {"step": 1}, True)
    folder = folder / "model"
    return {f"checkpoint/{file.name}": file.read_bytes() for file in folder.iterdir()}


_TOKENS = (
    b"", b"\0", b"-1", b"nan", b"inf", b"1e999", b"999999999999999999999", b"..", b"../../x", b"{",
    b"[", b"]", b'"', b"'", b",", b"\n", b"\r\n", b"\t", b" ", b"\xff\xfe", b"\xef\xbb\xbf",
    b"null", b"true", b"=cmd()", b"\x1f\x8b", b"PAR1", b"18446744073709551615", b"\xf0\x9f\x90\x95",
)  # fmt: skip


def damage(rng: np.random.Generator, content: bytes) -> bytes:
    """The content with some of it changed, left out, doubled, moved or blown up."""
    found = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 2, 5]))):
        at = int(rng.integers(0, len(found) + 1))
        stop = min(len(found), at + int(rng.choice([1, 1, 4, 8, 40, 400])))
        match int(rng.integers(0, 10)):
            case 0 | 1 if stop > at:
                found[at] ^= 1 << int(rng.integers(8))
            case 2:
                del found[at:]
            case 3:
                del found[at:stop]
            case 4:
                found[at:at] = _TOKENS[int(rng.integers(len(_TOKENS)))]
            case 5:
                found[at:stop] = _TOKENS[int(rng.integers(len(_TOKENS)))]
            case 6:
                found[at:at] = found[at:stop] * int(rng.choice([1, 10, 300]))
            case 7:
                found[at:stop] = bytes(rng.integers(0, 256, stop - at, dtype=np.uint8))
            case 8:
                found[at:stop] = struct.pack("<q", int(rng.choice([-1, 2**31, 2**62, 0])))
            case 9 if rng.random() < 0.3:  # one long run of one sign
                sign = bytes([int(rng.choice(list(b'[{(, 0a\n"x')))])
                found[at:at] = sign * int(rng.choice([10**4, 10**6, 3 * 10**7]))
    return bytes(found)
