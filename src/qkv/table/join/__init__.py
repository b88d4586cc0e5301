"""The soft join: every row of one table is answered by another."""

from __future__ import annotations

from qkv.table.join.report import JoinReport as JoinReport
from qkv.table.join.soft import SoftJoin as SoftJoin
from qkv.table.join.soft import soft_join as soft_join
