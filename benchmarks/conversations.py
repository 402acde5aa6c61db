"""Conversations of any length for the benchmarks: English words in random order, and some turns that call tools."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

__all__ = ["FACT", "MARKS", "conversation_of", "log_of", "whole_messages"]

FACT = "The vault code is 7291-KESTREL."
MARKS = re.compile(r"\b([aesz])(\d{5})\b")
"""The first and last word of each message (`a00012`, `z00012`) and of each summary (`s00003`, `e00003`)."""

TOOLS_EVERY = 10
TEXT = Path(__file__).parent / "texts" / "english.txt"


@cache
def vocabulary() -> list[str]:
    """The words of a real conversation, as often as they occur there."""
    return re.findall(r"[^\W\d_]+", TEXT.read_text(encoding="utf-8"))


def conversation_of(words: int, *, tools: bool = True, fact: bool = False) -> Iterator[list[BaseMessage]]:
    """Turns without end, the same ones each time.

    Args:
        words: Of each message, at least 3. The first and the last one name the message.
        tools: Every tenth turn calls two tools at once.
        fact: The first message says `FACT`.

    Yields:
        A question, perhaps an AI message with two calls and their results, and an answer; with ids.
    """
    chance, numbers = random.Random(words), count()

    def text() -> tuple[str, str]:
        n = next(numbers)
        said = [FACT] if fact and n == 0 else chance.choices(vocabulary(), k=words - 2)
        return " ".join((f"a{n:05d}", *said, f"z{n:05d}")), f"m{n:05d}"

    for number in count(1):
        content, name = text()
        turn: list[BaseMessage] = [HumanMessage(content, id=name)]
        if tools and number % TOOLS_EVERY == 0:
            content, name = text()
            calls = [{"name": "look_up", "args": {"page": n}, "id": f"{name}-{n}"} for n in (1, 2)]
            turn.append(AIMessage(content, tool_calls=calls, id=name))
            for call in calls:
                content, name = text()
                turn.append(ToolMessage(content, tool_call_id=str(call["id"]), id=name))
        content, name = text()
        turn.append(AIMessage(content, id=name))
        yield turn


def log_of(length: int, words: int) -> list[BaseMessage]:
    """A system line and the newest messages of a conversation, `length` in all."""
    said: list[BaseMessage] = []
    for turn in conversation_of(words):
        said += turn
        if len(said) >= length - 1:
            break
    return [SystemMessage("You are a helpful assistant.", id="system"), *said[len(said) - length + 1 :]]


def whole_messages(text: str) -> set[int]:
    """The numbers of the messages whose first and last word are both in a text."""
    found = set(MARKS.findall(text))
    return {int(n) for letter, n in found if letter == "a" and ("z", n) in found}
