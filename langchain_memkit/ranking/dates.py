"""Date ranges named in a question. Pure."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Doubles: TypeAlias = npt.NDArray[np.float64]

MOST = 8  # ranges of a question; further ones are ignored
READ = 2000  # characters of a question that are read
EPOCH = date(1970, 1, 1).toordinal()
YEARS = 50  # years before the latest record in which a day without a year is looked for
LEAP = 2000  # stands for any year; a leap year, so that 29 February is valid
FADE = 7.0  # days around a range in which closeness falls to 0: people often talk of things some days later

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


# Fast path: no pattern above can match a text without one of these words or a year.
HINTS = frozenset([*MONTHS, *DAYS, *"today tonight yesterday night morning week weekend month year ago".split()])  # noqa: SIM905  # a text
HINT = re.compile(r"[A-Za-z]+|(?:19|20)\d\d", re.ASCII)


class DateRange(NamedTuple):
    """A range of days, `first` and `last` included; if `yearly`, the range in every year."""

    first: date
    last: date
    yearly: bool = False


def parse_date_ranges(text: str, today: date) -> list[DateRange]:
    """Parse the date ranges that a text names: "7 May 2023", "May 7", "2023-05-07", "in May", "in 2023", "last week".

    A month or day without a year means that of every year. If a text names an absolute date, relative ones ("last
    week") are ignored, since they may be relative to that date. English only.

    Args:
        text: A question; its first 2,000 characters are read.
        today: The day of asking.

    Returns:
        At most 8 ranges.

    Example:
        >>> [
        ...     (str(first), str(last))
        ...     for first, last, _ in parse_date_ranges("Where was I in May 2023?", date(2024, 1, 1))
        ... ]
        [('2023-05-01', '2023-05-31')]
        >>> parse_date_ranges("What may I do?", date(2024, 1, 1))
        []
    """
    text = text[:READ]
    if not any(word.lower() in HINTS or word[0] in "12" for word in HINT.findall(text)):
        return []
    found: list[DateRange] = []
    for pattern in ABSOLUTE:
        for match in reversed([*pattern.finditer(text)]):
            period = _absolute(match.groupdict())
            if period is not None:
                found.append(period)
                # Cut a match out, so that a later pattern does not read "7 May 2023" again as "May 2023".
                text = f"{text[: match.start()]};{text[match.end() :]}"
    return (found or [_relative(match.groupdict(), today) for match in RELATIVE.finditer(text)])[:MOST]


def date_proximity(found: Sequence[DateRange], days: Doubles) -> Doubles:
    """Score how close days (since 1970) are to the nearest range: 1 inside it, 0 from a week away, or if `nan`."""
    close = np.zeros(len(days))
    known = days[~np.isnan(days)]
    if not len(known):
        return close
    latest = _year(known.max()) + 1
    years = range(max(_year(known.min()) - 1, latest - YEARS), latest + 1)
    for period in found:
        for first, last in _in_years(period, years) if period.yearly else [period[:2]]:
            away = np.maximum(first.toordinal() - EPOCH - days, days - (last.toordinal() - EPOCH))
            close = np.fmax(close, np.clip(1 - away / FADE, 0, 1))
    return close


def _absolute(named: Mapping[str, str | None]) -> DateRange | None:
    """Build the range of a matched date; None for a date that does not exist."""
    month, number, day = named.get("month"), named.get("number"), named.get("day")
    year = int(named.get("year") or LEAP)
    in_year = MONTHS[month.lower()] if month else int(number or 0)
    if not in_year:
        return DateRange(date(year, 1, 1), date(year, 12, 31))
    if not 1 <= in_year <= 12 or not 1 <= int(day or 1) <= monthrange(year, in_year)[1]:
        return None
    first, last = _month(year, in_year)
    return DateRange(*((date(year, in_year, int(day)),) * 2 if day else (first, last)), yearly=not named.get("year"))


def _relative(named: Mapping[str, str | None], today: date) -> DateRange:
    monday = today - timedelta(today.weekday())
    near, weekday, back = named["near"], named["weekday"], 1
    if near:
        day = today - timedelta(near.lower() in ("yesterday", "last night"))
        return DateRange(day, day)
    if weekday:
        day = today - timedelta((today.weekday() - DAYS.index(weekday.lower()) - 1) % 7 + 1)
        return DateRange(day, day)
    unit = (named["unit"] or named["units"] or "").lower()
    if named["units"]:
        many = (named["many"] or "").lower()
        back = int(many) if many.isdigit() else NUMBERS.index(many) + 1 if many in NUMBERS else 1
    elif (named["which"] or "").lower() == "this":
        back = 0
    if unit == "day":
        return DateRange(today - timedelta(back), today - timedelta(back))
    if unit == "week":
        return DateRange(monday - timedelta(7 * back), monday - timedelta(7 * back - 6))
    if unit == "weekend":
        return DateRange(monday - timedelta(7 * back - 5), monday - timedelta(7 * back - 6))
    if unit == "year":
        return DateRange(date(max(today.year - back, 1), 1, 1), date(max(today.year - back, 1), 12, 31))
    months = max(12 * today.year + today.month - 1 - back, 12)
    return DateRange(*_month(months // 12, months % 12 + 1))


def _month(year: int, month: int) -> tuple[date, date]:
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


def _in_years(period: DateRange, years: Iterable[int]) -> Iterator[tuple[date, date]]:
    for year in years:
        with suppress(ValueError):  # 29 February
            last = monthrange(year, period.last.month)[1] if period.last.month == 2 else period.last.day
            yield period.first.replace(year=year), period.last.replace(year=year, day=min(last, period.last.day))


def _year(number: float) -> int:
    return date.fromordinal(int(number) + EPOCH).year
