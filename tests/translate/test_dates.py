"""The dates: checkable, unambiguous, and the held-out days are held out."""

from __future__ import annotations

import datetime
import re

from qkv.translate.data import dates


def test_a_text_means_one_day() -> None:
    """All texts of every 11th day, from which each other could differ in day, month or year."""
    meant: dict[str, datetime.date] = {}
    first = datetime.date(1999, 1, 1).toordinal()
    for ordinal in range(first, first + 3 * 365, 11):
        day = datetime.date.fromordinal(ordinal)
        for locale in dates.LOCALES:
            for form in dates.FORMATS:
                text = dates.written(day, locale, form)
                assert meant.setdefault(text, day) == day
                assert str(day.year) in text


def test_numbers_are_read_day_first_wherever_the_month_is_one_too() -> None:
    """Else 3.4. and 4.3. could be one text for two days."""
    day = datetime.date(2024, 3, 4)
    numeric = set()
    for locale in dates.LOCALES:
        for form in dates.FORMATS:
            text = dates.written(day, locale, form)
            numbers = tuple(map(int, re.findall(r"\d+", text)))
            if len(numbers) == 3:
                numeric.add(numbers)
    assert numeric == {(4, 3, 2024), (2024, 3, 4)}


def test_there_are_fifteen_languages() -> None:
    assert len(set(dates.LOCALES)) == 15


def test_held_out_days_are_in_no_training_text() -> None:
    training = {pair.target for pair in dates.pairs(3000, seed=1).pairs}
    valid = {pair.target for pair in dates.pairs(1000, seed=2, held_out=True).pairs}
    assert not training & valid
    assert dates.pairs(50, seed=1) == dates.pairs(50, seed=1)
    for pair in dates.pairs(200, seed=9).pairs:
        assert datetime.date.fromisoformat(pair.target).strftime("%Y") in pair.source
