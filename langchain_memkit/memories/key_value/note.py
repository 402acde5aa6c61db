"""Entries as a note within a budget. Pure."""

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
LEAST = 100  # characters of a cut text that do not make a sentence


def not_in(entries: Iterable[Entry], messages: Sequence[BaseMessage]) -> list[Entry]:
    """Return the entries whose text stands in none of the messages, whatever the white space."""
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
    """Return the entries that fit, in order, as one note; a text that is too long is cut where a sentence ends, and marked.

    Args:
        entries: In the order in which they are shown.
        max_tokens: Of the whole note.
        counter: What counts.

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
    """As much of a text as fits, with the mark; empty if that is not worth showing."""
    sentences = [end for _, end in sentence_spans(text) if end < len(text)]
    words = [match.end() for match in WORD.finditer(text) if LEAST <= match.end() < len(text)]
    for ends in (sentences, words):
        fitting = bisect_right(ends, False, key=lambda end: not fits(_marked(text, end)))
        if fitting:
            return _marked(text, ends[fitting - 1])
    return ""


def _marked(text: str, end: int) -> str:
    return f"{text[:end]} [cut: {end} of {len(text)} characters]"
