"""Tool results that outgrow the prompt: one line in place of an old one, and a loop of calls that fits step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from langchain_core.messages import BaseMessage

from langchain_memkit.base import Messages, TokenCounter
from langchain_memkit.messages.text import message_text
from langchain_memkit.messages.tokens import count_tokens
from langchain_memkit.messages.trimming import RESULTS, STATUS, group_starts

SHORTENED = "shortened"
"""Value of `memkit_status` in the metadata of a shortened result, which only the model is shown."""


def shortened(message: BaseMessage, reader: str | None = None, *, excerpt: int = 60) -> BaseMessage:
    """Return a tool result as one line, which tells how long it was, how it began, and how it is read.

    Args:
        message: A tool message.
        reader: Name of the tool that reads a result back; None if the agent has none.
        excerpt: Number of characters that are quoted.

    Returns:
        A copy with the same id and call id. A result that is no longer than the line is returned itself, as is every
        other message.

    Example:
        >>> from langchain_core.messages import ToolMessage
        >>> page = ToolMessage("All about tea. " * 500, name="fetch", tool_call_id="call-1")
        >>> print(shortened(page, "read_result", excerpt=14).text)
        [Shortened: 7,500 characters that began "All about tea.". read_result(call_id="call-1") shows them.]
    """
    if not isinstance(message, RESULTS) or message.response_metadata.get(STATUS) == SHORTENED:
        return message
    text = message_text(message)
    began = " ".join(text[: 2 * excerpt].split())[:excerpt]
    line = f'[Shortened: {len(text):,} characters that began "{began}".{_way(message, reader)}]'
    is_short = isinstance(message.content, str) and len(text) <= len(line)  # an image is long, however it is called
    return message if is_short else _with_text(message, line)


def without_bulk(message: BaseMessage, *, most: int = 2000, excerpt: int = 200) -> BaseMessage:
    """Return a tool result of over `most` characters as one line with its beginning; every other message itself.

    So it is read by a model that summarizes: what an agent made of a long page stands in its answer.
    """
    is_long = isinstance(message, RESULTS) and len(message_text(message)) > most
    return shortened(message, excerpt=excerpt) if is_long else message


def cut_in_the_middle(message: BaseMessage, most: int, reader: str | None = None) -> BaseMessage:
    """Return a tool result with its beginning and end, about `most` characters together, and a mark between them."""
    text = message_text(message)
    if len(text) <= most:
        return message
    head = most * 2 // 3
    tail = most - head
    mark = f"[{len(text) - most:,} characters are left out here.{_way(message, reader, head)}]"
    return _with_text(message, f"{text[:head]}\n{mark}\n{text[len(text) - tail :]}")


def _way(message: BaseMessage, reader: str | None, start: int = 0) -> str:
    """Tell how a result is read back from a character on; nothing if the agent has no tool for that.

    What that tool has returned itself is read back by calling it again, as the call in front of the result shows.
    """
    call_id = getattr(message, "tool_call_id", None)
    if reader is None or not call_id or message.name == reader:
        return ""
    where = f", start={start}" if start else ""
    return f' {reader}(call_id="{call_id}"{where}) shows them.'


def _with_text(message: BaseMessage, text: str) -> BaseMessage:
    metadata = {**message.response_metadata, STATUS: SHORTENED}
    return message.model_copy(update={"content": text, "response_metadata": metadata})


Size = Callable[[BaseMessage], int]
"""A function from a message to its number of tokens."""


@dataclass
class ResultShortener:
    """Shows tool results in fewer tokens, with the same outcome for the same result.

    Args:
        counter: Counts tokens.
        reader: Name of the tool that reads a result back; None if the agent has none.
    """

    counter: TokenCounter
    reader: str | None = None
    _sizes: dict[int, tuple[BaseMessage, int]] = field(default_factory=dict)
    _lines: dict[int, tuple[BaseMessage, BaseMessage, int]] = field(default_factory=dict)

    def size(self, message: BaseMessage) -> int:
        """Count the tokens of a message, each message once."""
        if id(message) not in self._sizes:
            # The message is kept as well, so that no other one gets its identity.
            self._sizes[id(message)] = (message, count_tokens([message], self.counter)[0])
        return self._sizes[id(message)][1]

    def sizes(self, messages: Sequence[BaseMessage]) -> list[int]:
        """Count the tokens of each message."""
        return [self.size(message) for message in messages]

    def line(self, message: BaseMessage, size: int) -> tuple[BaseMessage, int]:
        """Return a result of `size` tokens as one line, and the tokens of that; unchanged where nothing is saved."""
        if not isinstance(message, RESULTS):
            return message, size
        if id(message) not in self._lines:
            short = shortened(message, self.reader)
            tokens = size if short is message else count_tokens([short], self.counter)[0]
            if tokens >= size:
                short, tokens = message, size
            self._lines[id(message)] = (message, short, tokens)
        _, short, tokens = self._lines[id(message)]
        return short, tokens

    def fit(self, message: BaseMessage, size: int, room: int) -> tuple[BaseMessage, int]:
        """Cut a result in the middle, so that it takes at most `room` tokens; at least its line is left."""
        text = message_text(message)
        most = len(text)
        cut, tokens = message, size
        while tokens > room and most > 0:
            # Text is not equally dense: aim a little lower with each try.
            most = min(most * 9 // 10, most * room * 9 // (tokens * 10))
            cut = cut_in_the_middle(message, most, self.reader)
            tokens = count_tokens([cut], self.counter)[0]
        line, least = self.line(message, size)
        return (cut, tokens) if least < tokens <= room else (line, least)


@dataclass
class _Group:
    """An answer of the model with the results of its calls, as they are shown."""

    messages: list[BaseMessage]
    sizes: list[int]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def shorten(self, results: ResultShortener) -> None:
        """Show all results as one line each."""
        pairs = [results.line(*pair) for pair in zip(self.messages, self.sizes, strict=True)]
        self.messages = [message for message, _ in pairs]
        self.sizes = [size for _, size in pairs]

    def cut(self, results: ResultShortener, room: int) -> None:
        """Cut results in the middle, the longest ones, so that the group takes at most `room` tokens."""
        places = [i for i, message in enumerate(self.messages) if isinstance(message, RESULTS)]
        left = room - sum(size for i, size in enumerate(self.sizes) if i not in places)
        # The shortest first: what they leave of an equal share is for longer ones.
        places.sort(key=lambda i: self.sizes[i])
        for n, i in enumerate(places):
            share = max(left // (len(places) - n), 0)
            if self.sizes[i] > share:
                self.messages[i], self.sizes[i] = results.fit(self.messages[i], self.sizes[i], share)
            left -= self.sizes[i]


def fit_loop(
    messages: Messages,
    sizes: Sequence[int],
    room: int,
    results: ResultShortener,
    *,
    lead: int,
    low: float = 0.6,
) -> tuple[list[BaseMessage], int]:
    """Fit an agent's run into `room` tokens: its input stays, and of its loop what is oldest becomes short.

    Whenever the loop outgrows its room, old tool results are shown as one line each, down to `low` of the room. Only
    if that is not enough, results that the model is yet to see are cut in the middle, and then the oldest calls are
    left out, with their results. Between two such steps the prompt only grows at its end, so that what a provider has
    cached of it stays valid.

    Args:
        messages: The input of the run, then its answers with tool calls, each followed by its results.
        sizes: Their tokens.
        room: The tokens that there are for them.
        results: Shortens results.
        lead: Number of messages of the input, which stay.
        low: Share of the room that a step leaves.

    Returns:
        The messages to show, in order, and their tokens; no call without its results, and no result without its call.
    """
    if sum(sizes) <= room:
        return list(messages), sum(sizes)
    asked = sum(sizes[:lead])
    room -= asked
    starts = [lead + start for start in group_starts(messages[lead:])]
    # What the model was shown before is found again by going through the run from its beginning, so nothing has to be
    # remembered between two calls, and another process that goes on with the run shows the same.
    groups: list[_Group] = []
    total = shortened_groups = first = 0
    for begin, end in pairwise([*starts, len(messages)]):
        newest = _Group(list(messages[begin:end]), list(sizes[begin:end]))
        groups.append(newest)
        total += newest.size
        if total <= room:
            continue
        while total > low * room and shortened_groups < len(groups) - 1:
            old = groups[shortened_groups]
            total -= old.size
            old.shorten(results)
            total += old.size
            shortened_groups += 1
        first = min(first, shortened_groups)
        if total > room:
            total -= newest.size
            newest.cut(results, max(room - total, int((1 - low) * room)))
            total += newest.size
        if total > room:
            while total > low * room and first < len(groups) - 1:
                total -= groups[first].size
                first += 1
                shortened_groups = max(shortened_groups, first)
    shown = [message for group in groups[first:] for message in group.messages]
    return [*messages[:lead], *shown], asked + total
