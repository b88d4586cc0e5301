"""What became of the rows of a join."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class JoinReport:
    """What became of the rows; complete when the last batch has come."""

    rows: int = 0  # of the left table
    matched: int = 0
    right_rows: int = 0
    passes: int = 0  # readings of the right table
    missing_left: dict[str, int] = field(default_factory=dict)  # rows without a key, by column
    missing_right: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        lacking = [
            f"{count:,} without {name} on the {side}"
            for side, missing in (("left", self.missing_left), ("right", self.missing_right))
            for name, count in missing.items()
            if count
        ]
        skipped = f"; skipped {', '.join(lacking)}" if lacking else ""
        return f"{self.matched:,} of {self.rows:,} rows matched{skipped}"
