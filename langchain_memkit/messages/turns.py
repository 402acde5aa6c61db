"""Turns, tool groups and cuts: pure functions over lists of messages.

A turn begins with a human message (or the app's system message before it) and ends before the next one. A tool group is
an AI message with tool calls and all the tool messages that follow it. Histories and preprocessors cut only between
turns or between tool groups, never inside one, because model providers refuse half of one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from uuid import NAMESPACE_OID, uuid4, uuid5

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from langchain_memkit.messages.cuts import RESULTS

__all__ = ["cut_tail", "group_starts", "index_of", "turn_starts", "with_ids", "with_turn_ids"]

MAX_BATCH_MESSAGES = 100
MAX_BATCH_BYTES = 4_000_000


def turn_starts(messages: Sequence[BaseMessage]) -> list[int]:
    """Return the positions where turns begin; the first message always begins one.

    Args:
        messages: Any messages, oldest first.

    Returns:
        Ascending positions, `[]` for no messages. System messages directly before a human message belong to its turn.

    Example:
        >>> from langchain_core.messages import AIMessage, SystemMessage
        >>> turn_starts([HumanMessage("a"), AIMessage("b"), SystemMessage("s"), HumanMessage("c"), AIMessage("d")])
        [0, 2]
    """
    starts = [0] if messages else []
    for i, message in enumerate(messages):
        if not isinstance(message, HumanMessage):
            continue
        begin = i
        while begin > 0 and isinstance(messages[begin - 1], SystemMessage):
            begin -= 1
        previous_is_input = begin > 0 and isinstance(messages[begin - 1], HumanMessage)
        if begin > starts[-1] and not previous_is_input:
            starts.append(begin)
    return starts


def group_starts(messages: Sequence[BaseMessage]) -> list[int]:
    """Return the positions where a tool group or a single message begins: the places where a long turn may be cut.

    Example:
        >>> from langchain_core.messages import AIMessage, ToolMessage
        >>> calls = [{"name": "f", "args": {}, "id": "1"}]
        >>> group_starts([AIMessage("", tool_calls=calls), ToolMessage("r", tool_call_id="1"), AIMessage("done")])
        [0, 2]
    """
    return [i for i, message in enumerate(messages) if i == 0 or not isinstance(message, RESULTS)]


def cut_tail(
    messages: Sequence[BaseMessage],
    tokens: Sequence[int],
    *,
    max_messages: int | None = None,
    max_tokens: int | None = None,
) -> list[BaseMessage]:
    """Return the newest messages within both limits, beginning at a turn.

    Args:
        messages: Oldest first. May begin anywhere in the conversation: a start at position 0 is taken as sound only if
            everything fits.
        tokens: Tokens of each message, same length.
        max_messages: At most this many messages; None for no limit.
        max_tokens: At most this many tokens in sum; None for no limit.

    Returns:
        Oldest first. If even the newest turn is over a limit, its newest whole tool groups that fit, which may be none.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> talk = [HumanMessage("a"), AIMessage("b"), HumanMessage("c"), AIMessage("d")]
        >>> [m.content for m in cut_tail(talk, [1, 1, 1, 1], max_messages=3)]
        ['c', 'd']
    """
    first, total = len(messages), 0
    while first > 0:
        total += tokens[first - 1]
        if (max_messages is not None and len(messages) - first + 1 > max_messages) or (
            max_tokens is not None and total > max_tokens
        ):
            break
        first -= 1
    starts = turn_starts(messages)
    if first == 0 or not starts:
        return list(messages)
    fitting = [start for start in starts if start >= first]
    if not fitting:
        # Even the newest turn is over a limit: cut inside it, but between tool groups.
        fitting = [start for start in group_starts(messages) if start >= first]
    return list(messages[fitting[0] :]) if fitting else []


def split_batch(messages: Sequence[BaseMessage], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Split a long import into `(start, end)` ranges at turn borders; one turn is never divided.

    Args:
        messages: The batch, oldest first, not empty.
        sizes: Bytes of each encoded message, same length.

    Returns:
        One range if the batch is a single turn or within 100 messages and 4 MB, else as few ranges as fit.
    """
    # A row is the commit point, so a batch within the limits is one row: its messages become visible together.
    if len(messages) <= MAX_BATCH_MESSAGES and sum(sizes) <= MAX_BATCH_BYTES:
        return [(0, len(messages))]
    ranges: list[tuple[int, int]] = []
    starts = [*turn_starts(messages), len(messages)]
    begin, count, weight = 0, 0, 0
    for start, end in pairwise(starts):
        turn_weight = sum(sizes[start:end])
        if count and (count + end - start > MAX_BATCH_MESSAGES or weight + turn_weight > MAX_BATCH_BYTES):
            ranges.append((begin, start))
            begin, count, weight = start, 0, 0
        count += end - start
        weight += turn_weight
    ranges.append((begin, len(messages)))
    return ranges


def with_ids(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Give each message an id; messages without one are copied, so that the caller's objects stay as they are."""
    return [m if m.id else m.model_copy(update={"id": str(uuid4())}) for m in messages]


def with_turn_ids(messages: Sequence[BaseMessage], place: Sequence[str], turn_id: str) -> list[BaseMessage]:
    """Give messages without an id one derived from their turn and position, on copies.

    The same message of the same turn gets the same id in every attempt and in every process.

    Args:
        messages: The messages of the turn, oldest first.
        place: User and session.
        turn_id: The turn's id.
    """
    found: list[BaseMessage] = []
    unnamed = 0
    for message in messages:
        if not message.id:
            # Derived, not random: a retry in another process must produce the same id, since both the history and the
            # memories deduplicate by it.
            name = str(uuid5(NAMESPACE_OID, "\0".join([*place, turn_id, str(unnamed)])))
            message = message.model_copy(update={"id": name})
            unnamed += 1
        found.append(message)
    return found


def index_of(messages: Sequence[BaseMessage], message_id: str | None) -> int:
    """Return the position of the message with this id, searched from the back; -1 if there is none."""
    if message_id is None:
        return -1
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].id == message_id), -1)


def batch_op(messages: Sequence[BaseMessage], turn_id: str | None) -> str:
    """Return the idempotency key of a batch: the caller's `turn_id`, else a hash of the ordered message ids."""
    if turn_id is not None:
        return f"turn:{turn_id}"
    digest = hashlib.sha256("\x00".join(m.id or "" for m in messages).encode("utf-8", "surrogatepass"))
    return f"ids:{digest.hexdigest()[:32]}"


def same_messages(stored: Sequence[BaseMessage], given: Sequence[BaseMessage]) -> bool:
    """Return whether a retried batch equals the stored one; ids count only where the caller gave them."""
    return len(stored) == len(given) and all(same_message(*pair) for pair in zip(stored, given, strict=True))


def same_message(got: BaseMessage, given: BaseMessage) -> bool:
    """Return whether a stored message equals the given one; one given without an id may have received one."""
    return got == (given if given.id else given.model_copy(update={"id": got.id}))
