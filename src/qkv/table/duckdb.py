"""Soft means in DuckDB's own SQL: macros made of its built-in aggregates.

>>> import duckdb, qkv.table.duckdb
>>> connection = duckdb.connect()
>>> qkv.table.duckdb.register(connection)
>>> connection.execute('''
...     SELECT soft_mean(v, k, 2.0, 'boxcar', 1.0) FROM (VALUES (1, 10), (2, 30), (9, 0)) AS t(k, v)
... ''').fetchone()
(20.0,)

Sums are Kahan's, so that values far from 0 keep their digits. A sum in SQL cannot be shifted by its
largest weight; where all weights would vanish, the nearest rows are weighed among themselves.
"""

from __future__ import annotations

from typing import Any

#: Weights below e to this are lost beside others; where all are, only the nearest rows count.
_FAR = -600.0
#: So many rows are kept for that. It is an error, not a guess, if more of them count.
_NEAREST = 256

_KERNELS = "'gaussian', 'laplacian', 'boxcar', 'triangular', 'epanechnikov', 'equal'"

#: A key less a query, by their type. Distances count as in Database: in days between dates, in
#: seconds between other times, and by exact differences of integers.
_DIFFERENCES = {
    "DOUBLE": "CASE WHEN isnan(key) THEN NULL ELSE key - query END",
    "BIGINT": "(key::HUGEINT - query::HUGEINT)::DOUBLE",
    "DATE": "(key - query)::DOUBLE",
    "TIMESTAMP": "(epoch_us(key) - epoch_us(query)) / 1e6",
    "TIMESTAMPTZ": "(epoch_us(key) - epoch_us(query)) / 1e6",
}

#: In the order in which they refer to each other.
_MACROS = [
    """_qkv_width(h) AS CASE WHEN h > 0 AND isfinite(h::DOUBLE) THEN h::DOUBLE
        ELSE error('bandwidth must be positive and finite; got ' || h) END""",
    # The logarithm of a weight; NULL for none. Where squares overflow, distance alone ranks.
    f"""_qkv_log(u, kernel) AS CASE kernel
        WHEN 'gaussian' THEN CASE WHEN abs(u) < 1e150 THEN -0.5 * u * u
            ELSE -1e301 * (1 + 2e-4 * ln(least(abs(u), 1e308))) END
        WHEN 'laplacian' THEN -abs(u)
        WHEN 'boxcar' THEN CASE WHEN abs(u) <= 1 THEN 0.0::DOUBLE END
        WHEN 'triangular' THEN CASE WHEN abs(u) < 1 THEN ln(1 - abs(u)) END
        WHEN 'epanechnikov' THEN CASE WHEN abs(u) < 1 THEN ln(1 - u * u) END
        WHEN 'equal' THEN CASE WHEN u = 0 THEN 0.0::DOUBLE END
        ELSE error('kernel must be one of ' || [{_KERNELS}]::VARCHAR || '; got ' || kernel) END""",
    f"""_qkv_sums(value, log) AS struct_pack(
        peak := max(log) FILTER (value IS NOT NULL),
        total := fsum(exp(log)) FILTER (value IS NOT NULL),
        squared := fsum(exp(2 * log)) FILTER (value IS NOT NULL),
        first := fsum(exp(log) * value),
        nearest := arg_max(struct_pack(value := value, log := log), log, {_NEAREST})
            FILTER (value IS NOT NULL AND log < {_FAR} / 2))""",
    # Weights beside the nearest row's, for rows that are all far away.
    f"""_qkv_far(s) AS CASE
        WHEN len(s.nearest) = {_NEAREST} AND s.nearest[-1].log > s.peak - 60
            THEN error('the query lies so far from all keys that its weights vanish, and more than '
                || '{_NEAREST} rows are about as near as the nearest; ask qkv.Database')
        ELSE list_transform(s.nearest, lambda row:
            struct_pack(weight := exp(row.log - s.peak), value := row.value)) END""",
    f"""_qkv_mean(s) AS CASE WHEN s.peak >= {_FAR} THEN s.first / s.total
        ELSE list_sum(list_transform(_qkv_far(s), lambda row: row.weight * row.value))
            / list_sum(list_transform(_qkv_far(s), lambda row: row.weight)) END""",
    f"""_qkv_rows(s) AS CASE WHEN s.peak IS NULL THEN 0.0
        WHEN s.peak >= {_FAR} / 2 THEN s.total * s.total / s.squared
        ELSE pow(list_sum(list_transform(_qkv_far(s), lambda row: row.weight)), 2)
            / list_sum(list_transform(_qkv_far(s), lambda row: pow(row.weight, 2))) END""",
    """_qkv_number(value) AS CASE WHEN isnan(value::DOUBLE) THEN NULL ELSE value::DOUBLE END""",
]


def _aggregate(name: str, summary: str) -> str:
    """An aggregate for keys that must be equal, and for keys of each type that kernels know."""
    number, same = "_qkv_number(value)", "CASE WHEN key = query THEN 0.0::DOUBLE END"
    forms = [f"(value, key, query) AS {summary}(_qkv_sums({number}, {same}))"]
    for type, difference in _DIFFERENCES.items():
        log = f"_qkv_log(({difference}) / _qkv_width(bandwidth), kernel)"
        forms.append(
            f"(value, key {type}, query {type}, kernel, bandwidth) AS "
            f"{summary}(_qkv_sums({number}, {log}))"
        )
    return f"{name} {', '.join(forms)}"


def register(connection: Any) -> None:
    """Register two aggregates on a DuckDB connection, equal to those of :class:`qkv.Database`.

    - ``soft_mean(value, key, query, kernel, bandwidth)``: the weighted mean of numbers, NULL where
      no row has weight; ``soft_mean(value, key, query)`` where keys must be equal.
    - ``soft_rows(…)``, of the same arguments: the effective rows.

    Kernels are ``'gaussian'``, ``'laplacian'``, ``'boxcar'``, ``'triangular'``,
    ``'epanechnikov'`` and ``'equal'``. They belong to this connection, and are not stored.
    """
    aggregates = [_aggregate("soft_mean", "_qkv_mean"), _aggregate("soft_rows", "_qkv_rows")]
    for macro in [*_MACROS, *aggregates]:
        connection.execute(f"CREATE OR REPLACE TEMPORARY MACRO {macro}")
