"""What `find_english_preferences` takes for a standing wish, and which wishes are shown where many are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.common import TEXTS
from langchain_memkit import PreferenceMemory, SQLiteChatMessageHistory, WordLlamaEmbeddings, find_english_preferences
from langchain_memkit.messages.notes import records_of
from langchain_memkit.testing import FrozenClock

PRECISION, RECALL = 0.95, 0.6  # 1.0 and .655 were measured on 300 sentences of another author
INSTRUCTIONS, PREFERENCES = 38, 18  # 40 and 20 of as many: the patterns were written with these at hand
NEAREST = 28  # 32 of 40 were measured, 9 of them without an embedder


def rows_of(file: str, *kinds: str) -> list[dict[str, str]]:
    """The rows of a file of texts, of some kinds."""
    rows: list[dict[str, str]] = json.loads((TEXTS / file).read_text(encoding="utf-8"))
    return [row for row in rows if not kinds or row["kind"] in kinds]


def hits(row: dict[str, str], found: list[str]) -> list[str]:
    """Those lines found that are the wish of a text, or a part of it, or hold it."""
    quote = row.get("quote", "").strip(" .!?")
    bare = [line.strip(" .!?") for line in found]
    return [line for line in bare if quote and (line in quote or quote in line)]


def test_standing_preferences_are_found_and_nothing_else() -> None:
    """Nearly all that is found is one; more than half are found."""
    rows = [row for row in rows_of("preferences.json") if row["role"] == "human"]
    right = wrong = asked = 0
    for row in rows:
        found = find_english_preferences(row["text"])
        right += bool(hits(row, found))
        wrong += len(found) - len(hits(row, found))
        asked += "quote" in row
    print(f"\nprecision {right / (right + wrong):.3f}, recall {right / asked:.3f} of {asked}")
    assert right >= PRECISION * (right + wrong)
    assert right >= RECALL * asked


@pytest.mark.parametrize(("kind", "least"), [("instruction", INSTRUCTIONS), ("preference", PREFERENCES)])
def test_wishes_inside_messages_are_found(kind: str, least: int) -> None:
    """A wish is found beside a question and in it."""
    rows = rows_of("wishes.json", kind)
    missed = [row["text"] for row in rows if not hits(row, find_english_preferences(row["text"]))]
    print(f"\n{kind}: {len(rows) - len(missed)} of {len(rows)}")
    assert len(rows) - len(missed) >= least, missed


def test_nothing_pasted_is_taken() -> None:
    """Of mails, logs, chats, prompts, code, lyrics and others' wishes not one line is taken."""
    pasted = [row for row in rows_of("wishes.json") if "quote" not in row]
    assert len(pasted) == 25
    assert [row["kind"] for row in pasted if find_english_preferences(row["text"])] == []


def test_the_nearest_are_shown_where_many_are() -> None:
    """Of 40 lines, of which 9 fit, an embedder finds the one that a question is about."""
    rows = rows_of("wishes.json", "instruction")

    def shown(**options: Any) -> int:
        clock = FrozenClock(datetime(2026, 1, 2, tzinfo=UTC))
        histories = SQLiteChatMessageHistory.factory(":memory:", now=clock)
        memory = PreferenceMemory(histories, "s1", user_id="u1", now=clock, **options)
        for row in rows:
            memory.add(row["quote"])
            clock.tick(60)
        notes = [(row, memory.load(row["question"])) for row in rows]
        return sum(row["quote"] in [record.text for record in records_of(note)] for row, [note] in notes)

    newest, nearest = shown(), shown(embedding=WordLlamaEmbeddings())
    print(f"\nthe newest: {newest}, the nearest: {nearest}, of {len(rows)}")
    assert nearest >= NEAREST
    assert nearest > newest
