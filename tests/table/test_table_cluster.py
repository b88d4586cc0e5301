"""Tables on a Dask cluster: the answers of one machine, whoever read what, and clear failures."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from table.stored import stored
from table.tables import people
from typer.testing import CliRunner

import qkv
from qkv.cli import app
from qkv.cluster import ClusterError, jobs
from qkv.table import aggregation, parts
from qkv.table.sources import Request, base
from qkv.table.sources.postgres import without_secrets

TABLE = people(601)
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
    """The same rows as Parquet, IPC and CSV, in files of unequal length."""
    root = tmp_path_factory.mktemp("parts")
    flat = TABLE.drop_columns(["place", "seen"])
    edges = [0, 7, 130, 131, 400, 601]
    for kind in ("parquet", "ipc", "csv"):
        (root / kind).mkdir()
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        rows = TABLE.slice(start, stop - start)
        pq.write_table(rows, root / "parquet" / f"{number}.parquet", row_group_size=31)
        pa.feather.write_feather(rows, root / "ipc" / f"{number}.arrow")
        pa.csv.write_csv(flat.slice(start, stop - start), root / "csv" / f"{number}.csv")
    return {kind: root / kind for kind in ("parquet", "ipc", "csv")}


#: Keys, value, query and how: every kind of key, value and similarity.
QUESTIONS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "equal": ("town", "income", ["Rome", "Oslo", "Nowhere"], {}),
    "gaussian": ("height", "income", 1.7, {"similarity": "gaussian", "bandwidth": 0.02}),
    "many": ("height", "income", [1.5 + place / 97 for place in range(37)],
             {"similarity": "epanechnikov", "bandwidth": 0.05}),
    "dates": ("born", "income", dt.date(1990, 5, 17),
              {"similarity": "laplacian", "bandwidth": 400.0}),
    "text": ("name", "town", ["A1", "B22"], {"similarity": "fuzzy"}),
    "several": (["age", "town"], ["income", "alive"], (40, "Kyiv"),
                {"similarity": {"age": "triangular", "town": "equal"}, "bandwidth": {"age": 9}}),
    "where": ("height", "income", 1.7,
              {"similarity": "epanechnikov", "bandwidth": 0.1,
               "where": "age > 30 and alive = true"}),
    "arrow where": ("height", "income", 1.7, {"similarity": "gaussian", "bandwidth": 0.1,
                                              "where": pc.field("age") > 33}),
    "groups": ("height", ["income", "name"], [1.6, 1.8],
               {"similarity": "gaussian", "bandwidth": 0.1, "by": "town", "top": 2}),
    "aging": ("height", "income", 1.7,
              {"similarity": "gaussian", "bandwidth": 0.1, "decay": ("born", "4y"),
               "weight": "age"}),
    "chosen": ("height", "income", 1.7, {"similarity": "gaussian"}),
    "chosen for names": ("height", "town", 1.7, {"similarity": "triangular"}),
}  # fmt: skip


def _close(found: Any, expected: Any) -> None:
    """Everything that an answer says, numbers to 1e-12."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            _close(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for own, other in zip(found, expected, strict=True):
            _close(own, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True)
    else:
        assert found == expected


def _told(answers: Any, *without: str) -> Any:
    several = answers if isinstance(answers, list) else [answers]
    return [_without(each.to_dict(), ("notes", *without)) for each in several]


def _without(told: Any, names: tuple[str, ...]) -> Any:
    if isinstance(told, dict):
        return {name: _without(each, names) for name, each in told.items() if name not in names}
    return [_without(each, names) for each in told] if isinstance(told, list) else told


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
    _close(_told(shared.query(asked, **how, client=client)), _told(alone.query(asked, **how)))


@pytest.mark.parametrize("similarity", ["dot", "cosine", "gaussian"])
def test_vectors_are_compared_on_the_workers(
    similarity: str, folders: dict[str, Path], client: Any
) -> None:
    database = qkv.Database(folders["parquet"], key="place", value="place")
    how: dict[str, Any] = {"similarity": similarity}
    if similarity == "gaussian":
        how["bandwidth"] = 0.7
    queries = [[0.1, -0.4, 1.0], [1.0, 0.0, 0.0]]
    _close(_told(database.query(queries, **how, client=client)),
           _told(database.query(queries, **how)))  # fmt: skip


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
    _close(_told(found, "source"), _told(expected, "source"))


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
    _close(_told(found), _told(expected))


@pytest.mark.parametrize("kind", ["arrow", "pandas", "duckdb"])
def test_what_cannot_be_split_is_read_here(
    kind: str, tmp_path: Path, postgres: str, client: Any
) -> None:
    source, told = stored(kind, TABLE.select(["height", "income"]), tmp_path, postgres)
    database = qkv.Database(source, key="height", value="income", **told)
    plan = database.explain(1.7, client=client)
    assert plan.notes[-1].endswith("cannot be split: one part, read by this process")
    how: dict[str, Any] = {"similarity": "gaussian"}
    _close(_told(database.query(1.7, **how, client=client)), _told(database.query(1.7, **how)))


def test_two_runs_agree_to_the_last_bit(
    folders: dict[str, Path], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = qkv.Database(folders["parquet"], key="height", value="income")
    how: dict[str, Any] = {"similarity": "gaussian", "bandwidth": 0.05, "client": client}
    first, second = (database.query([1.6, 1.8], **how) for _ in range(2))
    assert _told(first) == _told(second)
    monkeypatch.setattr(jobs, "_PLENTY", 1)  # as if there were many parts: a task takes several
    rows: list[int] = []
    third = database.query([1.6, 1.8], **how, progress=lambda done, total: rows.append(done))
    assert _told(third) == _told(first)
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
    _close(_told(found), _told(_asked_of(folders["parquet"])))
    client.wait_for_workers(2, timeout=30)
    assert victim not in client.run(os.getpid).values()


def test_a_slow_worker_changes_no_answer(
    folders: dict[str, Path], client: Any, slow_reads: Any
) -> None:
    slow_reads(1)
    found = _asked_of(folders["parquet"], client=client)
    _close(_told(found), _told(_asked_of(folders["parquet"])))


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


def _slowly(part: int, seconds: float) -> int:
    time.sleep(seconds)
    return part


def _added(left: int, right: int) -> int:
    return left + right


def _raises(part: int, shared: None) -> int:
    if part == 3:
        raise ValueError("part 3 holds nonsense")
    return part


def test_a_part_that_raises_says_so_and_stops_the_rest(client: Any) -> None:
    with pytest.raises(ValueError, match=r"^part 3 holds nonsense$"):
        jobs.fold(client, _raises, list(range(9)), None, _added)


def test_merging_goes_by_the_order_of_parts(client: Any) -> None:
    """The slow first part arrives last."""
    words = [chr(97 + place) for place in range(21)]
    assert jobs.fold(client, _late, words, None, _added) == "".join(words)


def _late(part: str, shared: None) -> str:
    time.sleep(0.3 if part == "a" else 0.0)
    return part


def test_a_cluster_without_workers_is_given_up(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 0.5)
    monkeypatch.setattr(parts, "read", parts.read)  # put back afterwards
    _read_after(0.2)  # the worker is a thread of this process
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        leaving = threading.Timer(0.4, lambda: local.scale(0))
        leaving.start()
        with pytest.raises(ClusterError, match=r"no worker is left: waited 0\.5 s"):
            _asked_of(folders["parquet"], client=client)
        leaving.join()
        with pytest.raises(ClusterError, match=r"^the Dask cluster has no workers: waited 0\.5 s"):
            jobs.fold(client, _slowly, [1], 0.0, _added)


def test_a_scheduler_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 0.5)
    with pytest.raises(ClusterError, match=r"^no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        jobs.connect("tcp://127.0.0.1:9")
    with pytest.raises(TypeError, match=r"^client must be a dask.distributed.Client; got str$"):
        jobs.fold("tcp://127.0.0.1:9", _slowly, [1], 0.0, _added)


def test_other_versions_are_said(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = client.get_versions(packages=["qkv"])
    for versions in told["workers"].values():
        versions["packages"]["qkv"] = "0.0.9"
    monkeypatch.setattr(client, "get_versions", lambda packages: told)
    with pytest.warns(RuntimeWarning, match=r"worker tcp://.* has qkv 0\.0\.9 and this process"):
        jobs.fold(client, _slowly, [1], 0.0, _added)


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


def test_parts_of_postgres_show_no_address(tmp_path: Path, postgres: str, client: Any) -> None:
    table = pa.table({"k": [1.0, 2.0], "v": [3.0, 4.0]})
    address, told = stored("postgres", table, tmp_path, f"{postgres}&password=hunter2")
    database = qkv.Database(address, key="k", value="v", **told)
    found = database._source.parts(Request(["k", "v"], whole_rows=False))
    assert found is not None
    assert "hunter2" not in repr(found)
    assert "hunter2" not in str(database.explain(1.0, client=client))
    answer = database.query(1.0, client=client)
    assert answer.value == 3.0
    keys = client.run_on_scheduler(lambda dask_scheduler: list(map(str, dask_scheduler.tasks)))
    assert not any("hunter2" in key for key in keys)


@pytest.mark.parametrize("rows", [3_000, 60_000])
@pytest.mark.parametrize("queries", [1, 100, 1000])
def test_a_part_sends_what_the_plan_says(rows: int, queries: int) -> None:
    from qkv.cluster.costs import table_costs
    from qkv.table.query_runner import QueryOptions, QueryRunner
    from qkv.table.sources import open_source

    key = np.random.default_rng(0).normal(size=rows)
    asker = QueryRunner(open_source(pa.table({"k": key, "v": key})), ["k"], ["v"])
    asked = asker.ask(
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
