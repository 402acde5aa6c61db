"""Date ranges named in a question. Pure."""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

import numpy as np

from langchain_memkit.ranking.bm25 import Doubles
from langchain_memkit.ranking.tokenize import ACCENTS, FUNCTION_WORDS, STOP_WORDS, WORDS

MOST = 8  # ranges of a question; further ones are ignored
READ = 2000  # characters of a question that are read
EPOCH = date(1970, 1, 1).toordinal()
YEARS = 50  # years before the latest record in which a day without a year is looked for
LEAP = 2000  # stands for any year; a leap year, so that 29 February is valid
SECONDS = 86_400  # of a day
FADE = 7.0  # days around a range in which closeness falls to 0: people often talk of things some days later

CALENDAR = WORDS["calendar"]
NAMES, DAYS, NUMBERS = (words.split() for words in CALENDAR["english"].values())
MONTHS = {name: i for i, name in enumerate(NAMES, 1)} | {name[:3]: i for i, name in enumerate(NAMES, 1)} | {"sept": 9}


def _translations(words: Mapping[str, str]) -> dict[str, str]:
    names = f"{words['months']} {words['days']} {words['numbers']}".split()
    found = dict(zip(names, [*NAMES, *DAYS, *NUMBERS[1:]], strict=True))
    return found | dict(pair.replace("_", " ").split("=") for pair in words["others"].split())


TRANSLATIONS = {language: _translations(words) for language, words in CALENDAR.items() if language != "english"}
WORD = re.compile(r"[a-z]+", re.IGNORECASE | re.ASCII)
UNIT = "day|week|weekend|month|year"
MANY = {name: i for i, name in enumerate(NUMBERS, 1)} | {"couple of": 2, "few": 3}
SLASHED = re.compile(r"\b([0-3]?\d)([/.])([0-3]?\d)[/.]((?:19|20)\d\d)\b", re.ASCII)

NAMED = "|".join(sorted(MONTHS, key=len, reverse=True))
VERBS = "may (?:I|be|have|not|also|need|never)|march (?:against|forward|home|into|off|past|through|together)"
MONTH = rf"(?P<month>(?!(?-i:{VERBS})\b)(?:{NAMED}))\b\.?"
YEAR = r"(?P<year>(?:19|20)\d\d)\b"
DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th|er|\.)?"
OF_YEAR = rf"(?:(?:,| of| in)? {YEAR})?"
PERIOD = rf"(?:the year )?(?:{MONTH}{OF_YEAR}|(?P<only>(?:19|20)\d\d)\b)"
NTH = ("early beginning first", "mid middle second", "late end third", "fourth")
PLACES = {word: i for i, words in enumerate(NTH) for word in words.split()}
OPEN = "before|after|since"
# "Just after 7 May" and "the week before 7 May" mean days near that one.
NEAR = ("day", "night", "week", "weekend", "month", "year", "shortly", "soon", "just", "right")
# Else it may be no month: "may", "march".
MONTH_ALONE = rf"\b(?:in|during|until|last|of|{OPEN}) {MONTH}"
# Groups of one pattern have one name each, and the first group is never empty: where the date begins.
ABSOLUTE = [
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf"\b{YEAR}-(?P<number>[01]\d)(?:-(?P<day>[0-3]\d))?\b",
        rf"\b(?:between|from) (?P<begin>{NAMED}) (?:and|to|until) {MONTH}{OF_YEAR}",
        rf"\b(?P<nth>early|mid|late|(?:beginning|middle|end)(?= of))(?: of)?(?: |-){PERIOD}",
        rf"\b(?P<nth>first|second|third|fourth|last) (?P<piece>week(?:end)?|half|(?:few )?days) (?:of|in) {PERIOD}",
        rf"\b{DAY}(?: of)? {MONTH}{OF_YEAR}",
        rf"\b{MONTH} {DAY}\b(?:,? {YEAR})?",
        rf"\b{MONTH}(?:,| of| in)? {YEAR}",
        MONTH_ALONE,
        rf"\b(?:in|during|of|year|spring|summer|autumn|fall|winter|{OPEN}) {YEAR}",
    )
]
RELATIVE = re.compile(
    r"\b(?:(?P<near>today|tonight|yesterday|last night|this morning)"
    r"|(?P<which>last|this) (?P<unit>week|weekend|month|year)"
    rf"|(?:last |on |this |(?<=since ))(?P<weekday>{'|'.join(DAYS)})"
    rf"|(?P<over>last |past )?(?:(?P<many>\d{{1,3}}|an?|couple of|few|{'|'.join(NUMBERS)}) |(?<=past ))"
    rf"(?P<units>{UNIT})s?(?(over)| ago))\b",
    re.IGNORECASE | re.ASCII,
)

FEASTS = {
    r"\bnew year'?s eve\b": "31 december",
    r"\bnew year'?s day\b": "1 january",
    r"\bchristmas eve\b": "24 december",
    # Not "for Christmas": what is wished for is spoken of long before.
    r"\bchristmas(?: day\b|(?= (?:of |in )?20\d\d\b))": "25 december",
    r"(?<=\b(?:over|last|this) )christmas\b|(?<=\b(?:on|at) )christmas\b": "25 december",
}

# Fast path: no pattern above can match a text without one of these words or a year.
HINT_WORDS = "today tonight yesterday night morning week weekend month year ago past last christmas"
ENGLISH = HINTS = frozenset([*HINT_WORDS.split(), *MONTHS, *DAYS])
HINTS |= {word for table in TRANSLATIONS.values() for word, name in table.items() if name.split()[-1] in HINTS} - {"a"}
KNOWN = {"english": STOP_WORDS | ENGLISH}
KNOWN |= {language: FUNCTION_WORDS[language].union(table) for language, table in TRANSLATIONS.items()}
HINT = re.compile(r"[A-Za-z]+|(?:19|20)\d\d", re.ASCII)


class DateRange(NamedTuple):
    """A range of days, `first` and `last` included; if `yearly`, the range in every year."""

    first: date
    last: date
    yearly: bool = False


def parse_date_ranges(text: str, today: date) -> Sequence[DateRange]:
    """Parse the date ranges that a text names: "7 May 2023", "May 7", "2023-05-07", "in May", "in 2023", "last week".

    A month or day without a year means that of every year, after "before", "after" and "since" the latest one; these
    three make ranges that end with the date, or begin with it, and have no other end. "Early 2023" and "late May" are
    thirds, "the first week of May" begins with 1 May. If a text names an absolute date, relative ones ("last week",
    "the past two months") are ignored, since they may be relative to that date. Of holidays, those of the end of
    December and New Year's Day are known. English, German ("im März 2024", "letzte Woche"), French ("le 3 mai", "hier")
    and Spanish ("en abril", "la semana pasada"). 3/5/2023 is 5 March in an English text, 3 May in others; 3.5.2023 and
    25/5/2023 begin with the day in each.

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
        >>> str(parse_date_ranges("What have I read since May?", date(2024, 1, 1))[0].first)
        '2023-05-01'
        >>> parse_date_ranges("What may I do?", date(2024, 1, 1))
        []
    """
    text = text[:READ]
    if not text.isascii():
        text = ACCENTS.sub("", unicodedata.normalize("NFD", text)).replace("\u2019", "'")
    if not any(word.lower() in HINTS or word[0] in "12" for word in HINT.findall(text)):
        return []
    text = _in_english(text)
    for feast, day in FEASTS.items():
        text = re.sub(feast, day, text, flags=re.IGNORECASE)
    found: list[DateRange] = []
    for pattern in ABSOLUTE:
        for match in reversed([*pattern.finditer(text)]):
            period = _absolute(match.groupdict())
            if period is not None:
                found.append(_opened(period, text[: match.start(1)], today))
                # Cut a match out, so that a later pattern does not read "7 May 2023" again as "May 2023".
                text = f"{text[: match.start()]};{text[match.end() :]}"
    if not found:
        found = [_opened(_relative(m.groupdict(), today), text[: m.start()], today) for m in RELATIVE.finditer(text)]
    return found[:MOST]


def date_proximity(found: Sequence[DateRange], times: Doubles, zone: tzinfo) -> Doubles:
    """Score how close times are to the nearest range: 1 inside it, 0 from a week away, or if `nan`.

    Args:
        found: The ranges.
        times: Seconds since 1970, UTC.
        zone: The zone in which the days of the ranges are meant. They are turned into times, since a zone has no fixed
            offset by which all times could be turned into days.
    """
    close = np.zeros(len(times))
    known = times[~np.isnan(times)]
    if not len(known):
        return close
    latest = _year(known.max()) + 1
    years = range(max(_year(known.min()) - 1, latest - YEARS), latest + 1)
    for period in found:
        for first, last in _in_years(period, years) if period.yearly else [period[:2]]:
            begin, end = _midnight(first, zone), _midnight(last, zone, days=1)
            away = np.maximum(np.ceil((begin - times) / SECONDS), np.floor((times - end) / SECONDS) + 1)
            close = np.fmax(close, np.clip(1 - away / FADE, 0, 1))
    return close


def _midnight(day: date, zone: tzinfo, days: int = 0) -> float:
    """Return when a day begins in a zone, or the day that is `days` later; the calendar's ends are infinitely far."""
    if day in (date.min, date.max):
        return np.inf if day == date.max else -np.inf
    # Where the clock skips midnight, and where it shows it twice, this is the day's first moment.
    return datetime.combine(day + timedelta(days), time(), zone).timestamp()


def _in_english(text: str) -> str:
    """Translate the calendar words of a text in another language, and 3/5/2023 to 2023-03-05."""
    words = WORD.findall(text.lower())
    language = max(KNOWN, key=lambda name: sum(map(KNOWN[name].__contains__, words)))
    table = TRANSLATIONS.get(language)
    if table:
        text = WORD.sub(lambda match: table.get(match[0].lower(), match[0]), text)
        text = re.sub("fin of week|week-end", "weekend", text)
        text = re.sub(rf"\b({UNIT}|{'|'.join(DAYS)}) last\b", r"last \1", text)
        text = re.sub(rf"\bago (\w+) ({UNIT})\b", r"\1 \2 ago", text)

    def iso(match: re.Match[str]) -> str:
        first, sign, second, year = match.groups()
        day, month = (first, second) if table or sign == "." or int(first) > 12 else (second, first)
        return f"{year}-{month:0>2}-{day:0>2}"

    return SLASHED.sub(iso, text)


def _absolute(named: Mapping[str, str | None]) -> DateRange | None:
    """Build the range of a matched date; None for a date that does not exist."""
    get = {name: value.lower() for name, value in named.items() if value}
    year, day = int(get.get("year") or get.get("only") or LEAP), int(get.get("day", 0))
    month = MONTHS[get["month"]] if "month" in get else int(get.get("number", 0))
    first, last = _month(year, month) if 1 <= month <= 12 else (date(year, 1, 1), date(year, 12, 31))
    if (month == 0 and "number" in get) or month > 12 or day > last.day or get.get("day") in ("0", "00"):
        return None
    if day:
        first = last = date(year, month, day)
    elif "begin" in get:
        first = date(year, MONTHS[get["begin"]], 1)
    elif "nth" in get:
        days = {"half": ((last - first).days + 1) // 2, "": 10 if month else 122}  # "": a third of it
        size = timedelta(days.get(get.get("piece", ""), 7))
        first = last - size + timedelta(1) if get["nth"] == "last" else first + size * PLACES[get["nth"]]
        last = last if get["nth"] in ("late", "end") else min(last, first + size - timedelta(1))
    return DateRange(first, last, yearly=not get.keys() & {"year", "only"}) if first <= last else None


def _opened(period: DateRange, lead: str, today: date) -> DateRange:
    """Extend a range to all days before or after it if the words that lead to it say so: "since", "before"."""
    word, sign = ["", "", *(word for word in lead[-40:].lower().split() if word not in ("the", "of"))][-2:]
    if sign not in OPEN.split("|") or word.rstrip("s").endswith(NEAR):
        return period
    if period.yearly:  # the latest one that has begun
        years = range(today.year, today.year - 9, -1)  # enough for 29 February
        period = next(DateRange(*days) for days in _in_years(period, years) if days[0] <= today)
    if sign == "before":
        return DateRange(date.min, period.first - timedelta(1))
    return DateRange(period.first if sign == "since" else period.last + timedelta(1), date.max)


def _relative(named: Mapping[str, str | None], today: date) -> DateRange:
    monday = today - timedelta(today.weekday())
    get = {name: value.lower() for name, value in named.items() if value}
    if "near" in get:
        first = last = today - timedelta(get["near"] in ("yesterday", "last night"))
    elif "weekday" in get:
        first = last = today - timedelta((today.weekday() - DAYS.index(get["weekday"]) - 1) % 7 + 1)
    else:
        unit, many = get.get("unit") or get["units"], get.get("many", "")
        back = int(many) if many.isdigit() else MANY.get(many, 0 if get.get("which") == "this" else 1)
        if unit == "day":
            first = last = today - timedelta(back)
        elif unit in ("week", "weekend"):
            last = monday - timedelta(7 * back - 6)
            first = last - timedelta(6 if unit == "week" else 1)
        elif unit == "year":
            first, last = (date(max(today.year - back, 1), *day) for day in ((1, 1), (12, 31)))
        else:
            months = max(12 * today.year + today.month - 1 - back, 12)
            first, last = _month(months // 12, months % 12 + 1)
    return DateRange(first, today if "over" in get else last)


def _month(year: int, month: int) -> tuple[date, date]:
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


def _in_years(period: DateRange, years: Iterable[int]) -> Iterator[tuple[date, date]]:
    for year in years:
        with suppress(ValueError):  # 29 February
            last = monthrange(year, period.last.month)[1] if period.last.month == 2 else period.last.day
            yield period.first.replace(year=year), period.last.replace(year=year, day=min(last, period.last.day))


def _year(moment: float) -> int:
    return date.fromordinal(int(moment // SECONDS) + EPOCH).year
