"""Render entries as one note within a token budget. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage

from langchain_memkit.base import TokenCounter
from langchain_memkit.memories.key_value.entries import Entry
from langchain_memkit.messages.counting import count_tokens
from langchain_memkit.messages.notes import Record, is_note, note_message, records_of
from langchain_memkit.messages.sentences import sentence_spans
from langchain_memkit.messages.text import said

__all__ = ["entries_note", "not_in"]

Fits: TypeAlias = Callable[[str], bool]
WORD = re.compile(r"\S{1,50}")  # long runs without a space are broken as well
LEAST = 100  # characters that a text cut in the middle of a sentence must keep to be worth showing


def not_in(entries: Iterable[Entry], messages: Sequence[BaseMessage]) -> list[Entry]:
    """Return the entries whose text is in none of the messages (white space is ignored)."""
    wanted = [entry for entry in entries if entry.text.strip()]
    if not wanted:
        return []
    texts = [record.text for m in messages if is_note(m) for record in records_of(m)]
    shown = [_plain(text) for text in (*texts, *(said(m) for m in messages if not is_note(m)))]
    plain = {entry.title: _plain(entry.text) for entry in wanted}
    return [entry for entry in wanted if not any(plain[entry.title] in text for text in shown)]


def _plain(text: str) -> str:
    return " ".join(text.split())


def entries_note(entries: Iterable[Entry], max_tokens: int, counter: TokenCounter) -> list[HumanMessage]:
    """Render the entries that fit, in order, as one note; a text that is too long is cut at a sentence end and marked.

    Args:
        entries: In the order in which they are shown.
        max_tokens: Budget of the whole note.
        counter: Counts tokens.

    Returns:
        One note; `[]` if nothing fits.
    """
    records: list[Record] = []
    for entry in entries:

        def fits(text: str, entry: Entry = entry) -> bool:
            note = note_message([*records, Record(text, about=entry.title, source=entry.source)])
            return count_tokens([note], counter)[0] <= max_tokens

        text = entry.text if fits(entry.text) else _cut(entry.text, fits)
        if text:
            records.append(Record(text, about=entry.title, source=entry.source))
    return [note_message(records)] if records else []


def _cut(text: str, fits: Fits) -> str:
    """Return the longest beginning of a text that fits, with a mark; empty if too little would be left."""
    sentences = [end for _, end in sentence_spans(text) if end < len(text)]
    words = [match.end() for match in WORD.finditer(text) if LEAST <= match.end() < len(text)]
    for ends in (sentences, words):
        # Binary search, since counting may be slow: a longer beginning is taken to have no fewer tokens.
        fitting = bisect_right(ends, False, key=lambda end: not fits(_marked(text, end)))
        if fitting:
            return _marked(text, ends[fitting - 1])
    return ""


def _marked(text: str, end: int) -> str:
    return f"{text[:end]} [cut: {end} of {len(text)} characters]"
