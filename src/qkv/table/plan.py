"""The plan of a query: what is pushed down to the source, and how many rows were read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TablePlan:
    """How a query reads a table; print it.

    `rows_read`, `rows_used` and `missing` are known only after reading. Rows that a source skipped
    are not counted as missing anything.
    """

    source: str
    columns: list[str]
    similarity: dict[str, str]  # by key column
    where: str | None
    window: str | None  # what has any weight lies in here; asked of the source where it helps
    by: list[str] = field(default_factory=list)  # columns that make groups
    weights: dict[str, str] = field(default_factory=dict)  # what rows weigh, by column
    notes: list[str] = field(default_factory=list)
    row_groups_read: int | None = None
    row_groups: int | None = None
    rows_read: int | None = None
    rows_used: int | None = None
    missing: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The plan as a dictionary that JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"query   {self.source}", f"├─ reads   {', '.join(self.columns)}"]
        lines += [
            f"├─ compares {column}: {description}"
            for column, description in self.similarity.items()
        ]
        lines += [
            f"├─ weighs  {column}: {description}" for column, description in self.weights.items()
        ]
        if self.by:
            lines.append(f"├─ groups  by {', '.join(self.by)}")
        if self.where is not None:
            lines.append(f"├─ where   {self.where}")
        if self.window is not None:
            lines.append(f"├─ window  {self.window}")
        for note in self.notes:
            lines += ["├─ " + note.replace("\n", "\n│    ")]
        lines.append(f"└─ {self._came()}")
        return "\n".join(lines)

    def _came(self) -> str:
        if self.rows_read is None:
            return "not read yet"
        missing = [f"{count:,} without {name}" for name, count in self.missing.items() if count]
        skipped = f"; skipped {', '.join(missing)}" if missing else ""
        return f"{self.rows_read:,} rows read{skipped}"
