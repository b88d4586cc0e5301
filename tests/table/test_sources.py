"""Every source gives the same answer, reads no more than it must, and says what it read."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import qkv

RNG = np.random.default_rng(0)
ROWS = 5003
TABLE = pa.table(
    {
        "key": np.sort(RNG.random(ROWS)),
        "value": RNG.normal(size=ROWS),
        "label": RNG.choice(["x", "y'z", 'q"r'], ROWS),
        "number": np.arange(ROWS),
    }
)
HOW: dict[str, Any] = {"similarity": "epanechnikov", "bandwidth": 0.05}


class _Stream:
    """Something that speaks Arrow and is nothing that we know."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


def _sources(folder: Path) -> dict[str, tuple[Any, dict[str, str]]]:
    pq.write_table(TABLE, folder / "one.parquet", row_group_size=500)
    pa.csv.write_csv(TABLE, folder / "one.csv")
    (folder / "parts").mkdir(exist_ok=True)
    for part in range(3):
        pq.write_table(TABLE.slice(part * 2000, 2000), folder / "parts" / f"{part}.parquet")
    base = folder / "base.duckdb"
    with duckdb.connect(str(base)) as connection:
        connection.register("given", TABLE)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
    relation = duckdb.connect().from_arrow(TABLE)
    return {
        "pandas": (TABLE.to_pandas(), {}),
        "polars": (pl.from_arrow(TABLE), {}),
        "lazy": (pl.from_arrow(TABLE).lazy(), {}),
        "table": (TABLE, {}),
        "dataset": (ds.dataset(TABLE), {}),
        "reader": (TABLE.to_reader(max_chunksize=701), {}),
        "stream": (_Stream(), {}),
        "relation": (relation, {}),
        "parquet": (folder / "one.parquet", {}),
        "csv": (str(folder / "one.csv"), {}),
        "folder": (folder / "parts", {}),
        "duckdb table": (base, {"table": "t"}),
        "duckdb sql": (base, {"sql": "SELECT * FROM t WHERE key >= 0;"}),
    }


KINDS = ["pandas", "polars", "lazy", "table", "dataset", "reader", "stream", "relation", "parquet",
         "csv", "folder", "duckdb table", "duckdb sql"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", [None, "label != 'y''z' and number >= 1000", "expression"])
def test_every_source_gives_the_same_answer(kind: str, where: str | None, tmp_path: Path) -> None:
    source, options = _sources(tmp_path)[kind]
    condition: Any = where
    kept = TABLE
    if where == "expression":
        condition = (pc.field("number") < 4000) & (pc.field("label") == "x")
        kept = TABLE.filter(condition)
    elif where is not None:
        kept = TABLE.filter((pc.field("label") != "y'z") & (pc.field("number") >= 1000))
    answer = qkv.Database(source, key="key", value="value", **options).query(
        0.5, where=condition, **HOW
    )
    key, value = kept["key"].to_numpy(), kept["value"].to_numpy()
    weights = np.maximum(0, 1 - ((key - 0.5) / 0.05) ** 2)
    assert answer.value == pytest.approx(weights @ value / weights.sum(), rel=1e-9)
    best = np.argsort(-weights, kind="stable")[:5]
    assert [row["number"] for row in answer.rows] == kept["number"].to_numpy()[best].tolist()
    assert set(answer.rows[0]) == {"weight", "key", "value", "label", "number"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "reader"])
def test_a_source_can_be_asked_again(kind: str, tmp_path: Path) -> None:
    source, options = _sources(tmp_path)[kind]
    database = qkv.Database(source, key="key", value="value", **options)
    assert database.query(0.3, **HOW).value == database.query(0.3, **HOW).value


def test_a_reader_says_that_it_has_been_read() -> None:
    database = qkv.Database(TABLE.to_reader(), key="key", value="value")
    with pytest.raises(ValueError, match=r"^bandwidth must be given: .* can be read only once$"):
        database.query(0.3, similarity="gaussian")
    database.query([0.3, 0.4], **HOW)
    with pytest.raises(
        ValueError, match=r"\(Arrow reader\) can be read only once, and it has been"
    ):
        database.query(0.3, **HOW)


def test_a_window_skips_row_groups(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "sorted.parquet", row_group_size=100)
    database = qkv.Database(tmp_path / "sorted.parquet", key="key", value="value")
    plan = database.explain(0.5, similarity="boxcar", bandwidth=0.001)
    assert plan.row_groups == 51
    assert plan.row_groups_read is not None
    assert plan.row_groups_read <= 2
    assert f"reads {plan.row_groups_read} of 51 row groups" in str(plan)
    answer = database.query(0.5, similarity="boxcar", bandwidth=0.001)
    near = np.abs(TABLE["key"].to_numpy() - 0.5) <= 0.001
    assert answer.value == pytest.approx(TABLE["value"].to_numpy()[near].mean(), rel=1e-9)
    assert answer.plan.rows_read == 100 * plan.row_groups_read
    apart = database.explain([0.1, 0.9], similarity="boxcar", bandwidth=0.001)
    assert apart.row_groups_read is not None
    assert apart.row_groups_read <= 4
    everything = database.explain(0.5, similarity="gaussian", bandwidth=0.001)
    assert everything.row_groups_read == 51
    some = database.explain(0.5, similarity="gaussian", bandwidth=1, where="number < 250")
    assert some.row_groups_read == 3
    assert some.columns == ["key", "value"]


@pytest.mark.parametrize("type", [pa.int16(), pa.date32(), pa.timestamp("ms"), pa.float32()])
def test_windows_lose_no_row_of_any_type(type: pa.DataType, tmp_path: Path) -> None:
    days = pa.array(np.arange(0, 300), pa.int32())
    keys = days.cast(pa.date32()).cast(type) if pa.types.is_temporal(type) else days.cast(type)
    table = pa.table({"k": keys, "v": np.arange(300.0)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    width = 5 * 86400 if pa.types.is_timestamp(type) else 5
    for similarity in ("boxcar", "triangular", "equal"):
        how = (
            {"similarity": similarity}
            if similarity == "equal"
            else {"similarity": similarity, "bandwidth": width}
        )
        inside = qkv.Database(table, key="k", value="v").query(keys[150].as_py(), **how)
        pruned = qkv.Database(tmp_path / "t.parquet", key="k", value="v").query(
            keys[150].as_py(), **how
        )
        assert pruned.value == pytest.approx(inside.value, rel=1e-12)
        assert pruned.effective_rows == pytest.approx(inside.effective_rows, rel=1e-12)
        assert pruned.plan.row_groups_read is not None
        assert pruned.plan.row_groups_read <= 3


def test_duckdb_filters_and_selects(tmp_path: Path) -> None:
    base, options = _sources(tmp_path)["duckdb table"]
    plan = qkv.Database(base, key="key", value="value", **options).explain(
        0.5, **HOW, where="label = 'x'", top=0
    )
    (note,) = plan.notes
    assert "Filters" in note
    assert "number" not in note
    assert plan.columns == ["key", "value"]


HOSTILE = [
    'a"; DROP TABLE t; --',
    "it's",
    "ключ",
    "select",
    "weight",
    "x y",
    "$1",
    "{0}",
    "%s",
    "\\",
    "*",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_values_in_duckdb(name: str, tmp_path: Path) -> None:
    path = tmp_path / "base.duckdb"
    table = pa.table({name: HOSTILE, "v": np.arange(float(len(HOSTILE)))})
    quoted = '"' + name.replace('"', '""') + '"'
    with duckdb.connect(str(path)) as connection:
        connection.register("given", table)
        connection.execute(f"CREATE TABLE {quoted} AS SELECT * FROM given")
    database = qkv.Database(path, key=name, value="v", table=name)
    for number, value in enumerate(HOSTILE):
        text = value.replace("'", "''")
        assert database.query(value).value == number
        assert database.query(value, where=f"{quoted} = '{text}'").value == number
        assert database.query(value, where=f"{quoted} != '{text}'").value is None


@pytest.fixture(scope="module")
def numbers_in_postgres(postgres: str) -> str:
    from adbc_driver_postgresql import dbapi

    with closing(dbapi.connect(postgres, autocommit=True)) as connection:
        cursor = connection.cursor()
        with closing(cursor):
            cursor.execute(
                "CREATE TABLE numbers AS SELECT g / 1000.0::double precision AS key, "
                "sin(g)::double precision AS value, (g / 7.0)::numeric AS exact, "
                "date '2020-01-01' + g AS day, timestamptz '2020-01-01Z' + g * interval '1 hour' "
                "AS at, 'name ' || g AS name, g % 2 = 0 AS even, ARRAY[g, 1.0]::float8[] AS place "
                "FROM generate_series(0, 19999) g"
            )
            cursor.execute("CREATE INDEX ON numbers (key)")
            cursor.execute("ANALYZE numbers")
            cursor.adbc_ingest(
                "hostile", pa.table(dict.fromkeys(HOSTILE, HOSTILE) | {"v": np.arange(11.0)})
            )
    return postgres


def test_postgres_gives_the_same_answer_by_its_index(numbers_in_postgres: str) -> None:
    database = qkv.Database(numbers_in_postgres, key="key", value="value", table="numbers")
    answer = database.query(5.0, similarity="boxcar", bandwidth=0.01, where="even = true")
    inside = np.arange(4990, 5011, 2)
    assert answer.value == pytest.approx(np.sin(inside).mean(), rel=1e-9)
    asked, planned = answer.plan.notes
    assert "Index" in planned
    assert "4.99" not in asked
    assert "current_setting" in asked
    assert answer.plan.rows_read == len(inside)
    assert answer.rows[0]["name"].startswith("name 49")
    narrow = database.query(5.0, similarity="gaussian", bandwidth=0.5, top=0)
    assert narrow.plan.columns == ["key", "value"]
    g = np.arange(20000)
    weights = np.exp(-0.5 * ((g / 1000 - 5) / 0.5) ** 2)
    assert narrow.value == pytest.approx(weights @ np.sin(g) / weights.sum(), rel=1e-9)


def test_postgres_types(numbers_in_postgres: str) -> None:
    import datetime as dt

    sql = "SELECT * FROM numbers;"
    exact = qkv.Database(numbers_in_postgres, key="exact", value="key", sql=sql)
    assert exact.query(100.0, similarity="boxcar", bandwidth=0.01).value == 0.7
    day = qkv.Database(numbers_in_postgres, key="day", value="key", sql=sql)
    assert day.query(dt.date(2020, 1, 8), similarity="triangular", bandwidth=1).value == 0.007
    at = qkv.Database(numbers_in_postgres, key="at", value="name", sql=sql)
    moment = dt.datetime(2020, 1, 1, 9, tzinfo=dt.UTC)
    assert at.query(moment).value == "name 9"
    assert at.query(moment, where="at >= '2020-01-02T00:00:00+00:00'").value is None
    place = qkv.Database(numbers_in_postgres, key="place", value="key", sql=sql)
    assert place.query([3, 1], similarity="gaussian", bandwidth=0.1).value == pytest.approx(0.003)


BIG = 2**60


@pytest.fixture(scope="module")
def decimals_in_postgres(postgres: str) -> str:
    from adbc_driver_postgresql import dbapi

    rows = ", ".join(f"({BIG + 7 * g}, {BIG + 7 * g}.5, {g}.25, {g})" for g in range(-9, 10))
    with (
        closing(dbapi.connect(postgres, autocommit=True)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        cursor.execute(
            "CREATE TABLE decimals (id numeric(20), free numeric, price numeric(9, 2), g int)"
        )
        cursor.execute(f"INSERT INTO decimals VALUES {rows}")
        cursor.execute("INSERT INTO decimals VALUES (NULL, 'NaN', 5, 5)")
        cursor.execute("CREATE TABLE endless AS SELECT 'Infinity'::numeric AS k, 1 AS v")
    return postgres


@pytest.mark.parametrize(("key", "shift"), [("id", 0), ("free", Decimal("0.5"))])
@pytest.mark.parametrize("how", ["table", "sql"])
@pytest.mark.parametrize("indexed", [False, True])
def test_numerics_of_postgres_keep_their_digits(
    key: str, shift: Any, how: str, indexed: bool, decimals_in_postgres: str
) -> None:
    asked = {"table": "decimals"} if how == "table" else {"sql": "SELECT * FROM decimals -- all"}
    database = qkv.Database(decimals_in_postgres, key=key, value="g", **asked)
    database = database.indexed() if indexed else database
    near = database.query(BIG + shift, similarity="boxcar", bandwidth=20)
    assert sorted(row["g"] for row in near.rows) == [-2, -1, 0, 1, 2]
    assert near.effective_rows == 5  # all would weigh if keys were rounded to float64
    assert database.query(BIG + 21 + shift).value == 3
    assert database.query(BIG + 22 + shift).value is None
    wide = database.query(BIG + shift, similarity="gaussian", bandwidth=7)
    weights = np.exp(-0.5 * np.arange(-9, 10.0) ** 2)
    assert wide.effective_rows == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-12)
    assert wide.plan.missing == {key: 1, "g": 0}


def test_numerics_of_postgres_as_values_and_in_where(decimals_in_postgres: str) -> None:
    prices = qkv.Database(decimals_in_postgres, key="g", value="price", table="decimals")
    assert prices.schema.field("price").type == pa.decimal128(9, 2)
    assert prices.query(3).value == 3.25
    assert prices.query(3, where="price > 3.25").value is None
    assert prices.query(3, where=f"id = {BIG + 21} and free > 0").value == 3.25
    assert prices.query(5, top=2).rows[-1]["price"] == Decimal("5.00")
    endless = qkv.Database(decimals_in_postgres, key="k", value="v", table="endless")
    with pytest.raises(ValueError, match=r"column 'k' holds a number that decimal256.*::double"):
        endless.query(1.0, similarity="gaussian", bandwidth=1.0)
    infinite = "SELECT k::double precision, v FROM endless"
    endless = qkv.Database(decimals_in_postgres, key="k", value="v", sql=infinite)
    assert endless.query(1.0, similarity="boxcar", bandwidth=1.0).value is None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_values_in_postgres(name: str, numbers_in_postgres: str) -> None:
    database = qkv.Database(numbers_in_postgres, key=name, value="v", table="hostile")
    quoted = '"' + name.replace('"', '""') + '"'
    for number, value in enumerate(HOSTILE):
        text = value.replace("'", "''")
        answer = database.query(value, where=f"{quoted} = '{text}'")
        assert answer.value == number


def test_an_adbc_cursor_can_be_read_once(numbers_in_postgres: str) -> None:
    from adbc_driver_postgresql import dbapi

    with (
        closing(dbapi.connect(numbers_in_postgres)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        cursor.execute("SELECT key, value FROM numbers")
        database = qkv.Database(cursor, key="key", value="value")
        assert database.query(5.0).value == pytest.approx(np.sin(5000))
        with pytest.raises(ValueError, match="can be read only once, and it has been"):
            database.query(5.0)


def test_postgres_refusals_are_one_sentence(numbers_in_postgres: str) -> None:
    with pytest.raises(ValueError, match=r"PostgreSQL refuses: .*nowhere"):
        qkv.Database(numbers_in_postgres, key="key", value="value", table="nowhere")
    with pytest.raises(ValueError, match="either table= or sql="):
        qkv.Database(numbers_in_postgres, key="key", value="value")
