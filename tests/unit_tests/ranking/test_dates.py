"""The days that a question names."""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.ranking.dates import MOST, DateRange, date_proximity, parse_date_ranges

TODAY = date(2024, 5, 15)  # a Wednesday


def days(*found: str) -> np.ndarray:
    """Noon of each day, in seconds since 1970."""
    return np.array([datetime.fromisoformat(f"{day}T12:00+00:00").timestamp() for day in found])


def told(text: str) -> list[str]:
    """Windows as text: first..last, with a star where they are of every year."""
    return [f"{first}..{last}{'*' * yearly}" for first, last, yearly in parse_date_ranges(text, TODAY)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What happened on 7 May 2023?", ["2023-05-07..2023-05-07"]),
        ("What happened on May 7th, 2023?", ["2023-05-07..2023-05-07"]),
        ("the 7th of may, 2023", ["2023-05-07..2023-05-07"]),
        ("on 7 May", ["2000-05-07..2000-05-07*"]),
        ("on Sept. 3", ["2000-09-03..2000-09-03*"]),
        ("2023-05-07", ["2023-05-07..2023-05-07"]),
        ("2023-05", ["2023-05-01..2023-05-31"]),
        ("in May 2023", ["2023-05-01..2023-05-31"]),
        ("in february", ["2000-02-01..2000-02-29*"]),
        ("in 2023", ["2023-01-01..2023-12-31"]),
        ("the summer 2021", ["2021-01-01..2021-12-31"]),
        ("from March 2023 to 3 April 2023", ["2023-04-03..2023-04-03", "2023-03-01..2023-03-31"]),
        ("yesterday", ["2024-05-14..2024-05-14"]),
        ("Today", ["2024-05-15..2024-05-15"]),
        ("last week", ["2024-05-06..2024-05-12"]),
        ("this week", ["2024-05-13..2024-05-19"]),
        ("last weekend", ["2024-05-11..2024-05-12"]),
        ("last month", ["2024-04-01..2024-04-30"]),
        ("last year", ["2023-01-01..2023-12-31"]),
        ("this year", ["2024-01-01..2024-12-31"]),
        ("last Wednesday", ["2024-05-08..2024-05-08"]),
        ("on monday", ["2024-05-13..2024-05-13"]),
        ("three days ago", ["2024-05-12..2024-05-12"]),
        ("2 weeks ago", ["2024-04-29..2024-05-05"]),
        ("5 months ago", ["2023-12-01..2023-12-31"]),
        ("a year ago", ["2023-01-01..2023-12-31"]),
        ("the weekend before 10 April 2023, not last week", ["2023-04-10..2023-04-10"]),
        ("in early June", ["2000-06-01..2000-06-10*"]),
        ("mid-June 2023", ["2023-06-11..2023-06-20"]),
        ("at the end of February 2023", ["2023-02-21..2023-02-28"]),
        ("between May and July 2023", ["2023-05-01..2023-07-31"]),
        ("two weekends ago", ["2024-05-04..2024-05-05"]),
        ("on 3/5/2023", ["2023-03-05..2023-03-05"]),
        ("on 25/5/2023", ["2023-05-25..2023-05-25"]),
        ("on 3.5.2023", ["2023-05-03..2023-05-03"]),
        # holidays
        ("on New Year's Eve", ["2000-12-31..2000-12-31*"]),
        ("New Year’s Eve 2022", ["2022-12-31..2022-12-31"]),
        ("on New Year's Day of 2023", ["2023-01-01..2023-01-01"]),
        ("on Christmas Eve in 2022", ["2022-12-24..2022-12-24"]),
        ("Where was I over Christmas?", ["2000-12-25..2000-12-25*"]),
        ("for Christmas 2021", ["2021-12-25..2021-12-25"]),
        ("What do I want for Christmas?", []),
        # parts of months and years
        ("the first week of 2024", ["2024-01-01..2024-01-07"]),
        ("the last week of 2024", ["2024-12-25..2024-12-31"]),
        ("in the first week of May", ["2000-05-01..2000-05-07*"]),
        ("the last weekend of May 2023", ["2023-05-25..2023-05-31"]),
        ("the second half of September 2022", ["2022-09-16..2022-09-30"]),
        ("in early 2023", ["2023-01-01..2023-05-02"]),
        ("at the end of the year 2023", ["2023-09-02..2023-12-31"]),
        # ranges with one end
        ("before March 2023", ["0001-01-01..2023-02-28"]),
        ("before 3/5/2023", ["0001-01-01..2023-03-04"]),
        ("after March 2023", ["2023-04-01..9999-12-31"]),
        ("after the 7th of May", ["2024-05-08..9999-12-31"]),
        ("since May", ["2024-05-01..9999-12-31"]),
        ("since June", ["2023-06-01..9999-12-31"]),
        ("since 29 February", ["2024-02-29..9999-12-31"]),
        ("since the beginning of 2023", ["2023-01-01..9999-12-31"]),
        ("What have I read since 2022?", ["2022-01-01..9999-12-31"]),
        ("since last week", ["2024-05-06..9999-12-31"]),
        ("since Monday", ["2024-05-13..9999-12-31"]),
        ("since yesterday", ["2024-05-14..9999-12-31"]),
        ("just after 7 May 2023", ["2023-05-07..2023-05-07"]),
        ("the Sunday before 25 October 2022", ["2022-10-25..2022-10-25"]),
        # ranges up to today
        ("in the last two weeks", ["2024-04-29..2024-05-15"]),
        ("over the past 3 months", ["2024-02-01..2024-05-15"]),
        ("in the past week", ["2024-05-06..2024-05-15"]),
        ("a few days ago", ["2024-05-12..2024-05-12"]),
        ("a couple of weeks ago", ["2024-04-29..2024-05-05"]),
        # German, French, Spanish
        ("im März 2024", ["2024-03-01..2024-03-31"]),
        ("am 7. März 2024", ["2024-03-07..2024-03-07"]),
        ("Was war am 3/5/2023?", ["2023-05-03..2023-05-03"]),
        ("Was haben wir gestern gemacht?", ["2024-05-14..2024-05-14"]),
        ("letzte Woche", ["2024-05-06..2024-05-12"]),
        ("vor zwei Wochen", ["2024-04-29..2024-05-05"]),
        ("Anfang Juni 2023", ["2023-06-01..2023-06-10"]),
        ("le 3 mai", ["2000-05-03..2000-05-03*"]),
        ("le 1er mai 2023", ["2023-05-01..2023-05-01"]),
        ("Qu’est-ce que j’ai mangé hier ?", ["2024-05-14..2024-05-14"]),
        ("l’année dernière", ["2023-01-01..2023-12-31"]),
        ("il y a deux mois", ["2024-03-01..2024-03-31"]),
        ("en abril", ["2000-04-01..2000-04-30*"]),
        ("el 3 de mayo de 2024", ["2024-05-03..2024-05-03"]),
        ("la semana pasada", ["2024-05-06..2024-05-12"]),
        ("el fin de semana pasado", ["2024-05-11..2024-05-12"]),
        ("hace tres días", ["2024-05-12..2024-05-12"]),
        ("Was ist seit Mai 2023 und nach März 2024 passiert?", ["2024-04-01..9999-12-31", "2023-05-01..9999-12-31"]),
        ("Wo war ich an Silvester?", ["2000-12-31..2000-12-31*"]),
        ("Qu'est-ce que j'ai fait avant mai 2023 ?", ["0001-01-01..2023-04-30"]),
        ("¿Qué hice en Nochebuena?", ["2000-12-24..2000-12-24*"]),
        # no dates
        ("In the end may I ask", []),
        ("In the end I may, and it is late may I go", []),
        ("the 3 may be late, and the 5 march home", []),
        ("in may i went home", ["2000-05-01..2000-05-31*"]),
        ("on 7 may we met, on 5 march too", ["2000-03-05..2000-03-05*", "2000-05-07..2000-05-07*"]),
        ("weeks ago, in the past, at last", []),
        ("Was ist hier passiert?", []),
        ("I ate 3 Mars bars with 2 spoons of mayo.", []),
        ("13/13/2023, 3/0/2023", []),
        ("between July and May 2023", ["2023-05-01..2023-05-31"]),
        ("What may I do? March on! It costs 2000 dollars.", []),
        ("31 February 2023", ["2023-02-01..2023-02-28"]),
        ("2023-13-01", []),
        ("room 12, 30 people, the second one", []),
        ("in augu\u017ft, frı day", []),
    ],
)
def test_windows(text: str, expected: list[str]) -> None:
    """What is a date, and what only looks like one."""
    assert told(text) == expected


def test_months_ago_cross_years() -> None:
    """Months are counted back over the turn of the year."""
    assert parse_date_ranges("last month", date(2024, 1, 31)) == [DateRange(date(2023, 12, 1), date(2023, 12, 31))]
    assert parse_date_ranges("13 months ago", date(2024, 1, 31)) == [DateRange(date(2022, 12, 1), date(2022, 12, 31))]


@given(st.text(), st.dates(min_value=date(1990, 1, 1), max_value=date(2100, 1, 1)))
def test_any_text(text: str, today: date) -> None:
    """No text fails."""
    assert len(parse_date_ranges(text, today)) <= MOST


@given(
    st.lists(
        st.sampled_from(
            [
                "7",
                "31",
                "0",
                "99",
                "may",
                "of",
                "feb",
                "2023",
                "-",
                ",",
                "2023-02-30",
                "in",
                "last",
                "week",
                "999",
                "years",
                "ago",
                "on",
                "friday",
                "29",
                "before",
                "since",
                "past",
                "christmas",
                "first week of",
                "early",
            ]
        )
    )
)
def test_any_date_like_text(words: list[str]) -> None:
    """No sequence of words of dates fails, and windows begin before they end."""
    assert all(first <= last for first, last, _ in parse_date_ranges(" ".join(words), TODAY))


def test_many_dates_are_bounded() -> None:
    """A text full of dates costs no more than a few."""
    assert len(parse_date_ranges(" ".join(f"{day} May 2023," for day in range(1, 29)) * 20, TODAY)) == MOST


def test_closeness_fades_over_a_week() -> None:
    """1 within the window, less on each day around it, 0 after a week; unknown days are close to nothing."""
    found = date_proximity(
        [DateRange(date(2023, 5, 7), date(2023, 5, 8))], days("2023-05-07", "2023-05-08", "2023-05-15"), UTC
    )
    assert found.tolist() == [1, 1, 0]
    found = date_proximity(
        [DateRange(date(2023, 5, 7), date(2023, 5, 7))], days("2023-05-06", "2023-05-10", "2023-04-01"), UTC
    )
    assert found.round(3).tolist() == [0.857, 0.571, 0]
    assert date_proximity([DateRange(date(2023, 5, 7), date(2023, 5, 7))], np.array([np.nan]), UTC).tolist() == [0]


def test_a_day_without_year_is_that_of_every_year() -> None:
    """Records of any year count, also around the turn of the year, and on 29 February."""
    spoken = days("2021-12-31", "2023-01-01", "2022-07-01")
    assert date_proximity(parse_date_ranges("on 1 January", TODAY), spoken, UTC).round(3).tolist() == [0.857, 1, 0]
    leap = days("2024-02-29", "2023-02-28")
    assert date_proximity(parse_date_ranges("in February", TODAY), leap, UTC).tolist() == [1, 1]
    assert date_proximity(parse_date_ranges("on 29 February", TODAY), leap, UTC).tolist() == [1, 0]
