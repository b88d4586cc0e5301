"""How many rows a join has read, matched and skipped."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class JoinReport:
    """Counts of the rows of a join; complete after the last batch."""

    rows: int = 0  # of the left table
    matched: int = 0
    right_rows: int = 0
    passes: int = 0  # readings of the right table
    missing_left: dict[str, int] = field(default_factory=dict)  # rows without a key, by column
    missing_right: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as a dictionary that JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        skipped = [
            f"{count:,} without {name} on the {side}"
            for side, missing in (("left", self.missing_left), ("right", self.missing_right))
            for name, count in missing.items()
            if count
        ]
        ending = f"; skipped {', '.join(skipped)}" if skipped else ""
        return f"{self.matched:,} of {self.rows:,} rows matched{ending}"
