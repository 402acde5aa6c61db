"""No text makes a server stand still: whatever a user or a model says, through a chain with all memories."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gatekit.systems import config
from gatekit.texts import ALPHABETS, LONG, SHAPES, all_alphabets, packs, shaped
from gatekit.watch import Taken, watched
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    EntityMemory,
    KeyValueMemory,
    SpacyEntityExtractor,
    SQLiteChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_history_preprocessor,
    create_runnable_with_message_history,
)

PATIENCE = float(os.environ.get("MEMKIT_GATE_PATIENCE", "1"))
STILL, WHOLE = 250 * PATIENCE, 5 * PATIENCE  # ms in which the loop may stand still; s of a turn
SIZES = {"20 kB": 20_000, "100 kB": 100_000}
QUESTION = "What did Ann say of the skeletn songs?"
TITLES = [
    "The Skeleton Songs",
    "Travelling at Night",
    "a",
    "a b",
    "a b a b",
    "aaaaaa aaaaaa",
    "C++",
    "日本の詩",
    "e.g.",
]
PROMPT = ChatPromptTemplate([("system", "Be kind."), MessagesPlaceholder("past"), ("human", "{input}")])

Texts = Iterable[tuple[str, Callable[[], str]]]


class Chat:
    """A chain with a history, a preprocessor and all memories on real files; its model says what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.answer = "Hello!"
        self.histories = SQLiteChatMessageHistory.factory(folder / "chat.db")
        memories = [
            EntityMemory.factory(self.histories, SpacyEntityExtractor()),
            KeyValueMemory([{"title": title, "text": f"About {title}."} for title in TITLES]),
            VectorMemory.factory(self.histories, WordLlamaEmbeddings()),
        ]
        summarizer = RunnableLambda(lambda asked: AIMessage("They talked."))
        self.chain: Any = create_runnable_with_message_history(
            PROMPT | RunnableLambda(lambda prompt: AIMessage(self.answer)),
            self.histories,
            input_messages_key="input",
            history_messages_key="past",
            preprocessor=create_history_preprocessor(summarizer, max_tokens=4000),
            memories=memories,
            on_load_error="raise",
        )

    async def turn(self, user: str, said: str, answer: str = "I see.") -> Taken:
        """One turn, of a user in his only session."""
        self.answer = answer
        return await watched(self.chain.ainvoke({"input": said}, config("s1", user)))

    async def talk(self, texts: Texts) -> dict[str, Taken]:
        """Each text is said by a user and by the model, and then something is asked about it; the worse of both."""
        await self.turn("nobody", "Hello, Ann!")  # spaCy, the table of words and the files are there now
        worst: dict[str, Taken] = {}
        for name, text in texts:
            worst[name] = worse(await self.turn(name, text(), text()), await self.turn(name, QUESTION))
        return worst


@pytest.fixture
def chat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Chat]:
    """New files."""
    caplog.set_level(logging.ERROR, "langchain_memkit")  # what is too long is said in warnings
    gc.collect()
    gc.freeze()  # what rows before this one left in the process: a collection of all of it takes 0.3 s
    yield Chat(tmp_path)
    gc.unfreeze()


def worse(one: Taken, other: Taken) -> Taken:
    """Of each figure the larger one."""
    return Taken(*map(max, zip(one, other, strict=True)))


def told(figure: Callable[..., None], what: str, worst: dict[str, Taken]) -> None:
    """The worst of all texts, named in the output of the test."""
    for name, taken in sorted(worst.items(), key=lambda item: -item[1].still)[:5]:
        still, worked = taken.still * 1000, taken.worked * 1000
        print(f"{what}: {name}: {still:.0f} ms still, {worked:.0f} worked, {taken.whole:.2f} s")
    figure(f"{what}: worked while it does", max(t.worked for t in worst.values()) * 1000, at_most=STILL, unit=" ms")
    figure(f"{what}: loop stands still", max(t.still for t in worst.values()) * 1000, at_most=STILL, unit=" ms")
    figure(f"{what}: turn", max(t.whole for t in worst.values()), at_most=WHOLE, unit=" s")


@pytest.mark.gate(row=22, memkit_only=True, limit=180 * PATIENCE)
@pytest.mark.parametrize("size", SIZES)
def test_no_shape_of_text_stops_the_loop(size: str, chat: Chat, figure: Callable[..., None], nightly: bool) -> None:
    """Tags, links, dates, tables, titles, marks, ...: again and again, as long as that; the longest all at night."""
    names = SHAPES if nightly or SIZES[size] < 50_000 else LONG
    texts = [(name, partial(shaped, name, SIZES[size])) for name in names]
    told(figure, f"{size}, shapes", asyncio.run(chat.talk(texts)))


@pytest.mark.gate(row=22, memkit_only=True, limit=7200)  # so long at night
@pytest.mark.parametrize("size", SIZES)
def test_no_alphabet_stops_the_loop(size: str, chat: Chat, figure: Callable[..., None], nightly: bool) -> None:
    """Texts of one to three characters, in order and at random, several in a text: some of them, at night all."""
    alphabets = all_alphabets(3 if SIZES[size] < 50_000 else 2) if nightly else ALPHABETS
    told(figure, f"{size}, alphabets", asyncio.run(chat.talk(packs(alphabets, SIZES[size]).items())))


@pytest.mark.gate(row=22, memkit_only=True)
def test_a_message_that_stopped_a_server(chat: Chat, figure: Callable[..., None]) -> None:
    """6,000 characters without a space, of which spaCy's tokenizer took 15 seconds."""
    text = "Hello, " + "_." * 3000
    told(figure, "'_.' * 3000", asyncio.run(chat.talk([("Ann", lambda: text)])))


@pytest.mark.gate(row=22, memkit_only=True, limit=120 * PATIENCE)
def test_one_user_who_says_all_of_it(chat: Chat, figure: Callable[..., None]) -> None:
    """The worst shapes in one session, twice: what was said before makes no turn slow."""

    async def talk() -> dict[str, Taken]:
        await chat.turn("nobody", "Hello, Ann!")
        said = [(name, shaped(name, 20_000)) for name in LONG * 2]
        return {f"{name}, {i}": await chat.turn("all", text, text) for i, (name, text) in enumerate(said)}

    told(figure, "all in one session", asyncio.run(talk()))
