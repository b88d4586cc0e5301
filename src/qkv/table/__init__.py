"""The soft database: ask any table a soft question."""

from __future__ import annotations

from qkv.extras import need

need("pyarrow", "table")

from qkv.table.answer import Answer as Answer  # noqa: E402
from qkv.table.database import Database as Database  # noqa: E402
from qkv.table.plan import TablePlan as TablePlan  # noqa: E402
