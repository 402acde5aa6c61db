"""Time zones: on which day a moment is. Stored times are aware; a zone only decides how days are quoted and read."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timezone, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from langchain_memkit._sync import call_user_function
from langchain_memkit.errors import ConfigurationError, logger

Zone: TypeAlias = str | tzinfo | None
TimezoneOfUser: TypeAlias = Callable[[str], Zone | Awaitable[Zone]]
"""A function of the user id, plain or async, that returns the user's time zone; None for the default."""

TimezoneLike: TypeAlias = Zone | TimezoneOfUser
"""Values that a `timezone` argument accepts: a name ("Australia/Sydney"), a tzinfo, a function of the user id, None."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{,40}(:\d\d)?")  # of zones as notes say them


def check_timezone(given: TimezoneLike) -> tzinfo | TimezoneOfUser | None:
    """Return a `timezone` argument with its name looked up; raise a ConfigurationError for what is none.

    Example:
        >>> check_timezone("Australia/Sydney")
        zoneinfo.ZoneInfo(key='Australia/Sydney')
        >>> check_timezone("sydney")
        Traceback (most recent call last):
        ...
        langchain_memkit.errors.ConfigurationError: no time zone is named 'sydney'; did you mean 'Australia/Sydney'?
    """
    # A zone of pytz cannot simply be put into a time.
    name = "UTC" if given is UTC else getattr(given, "zone", given)
    if isinstance(name, str):
        return named_timezone(name)
    if given is None or isinstance(given, tzinfo):
        return given
    if callable(given) and not isinstance(given, type):
        return given
    kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
    example = 'a name as "Australia/Sydney", a tzinfo, or a function of the user id that returns one of them'
    raise ConfigurationError(f"timezone must be {example}, not {kind}")


def named_timezone(name: str) -> tzinfo:
    """Return the zone of a name; raise a ConfigurationError with a similar one if there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found, not a key, the name of a folder
        pass
    if name == "UTC":
        return UTC
    known = available_timezones()
    if not known:
        msg = f"no time zone is named {name!r:.50}: this machine has no time zone data. pip install tzdata"
        raise ConfigurationError(msg)
    cities = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known)}
    names = cities | {zone.lower(): zone for zone in known}
    near = get_close_matches(name.lower().replace(" ", "_"), names, n=1, cutoff=0.7)
    advice = f"; did you mean {names[near[0]]!r}?" if near else '; names are like "Australia/Sydney" and "UTC"'
    raise ConfigurationError(f"no time zone is named {name!r:.50}{advice}")


async def timezone_of_user(given: tzinfo | TimezoneOfUser | None, user_id: str | None) -> tzinfo | None:
    """Return the zone that a checked `timezone` argument gives to a user; None for the default.

    A function is not called if there is no user. One that fails, or returns no zone, is logged and gives the default:
    how days are worded must not cost the answer. Only one that can never work here, async in sync code, is refused.
    """
    if given is None or isinstance(given, tzinfo):
        return given
    if user_id is None:
        return None
    try:
        found: Any = await call_user_function(given, user_id, name="timezone")
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001  # of the app's function
        report_failure(type(error).__name__)
        return None
    try:
        zone = check_timezone(found)
    except ConfigurationError as error:
        report_failure(type(error).__name__)
        return None
    if zone is None or isinstance(zone, tzinfo):
        return zone
    report_failure(f"it returned a {type(zone).__name__}")
    return None


@lru_cache(maxsize=64)
def report_failure(problem: str) -> None:
    """Log once in a process that a `timezone` function has failed in some way; without user id or text."""
    logger.warning(
        "a timezone= function failed (%s), so days are told in the default zone, UTC if there is no other. It must "
        'return a name as "Australia/Sydney", a tzinfo, or None. If no name is found, this machine may lack time '
        "zone data: pip install tzdata. This is said once",
        problem,
    )


async def timezone_of_query(given: tzinfo | TimezoneOfUser | None, user_id: str, query: str) -> tzinfo:
    """Return the zone in which a memory reads a question and quotes days: its own, else that of the turn, else UTC."""
    own = await timezone_of_user(given, user_id)
    return own or getattr(query, "timezone", None) or UTC


def in_timezone(at: datetime, zone: tzinfo) -> datetime:
    """Return a time in a zone; one without a zone, which is no more than a date, stays as it is."""
    if at.tzinfo is None:
        return at
    try:
        return at.astimezone(zone)
    except OverflowError:  # at an end of the calendar
        return at


def timezone_name(at: datetime) -> str:
    """Name the zone of an aware time: `UTC`, `Australia/Sydney`; of a zone without a name the offset, `UTC+05:30`."""
    name = str(at.tzinfo)
    return name if NAME.fullmatch(name) else str(timezone(at.utcoffset() or UTC.utcoffset(None)))


def timezones_named(dates: Iterable[datetime | None]) -> str:
    """Name the zones of dates for a note, mostly one; an empty string if no date has a zone."""
    return " or ".join(dict.fromkeys(timezone_name(at) for at in dates if at is not None and at.tzinfo is not None))


def to_text(at: datetime) -> str:
    """Write a time in ISO 8601, with its zone's name behind it as in RFC 9557, since an offset names no zone.

    Example:
        >>> at = datetime(2026, 3, 2, 22, tzinfo=UTC)
        >>> to_text(at), to_text(at.astimezone(ZoneInfo("Australia/Sydney")))
        ('2026-03-02T22:00:00+00:00', '2026-03-03T09:00:00+11:00[Australia/Sydney]')
    """
    name = getattr(at.tzinfo, "key", None)
    return f"{at.isoformat()}[{name}]" if name else at.isoformat()


def from_text(text: str) -> datetime:
    """Read what `to_text` wrote; with the offset alone if the zone is not known here."""
    moment, _, name = text.partition("[")
    at = datetime.fromisoformat(moment)
    if not name:
        return at
    try:
        return in_timezone(at, ZoneInfo(name.removesuffix("]")))
    except (KeyError, ValueError, OSError):
        return at
