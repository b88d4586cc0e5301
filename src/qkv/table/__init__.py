"""The soft database: ask any table a soft question."""

from __future__ import annotations

from qkv.optional_dependencies import require

require("pyarrow", "table")

from qkv.table.answer import Answer as Answer  # noqa: E402
from qkv.table.answers import ColumnAnswers as ColumnAnswers  # noqa: E402
from qkv.table.answers import GroupAnswers as GroupAnswers  # noqa: E402
from qkv.table.curve import Curve as Curve  # noqa: E402
from qkv.table.curve import Curves as Curves  # noqa: E402
from qkv.table.database import Database as Database  # noqa: E402
from qkv.table.join import SoftJoin as SoftJoin  # noqa: E402
from qkv.table.join import soft_join as soft_join  # noqa: E402
from qkv.table.plan import TablePlan as TablePlan  # noqa: E402
