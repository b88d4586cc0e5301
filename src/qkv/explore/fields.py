"""The fields of a request, validated: one sentence for each mistake."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any


class Fields:
    """The JSON object of a request.

    >>> Fields({"seed": 5}).integer("seed", 0, 0, 99)
    5
    >>> Fields({"seed": "x"}).integer("seed", 0, 0, 99)
    Traceback (most recent call last):
    ValueError: seed must be a whole number between 0 and 99; got 'x'
    """

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise ValueError(f"a question must be a JSON object; got {_short(body)}")
        self.body: dict[str, Any] = body

    def number(self, name: str, default: float, low: float, high: float) -> float:
        given = self.body.get(name, default)
        right = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not right or not low <= given <= high:  # NaN is not between
            raise ValueError(
                f"{name} must be a number between {low:g} and {high:g}; got {_short(given)}"
            )
        return float(given)

    def number_or_none(self, name: str, low: float, high: float) -> float | None:
        return None if self.body.get(name) is None else self.number(name, math.nan, low, high)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        given = self.body.get(name, default)
        right = isinstance(given, int) and not isinstance(given, bool)
        if not right or not low <= given <= high:
            raise ValueError(
                f"{name} must be a whole number between {low} and {high}; got {_short(given)}"
            )
        return int(given)

    def choice(self, name: str, default: str, choices: Collection[str]) -> str:
        given = self.body.get(name, default)
        if not isinstance(given, str) or given not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}; got {_short(given)}")
        return given

    def text(self, name: str, default: str, most: int) -> str:
        given = self.body.get(name, default)
        if not isinstance(given, str):
            raise ValueError(f"{name} must be text; got {_short(given)}")
        if len(given) > most:
            raise ValueError(f"{name} must have at most {most} characters; got {len(given):,}")
        if any(0xD800 <= ord(letter) < 0xE000 for letter in given):
            raise ValueError(f"{name} must be whole characters; got half of a pair")
        return given

    def several(self, name: str, most: int) -> list[Fields]:
        """A list of objects with fields."""
        given = self.body.get(name, [])
        if not isinstance(given, list) or len(given) > most:
            raise ValueError(f"{name} must be a list of at most {most}; got {_short(given)}")
        return [Fields(each) for each in given]


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 40 else f"{text[:39]}…"
