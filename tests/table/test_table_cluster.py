"""Tables on a Dask cluster: the answers of one machine, whoever read what, and clear failures."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from table.parted import ENDS, QUESTIONS, TABLE, as_json, assert_close, in_files
from table.stored import stored
from typer.testing import CliRunner

import qkv
from qkv.cli import app
from qkv.cluster import jobs
from qkv.table import aggregation, parts
from qkv.table.comparison import NAMES
from qkv.table.query_runner import QueryOptions
from qkv.table.sources import Request, base
from qkv.table.sources.postgres import without_secrets

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes, started once: that takes seconds."""
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PART_ROWS", 50)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same rows as Parquet, IPC and CSV."""
    root = tmp_path_factory.mktemp("parts")
    return {kind: in_files(kind, root / kind) for kind in ENDS}


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        *(("parquet", question) for question in QUESTIONS),
        *((kind, question) for kind in ("ipc", "csv") for question in ("aging", "chosen", "text")),
    ],
)
def test_answers_are_those_of_one_machine(
    kind: str, question: str, folders: dict[str, Path], client: Any
) -> None:
    key, value, asked, how = QUESTIONS[question]
    alone = qkv.Database(folders[kind], key=key, value=value)
    shared = qkv.Database(folders[kind], key=key, value=value)
    assert_close(
        as_json(shared.query(asked, **how, client=client)), as_json(alone.query(asked, **how))
    )


#: Keys of every kind, a query of each, a bandwidth, and the similarities that compare it.
KEYS: dict[str, tuple[Any, float, set[str]]] = {
    "age": (41, 9.0, set(NAMES) - {"fuzzy", "dot", "scaled_dot", "cosine"}),
    "born": (TABLE["born"][5].as_py(), 900.0, {"equal", "gaussian", "epanechnikov"}),
    "seen": (dt.datetime(1999, 1, 1), 1e8, {"laplacian", "boxcar", "triangular"}),
    "alive": (True, 0.5, {"equal", "gaussian", "triangular"}),
    "name": ("B22", 0.1, {"equal", "fuzzy"}),
    "place": (TABLE["place"][5].as_py(), 0.7, set(NAMES) - {"fuzzy"}),
}
_VALUES = ["income", "town", "place", "alive"]
_ASKED = [(key, each) for key, (*_, names) in KEYS.items() for each in sorted(names)]


@pytest.mark.parametrize(("number", "key", "similarity"),
                         [(place, *each) for place, each in enumerate(_ASKED)])  # fmt: skip
def test_every_similarity_of_every_kind_of_key(
    number: int, key: str, similarity: str, folders: dict[str, Path], client: Any
) -> None:
    query, width, _ = KEYS[key]
    how: dict[str, Any] = {"similarity": similarity}
    if similarity not in ("equal", "euclidean", "dot", "scaled_dot", "cosine"):
        how["bandwidth"] = width
    value = _VALUES[number % len(_VALUES)]
    database = qkv.Database(folders["parquet"], key=key, value=value)
    shared, alone = (database.query(query, **how, client=each) for each in (client, None))
    assert alone.found
    assert_close(as_json(shared), as_json(alone))


@pytest.mark.parametrize("kind", ["a function", "of two tokens", "an object", "several"])
def test_similarities_of_your_own_travel(kind: str, folders: dict[str, Path], client: Any) -> None:
    own: Any = {
        "a function": lambda u: torch.exp(-u.abs().sqrt()),
        "of two tokens": lambda query, key: -(query[:, None] - key[None]).abs().sum(-1),
        "an object": qkv.Biweight(bandwidth=0.3),
        "several": {"height": lambda u: 1 / (1 + u * u), "town": "equal"},
    }[kind]
    key, query = (["height", "town"], (1.7, "Oslo")) if kind == "several" else ("height", 1.7)
    how: dict[str, Any] = {"similarity": own}
    if kind in ("a function", "several"):
        how["bandwidth"] = 0.1 if kind == "a function" else {"height": 0.1}
    database = qkv.Database(folders["parquet"], key=key, value="income")
    shared, alone = (database.query(query, **how, client=each) for each in (client, None))
    assert_close(as_json(shared), as_json(alone))


@pytest.mark.parametrize("rows", [31, 100, 331])
def test_the_split_changes_nothing(
    rows: int, folders: dict[str, Path], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PART_ROWS", rows)
    key, value, asked, how = QUESTIONS["groups"]
    database = qkv.Database(folders["parquet"], key=key, value=value)
    shared, alone = (database.query(asked, **how, client=each) for each in (client, None))
    assert_close(as_json(shared), as_json(alone))


@pytest.mark.parametrize("question", ["many", "groups", "aging", "chosen"])
def test_dask_frames_are_read_where_their_partitions_are(question: str, client: Any) -> None:
    frames = pytest.importorskip("dask.dataframe")
    key, value, asked, how = QUESTIONS[question]
    pandas = TABLE.drop_columns(["place", "seen", "born"]).to_pandas()
    pandas["town"] = pandas["town"].astype(str)
    if question == "aging":
        how = {**how, "decay": ("age", 4.0)}
    frame = frames.from_pandas(pandas, npartitions=7, sort=False)
    found = qkv.Database(frame, key=key, value=value).query(asked, **how, client=client)
    expected = qkv.Database(pandas, key=key, value=value).query(asked, **how)
    assert_close(as_json(found, "source"), as_json(expected, "source"))


def test_postgres_is_read_by_ranges_of_its_key(tmp_path: Path, postgres: str, client: Any) -> None:
    from contextlib import closing

    from adbc_driver_postgresql import dbapi

    numbered = TABLE.select(["height", "income", "name"]).append_column(
        "id", pa.array(range(-300, 301))
    )
    address, told = stored("postgres", numbered, tmp_path, postgres)
    name = told["table"]
    database = qkv.Database(address, key="height", value="income", **told)
    how: dict[str, Any] = {"similarity": "gaussian", "bandwidth": 0.05, "where": "height > 1.5"}
    plan = database.explain(1.7, **how, client=client)
    assert plan.notes[-1] == "1 part, read by 2 workers"
    with closing(dbapi.connect(postgres, autocommit=True)) as connection:
        connection.cursor().execute(f"CREATE INDEX ON {name} (id)").close()
        connection.cursor().execute(f"ANALYZE {name}").close()
    plan = database.explain(1.7, **how, client=client)
    assert plan.notes[-1] == "13 parts, read by 2 workers"
    found, expected = database.query(1.7, **how, client=client), database.query(1.7, **how)
    assert_close(as_json(found), as_json(expected))
    query = qkv.Database(
        address, key="height", value="income", sql=f"SELECT height, income FROM {name}"
    )
    plan = query.explain(1.7, **{**how, "where": None}, client=client)
    assert plan.notes[-1] == "1 part, read by 2 workers"
    assert query.query(1.7, **how, client=client).value == pytest.approx(expected.value, rel=1e-12)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "lazy", "duckdb"])
def test_what_cannot_be_split_is_read_here(
    kind: str, tmp_path: Path, postgres: str, client: Any
) -> None:
    source, told = stored(kind, TABLE.select(["height", "income"]), tmp_path, postgres)
    database = qkv.Database(source, key="height", value="income", **told)
    plan = database.explain(1.7, client=client)
    assert plan.notes[-1].endswith("cannot be split: one part, read by this process")
    how: dict[str, Any] = {"similarity": "gaussian"}
    assert_close(
        as_json(database.query(1.7, **how, client=client)), as_json(database.query(1.7, **how))
    )


def test_two_runs_agree_to_the_last_bit(
    folders: dict[str, Path], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = qkv.Database(folders["parquet"], key="height", value="income")
    how: dict[str, Any] = {"similarity": "gaussian", "bandwidth": 0.05, "client": client}
    first, second = (database.query([1.6, 1.8], **how) for _ in range(2))
    assert as_json(first) == as_json(second)
    monkeypatch.setattr(jobs, "_check", lambda client: 99)  # as if with many threads
    rows: list[int] = []
    third = database.query([1.6, 1.8], **how, progress=lambda done, total: rows.append(done))
    assert as_json(third) == as_json(first)
    assert rows[-1] == 601


def test_row_groups_outside_of_the_window_are_no_part(tmp_path: Path, client: Any) -> None:
    numbers = np.arange(1000.0)
    pq.write_table(pa.table({"k": numbers, "v": numbers}), tmp_path / "t.parquet",
                   row_group_size=100)  # fmt: skip
    database = qkv.Database(tmp_path / "t.parquet", key="k", value="v")
    plan = database.explain(250.0, similarity="boxcar", bandwidth=10.0, client=client)
    assert plan.row_groups_read == 1
    assert plan.notes[-1] == "1 part, read by 2 workers"
    nothing = database.query(5000.0, similarity="boxcar", bandwidth=10.0, client=client)
    assert nothing.value is None


def test_the_picture_shows_rows_of_all_parts(folders: dict[str, Path], client: Any) -> None:
    database = qkv.Database(folders["parquet"], key="height", value="income")
    how: dict[str, Any] = {"similarity": "gaussian", "bandwidth": 0.05}
    shared = database.query(1.7, **how, client=client)._picture()
    alone = database.query(1.7, **how)._picture()
    assert sorted(shared.keys) == sorted(alone.keys)


def test_progress_counts_rows(folders: dict[str, Path], client: Any) -> None:
    told: list[tuple[int, int | None]] = []
    database = qkv.Database(folders["parquet"], key="height", value="income")
    database.query(
        1.7, similarity="laplacian", client=client, bandwidth=9.0,
        progress=lambda *each: told.append(each),
    )  # fmt: skip
    assert told[-1] == (601, 601)
    told.clear()
    database = qkv.Database(folders["csv"], key="height", value="income")
    database.query(1.7, client=client, progress=lambda *each: told.append(each))
    assert told[-1] == (5, 5)  # files: nobody knows how many rows they have


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
@pytest.mark.parametrize("harm", ["gone", "other"])
def test_a_file_that_is_not_as_it_was_is_named(
    kind: str, harm: str, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = {"parquet": "parquet", "ipc": "arrow", "csv": "csv"}[kind]
    rows = TABLE.select(["height", "income"])
    write: Any = {"parquet": pq.write_table, "ipc": pa.feather.write_feather,
                  "csv": pa.csv.write_csv}[kind]  # fmt: skip
    for number in range(3):
        write(rows, tmp_path / f"{number}.{end}")
    database = qkv.Database(tmp_path, key="height", value="income")
    plain = jobs.fold

    def harmed(*words: Any, **named: Any) -> Any:
        if harm == "gone":
            (tmp_path / f"1.{end}").unlink()
        else:
            (tmp_path / f"1.{end}").write_bytes(b"rubbish")
        return plain(*words, **named)

    monkeypatch.setattr(jobs, "fold", harmed)
    expected = {"gone": "there is no file '1", "other": "file '1.*has changed"}[harm]
    with pytest.raises(ValueError, match=expected):
        database.query(1.7, client=client)


@pytest.mark.parametrize("kind", ["parquet", "ipc"])
def test_a_file_that_is_broken_inside_is_named(kind: str, tmp_path: Path, client: Any) -> None:
    rows = TABLE.select(["height", "income"])
    for number in range(5):
        path = tmp_path / f"{number}.{ENDS[kind]}"
        if kind == "parquet":
            pq.write_table(rows, path, compression="zstd")
        else:
            pa.feather.write_feather(rows, path, compression="zstd")
    broken = tmp_path / f"3.{ENDS[kind]}"
    content = broken.read_bytes()
    middle = len(content) // 3  # the beginning and the end, which say what is in it, are left
    broken.write_bytes(content[:middle] + bytes(999) + content[middle + 999 :])
    database = qkv.Database(tmp_path, key="height", value="income")
    for who in (client, None):
        with pytest.raises(ValueError, match=rf"^'{broken.name}' cannot be read: "):
            database.query(1.7, similarity="gaussian", bandwidth=0.1, client=who)


@pytest.fixture
def slow_reads(client: Any) -> Iterator[Any]:
    """Parts that take time to read: on the worker of this number, or on all of them."""

    def begin(which: int | None = None) -> None:
        workers = list(client.scheduler_info()["workers"])
        chosen = workers if which is None else workers[which : which + 1]
        client.run(_read_after, 0.15, workers=chosen)

    yield begin
    client.wait_for_workers(2, timeout=30)
    client.run(_read_after, 0.0)


def _read_after(seconds: float) -> None:
    """Let this process wait before it reads a part."""

    def late(*words: Any) -> Any:
        time.sleep(seconds)
        return aggregation.read(*words)

    parts.read = late  # type: ignore[attr-defined]


def _asked_of(folder: Path, **how: Any) -> Any:
    database = qkv.Database(folder, key="height", value=["income", "town"])
    return database.query([1.6, 1.8], similarity="gaussian", bandwidth=0.05, **how)


def test_a_worker_killed_in_mid_query_costs_nothing_but_time(
    folders: dict[str, Path], client: Any, slow_reads: Any
) -> None:
    slow_reads()
    victim = next(iter(client.run(os.getpid).values()))
    told: list[int] = []

    def kill_once(done: int, total: int | None) -> None:
        if not told:  # some parts are done, and more are not
            os.kill(victim, signal.SIGKILL)
        told.append(done)

    found = _asked_of(folders["parquet"], client=client, progress=kill_once)
    assert told[0] < told[-1] == 601
    assert_close(as_json(found), as_json(_asked_of(folders["parquet"])))
    client.wait_for_workers(2, timeout=30)
    assert victim not in client.run(os.getpid).values()


def test_a_slow_worker_changes_no_answer(
    folders: dict[str, Path], client: Any, slow_reads: Any
) -> None:
    slow_reads(1)
    found = _asked_of(folders["parquet"], client=client)
    assert_close(as_json(found), as_json(_asked_of(folders["parquet"])))


def test_ctrl_c_cancels_what_was_submitted(
    folders: dict[str, Path], client: Any, slow_reads: Any
) -> None:
    slow_reads()

    def press(done: int, total: int | None) -> None:
        signal.raise_signal(signal.SIGINT)

    # Where tests run in the background, the shell has had the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _asked_of(folders["parquet"], client=client, progress=press)
    finally:
        signal.signal(signal.SIGINT, before)

    def left() -> list[str]:
        keys = client.run_on_scheduler(lambda dask_scheduler: list(map(str, dask_scheduler.tasks)))
        return [key for key in keys if key.startswith("qkv-")]

    deadline = time.monotonic() + 20  # a task that is under way is let to end
    while (any(client.processing().values()) or left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(client.processing().values())
    assert not left()


def test_secrets_are_not_told() -> None:
    address = "postgresql://ann:s%40cret@host:5432/db?sslmode=require"
    text = f"cannot parse {address}: password 's@cret' or 's%40cret' is wrong"
    cleaned = without_secrets(text, address)
    assert "s@cret" not in cleaned
    assert "s%40cret" not in cleaned
    with pytest.raises(ValueError, match=r"^PostgreSQL refuses") as caught:
        qkv.Database("postgresql://ann:hunter2@127.0.0.1:1/db", key="k", value="v", table="t")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_in_no_plan_task_log_or_error(
    tmp_path: Path, postgres: str, client: Any
) -> None:
    from contextlib import closing

    from adbc_driver_postgresql import dbapi

    table = pa.table({"k": [1.0, 2.0], "v": [3.0, 4.0]})
    address, told = stored("postgres", table, tmp_path, f"{postgres}&password=hunter2")
    database = qkv.Database(address, key="k", value="v", **told)
    found = database._source.parts(Request(["k", "v"], whole_rows=False))
    assert found is not None
    plan = database.explain(1.0, client=client)
    assert database.query(1.0, client=client).value == 3.0
    tasks = client.run_on_scheduler(lambda dask_scheduler: str(list(dask_scheduler.transition_log)))
    assert "qkv-part-" in tasks
    asked = database._runner.prepare([{"k": 1.0}], QueryOptions(), client)
    with closing(dbapi.connect(postgres, autocommit=True)) as connection:
        connection.cursor().execute(f"DROP TABLE {told['table']}").close()
    with pytest.raises(ValueError, match="PostgreSQL refuses") as caught:
        database._runner.read(asked, None, client)  # the workers find it gone
    logs = str(client.get_worker_logs()) + str(client.get_scheduler_logs())
    assert "PostgreSQL refuses" in logs
    error = "".join(traceback.format_exception(caught.value))
    for text in (repr(found), str(plan), str(plan.to_dict()), tasks, logs, error):
        assert "hunter2" not in text


@pytest.mark.parametrize("rows", [3_000, 60_000])
@pytest.mark.parametrize("queries", [1, 100, 1000])
def test_a_part_sends_what_the_plan_says(rows: int, queries: int) -> None:
    from qkv.cluster.costs import table_costs
    from qkv.table.query_runner import QueryRunner
    from qkv.table.sources import open_source

    key = np.random.default_rng(0).normal(size=rows)
    asker = QueryRunner(open_source(pa.table({"k": key, "v": key})), ["k"], ["v"])
    asked = asker.prepare(
        [{"k": float(q)} for q in np.linspace(-1, 1, queries)],
        QueryOptions(similarity="gaussian", bandwidth=0.1, top=5),
    )
    sent = len(pickle.dumps(asker.read(asked, None)))
    expected = table_costs(rows, 2, queries=queries).result
    assert expected == pytest.approx(sent, rel=0.4)


def test_the_command_asks_a_cluster(folders: dict[str, Path], cluster: Any) -> None:
    words = ["query", str(folders["csv"]), "1.7", "--key", "height", "--value", "income",
             "--similarity", "gaussian", "--bandwidth", "0.1"]  # fmt: skip
    alone = CliRunner().invoke(app, words)
    shared = CliRunner().invoke(app, [*words, "--scheduler", cluster.scheduler_address])
    assert shared.exit_code == 0, shared.output
    assert shared.output == alone.output
