"""Deleting a user from every part of an app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from langchain_memkit.base.ids import check_id
from langchain_memkit.errors import ConfigurationError

__all__ = ["Purgeable", "apurge_user", "purge_user"]


@runtime_checkable
class Purgeable(Protocol):
    """Anything that can delete a user: memkit's stores, and its factories of histories and memories."""

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete all content of the user, and return counts."""
        ...

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        ...


def purge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Delete a user from every part of an app: histories, and the stores and memories derived from them.

    Args:
        user_id: The user whose content is deleted.
        *parts: The factories, stores and memories in use, in any order; they are purged in this order.

    Returns:
        The counts of what each part deleted, in the order of `parts`.

    Raises:
        TypeError: `user_id` is not a string.
        ValueError: `user_id` is not a valid id.
        ConfigurationError: There are no parts, or one of them cannot delete a user; nothing was deleted.
        HistoryWriteError: A part failed; calling again continues.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> histories("s1", "u1").add_user_message("hello")
        >>> purge_user("u1", histories)
        [{'sessions': 1, 'turns': 1}]
    """
    _check(user_id, parts)
    return [part.purge(user_id) for part in parts]


async def apurge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Run `purge_user` asynchronously."""
    _check(user_id, parts)
    return [await part.apurge(user_id) for part in parts]


def _check(user_id: str, parts: Sequence[Any]) -> None:
    """Validate the user and the parts, before anything is deleted."""
    check_id(user_id, "user_id")
    if not parts:
        msg = "purge_user takes the user and the factories, stores and memories in use; without them nothing is deleted"
        raise ConfigurationError(msg)
    for i, part in enumerate(parts):
        if not isinstance(part, Purgeable):
            msg = f"parts[{i}], a {type(part).__name__}, has no purge(user_id) to forget a user. Nothing was deleted."
            raise ConfigurationError(msg)
