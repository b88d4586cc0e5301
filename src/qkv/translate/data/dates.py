"""Dates as people write them, in many languages, to ISO dates: a task with exact answers.

Texts are made by Babel from Unicode's Common Locale Data Repository, without end. Every format
has a four-digit year, and no two of them give one text for two dates.
"""

from __future__ import annotations

import datetime
import random

from qkv.optional_dependencies import require
from qkv.translate.data.text import Corpus, Pair, SkippedLines, normalized

LOCALES = [
    "en", "de", "fr", "es", "it", "pt", "nl", "sv", "pl", "tr", "fi", "cs", "ru", "el", "ja",
]  # fmt: skip

#: Babel's names of patterns, and one skeleton: with the day of the week, abbreviated.
FORMATS = ["full", "long", "medium", "yMMMEd"]

_FIRST, _LAST = datetime.date(1900, 1, 1).toordinal(), datetime.date(2099, 12, 31).toordinal()

#: Every so many days one is held out: no text of that day, in any language, is trained on.
_HELD_OUT = 10


def written(day: datetime.date, locale: str, form: str) -> str:
    """A date as it is written in a language.

    >>> written(datetime.date(2024, 3, 14), "de", "full")
    'Donnerstag, 14. März 2024'
    """
    dates = require("babel.dates", "translate")
    if form in ("full", "long", "medium"):
        return normalized(dates.format_date(day, form, locale=locale))
    return normalized(dates.format_skeleton(form, day, locale=locale))


def pairs(count: int, seed: int, held_out: bool = False) -> Corpus:
    """Random dates in random languages and formats, and what they are in ISO's."""
    draw = random.Random(seed)
    drawn: list[Pair] = []
    while len(drawn) < count:
        ordinal = draw.randint(_FIRST, _LAST)
        if (ordinal % _HELD_OUT == 0) is not held_out:
            continue
        day = datetime.date.fromordinal(ordinal)
        text = written(day, draw.choice(LOCALES), draw.choice(FORMATS))
        drawn.append(Pair(text, day.isoformat()))
    return Corpus(drawn, list(range(1, count + 1)), SkippedLines())
