"""Real summaries of a real model: what was said at the start is still answered after two compactions.

`make e2e-content`, not part of CI: the model is 1.1 GB and takes minutes. What it says is judged by keywords only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

from langchain_memkit import (
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
    explain_turn,
)

pytestmark = pytest.mark.e2e_content

SMALL_TALK = [
    ("By the way, it has rained here since the morning.", "Rain can be pleasant when one sits inside with some tea."),
    ("I was thinking about learning to play the piano.", "A few minutes of practice every day take you far."),
    ("The neighbours are repairing their roof again.", "Such works often take longer than planned, so be patient."),
    ("Do you think that bicycles will replace cars in towns?", "In dense towns they already carry many short trips."),
    ("I read a long article about the history of paper.", "Paper spread from China along the trade routes."),
    ("What makes a good breakfast in your view?", "Something warm, something fresh, and enough time to eat it."),
    ("My sister is looking for a new flat at the moment.", "Visiting at different hours of the day tells a lot."),
    ("Yesterday the train was late by half an hour.", "That is annoying; leaving earlier may help with connections."),
    ("Is it worth it to repair an old radio?", "If the case is beautiful, then a repair can be a nice project."),
    ("I never understood the rules of cricket.", "Two teams take turns to bat and to bowl; the rest is patience."),
]


class Talk(NamedTuple):
    """A conversation: what is said at its start, and questions with a word that a right answer has."""

    start: list[tuple[str, str]]
    questions: list[tuple[str, str]]


TALKS = {
    "travel": Talk(
        [
            ("Hello, my name is Marisol Quintero. I am planning a trip to Lisbon.", "Nice to meet you, Marisol!"),
            ("My booking reference is KX4471.", "I have noted the booking reference KX4471."),
            ("I am a vegetarian, so please only suggest such restaurants.", "Vegetarian restaurants only, noted."),
        ],
        [
            ("What is my full name?", "marisol"),
            ("What is my booking reference?", "kx4471"),
            ("What kind of restaurants should you suggest to me?", "vegetarian"),
        ],
    ),
    "support": Talk(
        [
            ("I am Tobias Lindqvist and I look after the server heron-07.", "Hello Tobias, how can I help?"),
            ("The budget for its replacement is 1850 euros.", "Understood: 1850 euros for the replacement."),
            ("Please contact me by email, never by phone.", "By email, never by phone."),
        ],
        [
            ("What is the name of the server that I look after?", "heron"),
            ("How many euros is the budget?", "1850"),
            ("By which means should you contact me?", "email"),
        ],
    ),
    "family": Talk(
        [
            ("I'm Ayumi. My daughter Hana has her birthday on the 23rd of May.", "How lovely, a birthday in May!"),
            ("She is allergic to peanuts.", "Then the cake must be free of peanuts."),
            ("We have invited 14 children.", "14 children, that will be a lively day."),
        ],
        [
            ("What is the name of my daughter?", "hana"),
            ("What is my daughter allergic to?", "peanut"),
            ("How many children have we invited?", "14"),
        ],
    ),
}


class Summaries(BaseCallbackHandler):
    """Notes what preprocessors say."""

    def __init__(self) -> None:
        self.covered: list[int] = []
        self.notes: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Notes how many messages the summary covers."""
        if name == "memkit_context":
            self.covered.append(data["summarized"])
            self.notes += data["notes"]


def store(history: Any, exchanges: list[tuple[str, str]]) -> None:
    """Adds turns as an app leaves them."""
    for question, answer in exchanges:
        history.append_turn([HumanMessage(question), AIMessage(answer)])


@pytest.mark.parametrize("name", TALKS)
def test_facts_from_the_start_survive_two_compactions(name: str, model: ChatOpenAI, tmp_path: Path) -> None:
    """Name, number and preference are answered although only the summary can know them."""
    talk, heard = TALKS[name], Summaries()
    preprocessor = create_history_preprocessor(
        model,
        max_tokens=1000,
        trigger=("tokens", 350),
        keep=("tokens", 100),
        store=SQLiteKeyValueStore(tmp_path / "chat.db"),
        timeout=600,
    )
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer briefly, from what you know of the user."), ("placeholder", "{past}"), ("human", "{input}")]
    )
    chat = create_runnable_with_message_history(
        prompt | model, histories, input_messages_key="input", history_messages_key="past", preprocessor=preprocessor
    )
    config: Any = {"configurable": {"session_id": name, "user_id": "u1"}, "callbacks": [heard]}
    history = histories(name, "u1")
    store(history, [*talk.start, *SMALL_TALK])
    chat.invoke({"input": "Tell me one nice thing about rain."}, config)
    store(history, [(f"Again: {question}", answer) for question, answer in SMALL_TALK])
    right = []
    for question, word in talk.questions:
        answer = chat.invoke({"input": question}, config).text
        right.append(word in answer.lower())
        print(f"\n{name}: {question} -> {answer!r} ({'right' if right[-1] else 'WRONG'})")
    seen = explain_turn(chat, {"input": "?"}, config)
    print(*(f"{name}: {m.text}" for m in seen.messages if m.part == "summary"), sep="\n")
    assert not heard.notes
    first, *later = heard.covered
    assert first >= 2 * len(talk.start), "the first turns are summarized"
    assert later[0] > first, "and then others after them"
    assert all(right)
