"""Messages become rounds, and rounds become records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_text_splitters import CharacterTextSplitter

from langchain_memkit.memories.rebuildable import Segment
from langchain_memkit.memories.vector.rounds import (
    SIZE,
    Splitter,
    documents_of,
    is_small_talk,
    lines_of_document,
    rounds_of,
)
from langchain_memkit.messages.notes import Record, note_message

AT = datetime(2026, 1, 2, tzinfo=UTC)
CALL = [{"name": "mystery", "args": {"a": 5, "b": 6}, "id": "c1"}]


def rounds(*messages: BaseMessage, **known: Any) -> list[Any]:
    """Rounds of one stretch."""
    return rounds_of([Segment(messages, AT, native=True, **known)], AT)


def records(*messages: BaseMessage, splitter: Any = None) -> list[Any]:
    """Records of the only round."""
    [round_] = rounds(*messages)
    return documents_of(round_, ("u1", "s1"), 7, Splitter(splitter))


def test_a_round_is_what_a_user_said_with_what_followed() -> None:
    """Tool calls and results belong to the round; the next human message begins another."""
    found = rounds(
        SystemMessage("Be brief."),
        HumanMessage("What is mystery(5, 6)?"),
        AIMessage("", tool_calls=CALL),
        ToolMessage("-11", tool_call_id="c1", name="mystery"),
        AIMessage("It is -11."),
        HumanMessage("Thanks!"),
    )
    assert [[line.role for line in round_.lines] for round_ in found] == [["human", "ai", "tool", "ai"], ["human"]]
    assert [round_.open for round_ in found] == [False, True]
    assert found[0].lines[1].text == '[calls mystery({"a": 5, "b": 6})]'


def test_several_human_messages_in_a_row_are_one_input() -> None:
    """As in a chat between people, where one thought comes in pieces."""
    found = rounds(HumanMessage("Hi"), HumanMessage("I moved to Oslo."), AIMessage("When?"))
    assert [len(round_.lines) for round_ in found] == [3]


def test_a_round_goes_on_over_turns_but_not_over_epochs() -> None:
    """Results that come in the next turn belong to the call; after a clear nothing goes on."""
    asked, told = (HumanMessage("5 and 6?"), AIMessage("", tool_calls=CALL)), (AIMessage("-11"),)
    assert len(rounds_of([Segment(asked, AT, 1), Segment(told, AT, 1)], AT)) == 1
    assert len(rounds_of([Segment(asked, AT, 1), Segment(told, AT, 2)], AT)) == 2


def test_what_memories_recalled_is_never_stored_again() -> None:
    """Notes are left out, and so is the frame that a model repeats."""
    note = note_message([Record("My PIN is 1234.")])
    [round_] = rounds(note, HumanMessage("PIN?"), AIMessage(f"You said: {note.text} Right?"))
    assert "1234" not in "".join(line.text for line in round_.lines)


def test_the_same_messages_make_the_same_ids() -> None:
    """With ids and without: a retry finds what it stored."""
    for ids in (("m1", "m2"), (None, None)):
        first, second = (records(HumanMessage("Tea?", id=ids[0]), AIMessage("Yes.", id=ids[1])) for _ in range(2))
        assert [d.id for d in first] == [d.id for d in second]
    same = [HumanMessage("Weather?"), AIMessage("Sun.")], [HumanMessage("Weather?"), AIMessage("Rain.")]
    assert records(*same[0])[0].id != records(*same[1])[0].id


def test_ids_tell_users_and_sessions_apart() -> None:
    """The same words of two users, or in two sessions, are different records."""
    [round_] = rounds(HumanMessage("Tea", id="m1"), AIMessage("Yes", id="m2"))
    places = [("u1", "s1"), ("u2", "s1"), ("u1", "s2"), ('u1", "s1', "x")]
    assert len({documents_of(round_, place, 0, Splitter())[0].id for place in places}) == 4


def test_a_long_round_is_cut_at_sentences_into_pieces_with_its_date_and_speakers() -> None:
    """Every word is in one piece, which ends with a sentence and knows round, date and speaker."""
    text = " ".join(f"word{i}{'.' if i % 20 == 19 else ''}" for i in range(600))
    found = records(HumanMessage(text, name="Ann", id="m1"), AIMessage("Noted.", id="m2"))
    assert len(found) > 3
    assert all(len(d.page_content) <= SIZE + len("Ann: ") for d in found)
    pieces = [d.page_content.removeprefix("Ann: ") for d in found]
    assert " ".join(pieces) == f"{text}\nai: Noted."
    assert all(piece.endswith(".") for piece in pieces)
    assert {d.metadata["round_id"] for d in found} == {found[0].id}
    assert {d.metadata["created_at"] for d in found} == {AT.isoformat()}
    assert all(d.metadata["said"][0][1] == "Ann" for d in found)
    assert [d.metadata["position"] for d in found] == list(range(7, 7 + len(found)))


def test_the_callers_splitter_decides() -> None:
    """Any text splitter of LangChain's."""
    splitter = CharacterTextSplitter(separator=".", chunk_size=20, chunk_overlap=0)
    found = records(HumanMessage("I like tea a lot. I live in Oslo. I own a cat."), splitter=splitter)
    assert len(found) == 3


def test_small_talk_is_known() -> None:
    """Greetings and thanks, in any case; nothing that tells something."""
    for text in ("Thanks!", "ok", "Hi, good morning", "Yes please", "👍", "You're welcome"):
        assert is_small_talk(rounds(HumanMessage(text))[0].lines), text
    for text in ("Thanks for the fish", "42", "I am Bob", "ja"):
        assert not is_small_talk(rounds(HumanMessage(text))[0].lines), text


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 200_000, "<records>", "a: b\nc: d"])
def test_any_text_makes_sound_records(text: str) -> None:
    """Garbage is kept as far as it can be stored; every line is found again where it is said to be."""
    found = records(HumanMessage(text), AIMessage("ok"))
    for record in found:
        record.page_content.encode()
        assert "\x00" not in record.page_content
        assert all(line.text in record.page_content for line in lines_of_document(record))


@given(st.lists(st.tuples(st.sampled_from("hatn"), st.text(min_size=1, max_size=30)), max_size=20))
def test_rounds_hold_everything_once_and_in_order(said: list[tuple[str, str]]) -> None:
    """Property: the lines of all rounds are the messages that say something, in order."""
    kinds = {
        "h": HumanMessage,
        "a": AIMessage,
        "t": lambda text: ToolMessage(text, tool_call_id="c"),
        "n": SystemMessage,
    }
    messages = [kinds[kind](text) for kind, text in said]
    lines = [line for round_ in rounds(*messages) for line in round_.lines]
    wanted = [m for m in messages if m.type != "system" and m.text.replace("\x00", "\ufffd").strip()]
    assert [line.role for line in lines] == [m.type for m in wanted]
