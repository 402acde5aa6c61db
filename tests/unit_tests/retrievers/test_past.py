"""A conversation as retrieval sees it."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.notes import Record, note_message
from langchain_memkit.preprocessors.prompt import summary_message
from langchain_memkit.retrievers.history import answered_by, as_messages, document_key, is_among, question_answer_pairs


def test_turns_are_questions_with_their_last_answer() -> None:
    """System lines, tools, notes, summaries and greetings are none; images say nothing."""
    calls = [{"name": "f", "args": {}, "id": "1"}]
    messages = [
        SystemMessage("Be brief."),
        AIMessage("Hello! What can I do?"),
        summary_message("They talked.", "0"),
        HumanMessage("When is tea?"),
        AIMessage("Let me look.", tool_calls=calls),
        ToolMessage("17:00", tool_call_id="1"),
        AIMessage("At five."),
        note_message([Record("Tea is nice.")]),
        HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}]),
        AIMessage("A cup."),
        HumanMessage([{"type": "text", "text": "And"}, {"type": "text", "text": " dinner?"}]),
    ]
    assert question_answer_pairs(messages) == [("When is tea?", "At five."), ("", "A cup."), ("And dinner?", None)]


def test_any_form_of_messages() -> None:
    """Pairs, dicts, strings, one message, nothing; what is none is refused by name."""
    assert [m.text for m in as_messages([("human", "a"), {"role": "assistant", "content": "b"}, "c"])] == [
        "a",
        "b",
        "c",
    ]
    assert as_messages(HumanMessage("a")) == [HumanMessage("a")]
    assert as_messages(None) == as_messages([]) == []
    for wrong in (7, {"messages": ["a"]}, [7], [("nobody", "a")], [("When is tea?", "At five.")]):
        with pytest.raises(ConfigurationError, match="chat_history"):
            as_messages(wrong)


def test_documents_of_answers() -> None:
    """By id, else by text; damaged marks say nothing."""
    plain, named = Document("Tea."), Document("Milk.", id="m")
    answers = [
        AIMessage("x", response_metadata={"memkit_documents": marks}) for marks in ([document_key(plain)], 7, [7], "m")
    ]
    keys = answered_by(answers)
    assert is_among(plain, keys)
    assert is_among(Document("Tea.", id="t"), keys)  # the same text, under an id that it did not have
    assert not is_among(named, keys)
    assert is_among(named, answered_by([AIMessage("x", response_metadata={"memkit_documents": ["m"]})]))


def test_newest_answers_count() -> None:
    """What is asked for beside the documents that answered does not grow with the conversation."""
    answers = [AIMessage("x", response_metadata={"memkit_documents": [f"{i}-a", f"{i}-b"]}) for i in range(1000)]
    assert answered_by(answers) == {f"{i}-{name}" for i in range(950, 1000) for name in "ab"}


def test_long_white_space_is_read_in_a_moment() -> None:
    """An answer of a model gone wild costs no quadratic search for citations: it would take minutes."""
    wild = "a" + "\n" * 1_000_000 + " " * 1_000_000 + "[1]"
    assert question_answer_pairs([HumanMessage("q"), AIMessage(wild)])[0][0] == "q"
