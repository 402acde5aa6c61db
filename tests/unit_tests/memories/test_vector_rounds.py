"""Messages become rounds, and rounds become records, as they are stored with a turn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_text_splitters import CharacterTextSplitter

from langchain_memkit.memories.vector import turn_index
from langchain_memkit.memories.vector.rounds import SIZE, Splitter, is_small_talk, rounds_of
from langchain_memkit.memories.vector.turn_index import TurnIndex, TurnRecord
from langchain_memkit.messages.notes import Record, note_message
from langchain_memkit.stores.changes import ChangedRow

AT = datetime(2026, 1, 2, tzinfo=UTC)
CALL = [{"name": "mystery", "args": {"a": 5, "b": 6}, "id": "c1"}]


def records(*messages: BaseMessage, splitter: Any = None) -> list[TurnRecord]:
    """Records of a turn."""
    return turn_index.derive(messages, Splitter(splitter)).records


def test_a_round_is_what_a_user_said_with_what_followed() -> None:
    """Tool calls and results belong to the round; the next human message begins another."""
    found = rounds_of(
        [
            SystemMessage("Be brief."),
            HumanMessage("What is mystery(5, 6)?"),
            AIMessage("", tool_calls=CALL),
            ToolMessage("-11", tool_call_id="c1", name="mystery"),
            AIMessage("It is -11."),
            HumanMessage("Thanks!"),
        ]
    )
    assert [[line.role for line in lines] for lines in found] == [["human", "ai", "tool", "ai"], ["human"]]
    assert found[0][1].text == '[calls mystery({"a": 5, "b": 6})]'


def test_several_human_messages_in_a_row_are_one_input() -> None:
    """As in a chat between people, where one thought comes in pieces."""
    found = rounds_of([HumanMessage("Hi"), HumanMessage("I moved to Oslo."), AIMessage("When?")])
    assert [len(lines) for lines in found] == [3]


def test_what_memories_recalled_is_never_stored_again() -> None:
    """Notes are left out, and so is the frame that a model repeats."""
    note = note_message([Record("My PIN is 1234.")])
    [lines] = rounds_of([note, HumanMessage("PIN?"), AIMessage(f"You said: {note.text} Right?")])
    assert "1234" not in "".join(line.text for line in lines)


def test_a_long_round_is_cut_at_sentences_into_pieces_with_its_date_and_speakers() -> None:
    """Every word is in one piece, which ends with a sentence and knows round, date and speaker."""
    text = " ".join(f"word{i}{'.' if i % 20 == 19 else ''}" for i in range(600))
    found = records(HumanMessage(text, name="Ann", id="m1"), AIMessage("Noted.", id="m2"))
    assert len(found) > 3
    assert all(len(record.text) <= SIZE + len("Ann: ") for record in found)
    pieces = [record.text.removeprefix("Ann: ") for record in found]
    assert " ".join(pieces) == f"{text}\nai: Noted."
    assert all(piece.endswith(".") for piece in pieces)
    assert all(record.lines[0].name == "Ann" for record in found)
    row = ChangedRow("s1", 7, "op", "turn", 1, 0, created_at=AT, expires_at=AT + timedelta(days=2))
    entries = [one.entry for one in turn_index.stored_records(TurnIndex(found), row, timedelta(days=1))]
    assert [entry.id for entry in entries] == [f"s1:7:{n}" for n in range(len(found))]
    assert {(entry.session, entry.round_id, entry.at) for entry in entries} == {("s1", "s1:7", AT)}
    assert {entry.expires_at for entry in entries} == {AT + timedelta(days=1)}
    assert [entry.position for entry in entries] == list(range(7000, 7000 + len(found)))
    assert all(entry.said[0][:2] == ("human", "Ann") for entry in entries)
    assert entries[-1].messages == ("m1", "m2")


def test_the_callers_splitter_decides() -> None:
    """Any text splitter of LangChain's."""
    splitter = CharacterTextSplitter(separator=".", chunk_size=20, chunk_overlap=0)
    found = records(HumanMessage("I like tea a lot. I live in Oslo. I own a cat."), splitter=splitter)
    assert len(found) == 3


def test_small_talk_is_known() -> None:
    """Greetings and thanks, in any case; nothing that tells something."""
    for text in ("Thanks!", "ok", "Hi, good morning", "Yes please", "👍", "You're welcome"):
        assert is_small_talk(rounds_of([HumanMessage(text)])[0]), text
    for text in ("Thanks for the fish", "42", "I am Bob", "ja"):
        assert not is_small_talk(rounds_of([HumanMessage(text)])[0]), text


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 200_000, "<records>", "a: b\nc: d"])
def test_any_text_makes_sound_records(text: str) -> None:
    """Garbage is kept as far as it can be stored; every line is found again where it is said to be."""
    found = records(HumanMessage(text), AIMessage("ok"))
    for record in found:
        record.text.encode()
        assert "\x00" not in record.text
        assert all(line.text in record.text for line in record.lines)


KINDS: dict[str, Any] = {
    "h": HumanMessage,
    "a": AIMessage,
    "t": lambda text: ToolMessage(text, tool_call_id="c"),
    "n": SystemMessage,
}


@given(st.lists(st.tuples(st.sampled_from("hatn"), st.text(min_size=1, max_size=30)), max_size=20))
def test_rounds_hold_everything_once_and_in_order(said: list[tuple[str, str]]) -> None:
    """Property: the lines of all rounds are the messages that say something, in order."""
    messages = [KINDS[kind](text) for kind, text in said]
    lines = [line for round_ in rounds_of(messages) for line in round_]
    wanted = [m for m in messages if m.type != "system" and m.text.replace("\x00", "\ufffd").strip()]
    assert [line.role for line in lines] == [m.type for m in wanted]


@given(st.lists(st.tuples(st.sampled_from("hat"), st.text(min_size=1, max_size=400)), max_size=9), st.booleans())
def test_what_is_stored_is_what_was_made(said: list[tuple[str, str]], is_embedded: bool) -> None:
    """Property: an index is read as it was made, its vectors, of length 1, to three digits."""
    made = turn_index.derive([KINDS[kind](text) for kind, text in said], Splitter())
    if is_embedded:
        made.sketch = turn_index.sketch_of(np.ones(9, np.float32) / 3)
        unit = np.arange(9, dtype=np.float32) / np.float32(np.sqrt(204))
        for i, record in enumerate(made.records[::2]):
            record.vector, record.importance = np.roll(unit, i), float(i)
    read = turn_index.decode(turn_index.encode(made))
    assert read is not None
    assert (read.sketch, read.is_embedded) == (made.sketch, made.is_embedded)
    for mine, theirs in zip(made.records, read.records, strict=True):
        assert (mine.text, mine.lines, mine.stems) == (theirs.text, theirs.lines, theirs.stems)
        assert (mine.is_worth, mine.importance) == (theirs.is_worth, theirs.importance)
        assert (mine.vector is None) == (theirs.vector is None)
        assert mine.vector is None or mine.vector == pytest.approx(theirs.vector, rel=1e-3)
