"""Keys and values of the stores, without a store."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from langchain_memkit.base import user_prefix
from langchain_memkit.errors import MessageEncodeError
from langchain_memkit.stores.key_value import StoredValue, decode, encode_pairs, range_of

ids = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)


BROKEN = {"_memkit": "bytes", "value": "no base64!"}
BROKEN_DOCUMENT = {"_memkit": "document", "value": {"metadata": 7}}


class Autumn(tzinfo):
    """A zone in whose every hour the clocks go back."""

    def utcoffset(self, moment: Any) -> timedelta:
        """One of two, as in the hour that comes twice."""
        return timedelta(hours=1 if moment.fold else 2)

    def dst(self, _: Any) -> timedelta:
        """None to speak of."""
        return timedelta(0)


def test_a_moment_that_equals_nothing_is_refused() -> None:
    """A time of the hour that comes twice equals no time of another zone, so it would not come back equal."""
    with pytest.raises(MessageEncodeError, match="would not come back equal") as raised:
        encode_pairs([("k", {"a": 1, "at": datetime(2026, 10, 25, 2, 30, tzinfo=Autumn())})])
    assert raised.value.path == "values['k']['at']"


@pytest.mark.parametrize(
    "value", [None, [], "x", 7, {"_memkit": "int", "value": {}}, {"_memkit": {}, "value": 1}, BROKEN, BROKEN_DOCUMENT]
)
def test_damage(value: Any) -> None:
    """What is none of the types that are stored is nothing."""
    assert decode("k", StoredValue(value, 1)) is None


@given(ids, ids)
@example("a\ud7ff", "a\ue000")
@example("\U0010ffff", "\U0010ffff\U0010ffff")
def test_a_range_holds_what_begins_with_the_prefix(prefix: str, key: str) -> None:
    """The bounds of a range and `startswith` agree, in the order of code points and so of UTF-8."""
    begin, end = range_of(prefix)
    for candidate in (key, prefix + key, prefix, prefix[:-1], prefix[:-1] + key):
        inside = begin.encode() <= candidate.encode() and (end is None or candidate.encode() < end.encode())
        assert inside == candidate.startswith(prefix)


@given(ids, ids, ids)
def test_no_users_keys_begin_with_anothers_prefix(one: str, other: str, rest: str) -> None:
    """Prefixes of users are apart, whatever their ids are made of; two of them fit into a key."""
    assert (user_prefix(other) + rest).startswith(user_prefix(one)) == (one == other)
    assert len(user_prefix("\x7f" * 512) * 2) <= 4096


def test_prefix_of_nobody() -> None:
    """The unowned space is no user's; ids are checked."""
    assert user_prefix("") == "/"
    for bad in ("a\x00", "\ud800", "x" * 513):
        with pytest.raises(ValueError, match="user_id"):
            user_prefix(bad)
    with pytest.raises(TypeError):
        user_prefix({"$ne": ""})  # type: ignore[arg-type]  # wrong on purpose
