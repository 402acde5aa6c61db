"""What a model is asked."""

from __future__ import annotations

import pytest
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.retrievers.rewriter import QuestionPrompt
from testkit.memories import HOSTILE_TEXTS

TALK = [(f"Question {i}?", f"Answer {i}.") for i in range(5)]


def test_past_questions_come_oldest_first_and_quoted() -> None:
    """The article's instruction, the questions without the answers, the latest one last."""
    prompt = QuestionPrompt(None)
    (message,) = prompt.build("And now?", prompt.recent(TALK, 3, 1000))
    assert "MUST return it completely unchanged" in message.text
    assert "Answer 4" not in message.text
    assert message.text.index("> Question 2?") < message.text.index("> Question 4?") < message.text.index("> And now?")
    assert "Question 1?" not in message.text


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_what_was_said_cannot_end_the_frame(text: str) -> None:
    """Every line of it is quoted, and the frame is closed once."""
    (message,) = QuestionPrompt(None).build(text, [(text, None)])
    assert message.text.count("</messages>") == 1
    frame = message.text.partition("<messages>\n")[2].partition("\n</messages>")[0].split("\n")
    assert all(line.startswith("> ") for line in frame[1:])


def test_tokens_are_bounded() -> None:
    """Older questions are left out; of a last one that is too long the beginning is given."""
    prompt = QuestionPrompt(None)
    assert prompt.recent(TALK, 3, 20) == [("Question 3?", None), ("Question 4?", None)]
    assert prompt.recent([("word " * 1000, None)], 3, 10) == [("word " * 8, None)]


def test_templates() -> None:
    """Messages with answers under `chat_history`, text under `questions`; braces in values mean nothing."""
    chat = QuestionPrompt(
        ChatPromptTemplate.from_messages(
            [("system", "Rewrite."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
        )
    )
    turns = chat.recent(TALK, 2, 1000)
    texts = [m.text for m in chat.build("And {x}?", turns).to_messages()]
    assert texts == ["Rewrite.", "Question 3?", "Answer 3.", "Question 4?", "Answer 4.", "And {x}?"]
    text = QuestionPrompt(PromptTemplate.from_template("{questions} | {input}"))
    assert text.build("Why?", text.recent(TALK, 2, 1000)).to_string() == "Question 3?\nQuestion 4? | Why?"
    assert QuestionPrompt("Make it whole.").build("Why?", TALK)[0].text.startswith("Make it whole.")


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "  ",
        "Rewrite {input}",
        PromptTemplate.from_template("{input}"),
        PromptTemplate.from_template("{questions}"),
        PromptTemplate.from_template("{input} {questions} {other}"),
        7,
    ],
)
def test_wrong_prompts(prompt: object) -> None:
    """Neither an instruction nor a template that takes what is needed."""
    with pytest.raises(ConfigurationError, match="prompt"):
        QuestionPrompt(prompt)  # type: ignore[arg-type]
