"""The days that a question speaks of. Pure."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Window", "closeness", "windows"]

Doubles: TypeAlias = npt.NDArray[np.float64]

MOST = 8  # windows of a question
READ = 2000  # characters of a question
EPOCH = date(1970, 1, 1).toordinal()
YEARS = 50  # before the latest record, in which a day without a year may lie
LEAP = 2000  # stands for any year; has a 29 February
FADE = 7.0  # days around a window in which closeness falls to 0: people tell of things some days later

CALENDAR = """
january february march april may june july august september october november december
monday tuesday wednesday thursday friday saturday sunday
one two three four five six seven eight nine ten
"""
NAMES, DAYS, NUMBERS = (line.split() for line in CALENDAR.split("\n") if line)
MONTHS = {name: i for i, name in enumerate(NAMES, 1)} | {name[:3]: i for i, name in enumerate(NAMES, 1)} | {"sept": 9}

MONTH = rf"(?P<month>{'|'.join(sorted(MONTHS, key=len, reverse=True))})\b\.?"
YEAR = r"(?P<year>(?:19|20)\d\d)\b"
DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
MONTH_ALONE = rf"\b(?:in|during|since|until|last|mid|of) {MONTH}"  # else it may be no month: "may", "march"
ABSOLUTE = [
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf"\b{YEAR}-(?P<number>[01]\d)(?:-(?P<day>[0-3]\d))?\b",
        rf"\b{DAY}(?: of)? {MONTH}(?:,? {YEAR})?",
        rf"\b{MONTH} {DAY}\b(?:,? {YEAR})?",
        rf"\b{MONTH},? {YEAR}",
        MONTH_ALONE,
        rf"\b(?:in|during|since|of|year|spring|summer|autumn|fall|winter) {YEAR}",
    )
]
RELATIVE = re.compile(
    r"\b(?:(?P<near>today|tonight|yesterday|last night|this morning)"
    r"|(?P<which>last|this) (?P<unit>week|weekend|month|year)"
    rf"|(?:last|on|this) (?P<weekday>{'|'.join(DAYS)})"
    rf"|(?P<many>\d{{1,3}}|an?|{'|'.join(NUMBERS)}) (?P<units>day|week|month|year)s? ago)\b",
    re.IGNORECASE | re.ASCII,
)


# without one of these words or a year no pattern above finds anything
HINTS = frozenset([*MONTHS, *DAYS, *"today tonight yesterday night morning week weekend month year ago".split()])  # noqa: SIM905  # a text
HINT = re.compile(r"[A-Za-z]+|(?:19|20)\d\d", re.ASCII)


class Window(NamedTuple):
    """Days, the first and the last among them; yearly ones are those of every year."""

    first: date
    last: date
    yearly: bool = False


def windows(text: str, today: date) -> list[Window]:
    """The days that a text names: "7 May 2023", "May 7", "2023-05-07", "in May", "in 2023", "yesterday", "last week".

    A month or a day without its year is that of every year. Where a text names a date, words that count from today
    ("last week") are passed over: they may count from there. English only.

    Args:
        text: A question; its first 2,000 characters are read.
        today: The day of asking.

    Example:
        >>> [(str(first), str(last)) for first, last, _ in windows("Where was I in May 2023?", date(2024, 1, 1))]
        [('2023-05-01', '2023-05-31')]
        >>> windows("What may I do?", date(2024, 1, 1))
        []
    """
    text = text[:READ]
    if not any(word.lower() in HINTS or word[0] in "12" for word in HINT.findall(text)):
        return []
    found: list[Window] = []
    for pattern in ABSOLUTE:
        for match in reversed([*pattern.finditer(text)]):
            window = _absolute(match.groupdict())
            if window is not None:
                found.append(window)
                text = f"{text[: match.start()]};{text[match.end() :]}"  # what is read is not read as something else
    return (found or [_relative(match.groupdict(), today) for match in RELATIVE.finditer(text)])[:MOST]


def closeness(found: Sequence[Window], days: Doubles) -> Doubles:
    """How close days are to the nearest of some windows: 1 within one, 0 a week from it and further.

    Args:
        found: The windows.
        days: Days since 1970; `nan` is close to nothing.

    Returns:
        One number from 0 to 1 for each day.
    """
    close = np.zeros(len(days))
    known = days[~np.isnan(days)]
    if not len(known):
        return close
    latest = _year(known.max()) + 1
    years = range(max(_year(known.min()) - 1, latest - YEARS), latest + 1)
    for window in found:
        for first, last in _in_years(window, years) if window.yearly else [window[:2]]:
            away = np.maximum(_number(first) - days, days - _number(last))
            close = np.fmax(close, np.clip(1 - away / FADE, 0, 1))
    return close


def _absolute(named: Mapping[str, str | None]) -> Window | None:
    """`None` for a day that no month has."""
    month, number, day = named.get("month"), named.get("number"), named.get("day")
    year = int(named.get("year") or LEAP)
    in_year = MONTHS[month.lower()] if month else int(number or 0)
    if not in_year:
        return Window(date(year, 1, 1), date(year, 12, 31))
    if not 1 <= in_year <= 12 or not 1 <= int(day or 1) <= monthrange(year, in_year)[1]:
        return None
    first, last = _month(year, in_year)
    return Window(*((date(year, in_year, int(day)),) * 2 if day else (first, last)), yearly=not named.get("year"))


def _relative(named: Mapping[str, str | None], today: date) -> Window:
    monday = today - timedelta(today.weekday())
    near, weekday, back = named["near"], named["weekday"], 1
    if near:
        day = today - timedelta(near.lower() in ("yesterday", "last night"))
        return Window(day, day)
    if weekday:
        day = today - timedelta((today.weekday() - DAYS.index(weekday.lower()) - 1) % 7 + 1)
        return Window(day, day)
    unit = (named["unit"] or named["units"] or "").lower()
    if named["units"]:
        many = (named["many"] or "").lower()
        back = int(many) if many.isdigit() else NUMBERS.index(many) + 1 if many in NUMBERS else 1
    elif (named["which"] or "").lower() == "this":
        back = 0
    if unit == "day":
        return Window(today - timedelta(back), today - timedelta(back))
    if unit == "week":
        return Window(monday - timedelta(7 * back), monday - timedelta(7 * back - 6))
    if unit == "weekend":
        return Window(monday - timedelta(7 * back - 5), monday - timedelta(7 * back - 6))
    if unit == "year":
        return Window(date(max(today.year - back, 1), 1, 1), date(max(today.year - back, 1), 12, 31))
    months = max(12 * today.year + today.month - 1 - back, 12)
    return Window(*_month(months // 12, months % 12 + 1))


def _month(year: int, month: int) -> tuple[date, date]:
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


def _in_years(window: Window, years: Iterable[int]) -> Iterator[tuple[date, date]]:
    for year in years:
        with suppress(ValueError):  # 29 February
            last = monthrange(year, window.last.month)[1] if window.last.month == 2 else window.last.day
            yield window.first.replace(year=year), window.last.replace(year=year, day=min(last, window.last.day))


def _number(day: date) -> int:
    return day.toordinal() - EPOCH


def _year(number: float) -> int:
    return date.fromordinal(int(number) + EPOCH).year
