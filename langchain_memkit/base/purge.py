"""Forgetting a user in every part of an app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from langchain_memkit.base.ids import check_id

__all__ = ["Purgeable", "apurge_user", "purge_user"]


@runtime_checkable
class Purgeable(Protocol):
    """Anything that can forget a user: the factories of our histories, and later memories and stores."""

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Deletes all content of the user and returns counts."""
        ...

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        ...


def purge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Forgets a user in every part of an app: histories first, then what was derived from them.

    Args:
        user_id: Whose content goes.
        *parts: The factories, stores and memories in use, in any order.

    Returns:
        What each part deleted, in the order of `parts`.

    Raises:
        TypeError: `user_id` is no string.
        ValueError: `user_id` is no valid id.
        HistoryWriteError: A part failed; calling again continues.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> histories("s1", "u1").add_user_message("hello")
        >>> purge_user("u1", histories)
        [{'sessions': 1, 'turns': 1}]
    """
    check_id(user_id, "user_id")
    return [part.purge(user_id) for part in parts]


async def apurge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Async twin of `purge_user`."""
    check_id(user_id, "user_id")
    return [await part.apurge(user_id) for part in parts]
