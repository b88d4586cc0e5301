"""The guided tour: ten steps through the rooms, each an address."""

from __future__ import annotations

STEPS: list[dict[str, str]] = []
