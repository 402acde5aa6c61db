"""What memories hand to parsers and models of others is bounded, whoever wrote the text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import EntityMemory, KeyValueMemory, SQLiteChatMessageHistory, VectorMemory, WordLlamaEmbeddings
from langchain_memkit.base import Mention
from langchain_memkit.memories.entity.memory import read_answer
from langchain_memkit.memories.entity.mentions import NAMED, read_mentions
from langchain_memkit.messages.text import MESSAGE, QUESTION, WORD, WORDS
from langchain_memkit.testing._styles import call_async, call_sync

Call = Callable[..., Any]
LONG = [HumanMessage("Nemo swims. " + "a." * 200_000), AIMessage("_." * 200_000)]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Iterator[Call]:
    """`call(memory, "load", ...)` in both styles."""
    if request.param == "sync":
        yield call_sync
        return
    with asyncio.Runner() as runner:
        yield lambda target, name, *args, **kwargs: runner.run(call_async(target, name, *args, **kwargs))


def test_an_extractor_is_given_ten_thousand_words(call: Call) -> None:
    """Of a question and of a message; what comes first is found."""
    given: list[str] = []

    def extract(text: str) -> list[Mention]:
        given.append(text)
        return [Mention("Nemo", "PERSON", i, i + 4) for i in [text.find("Nemo")] if i >= 0]

    memory = EntityMemory(SQLiteChatMessageHistory.factory(":memory:"), extract, "s1", user_id="u1")
    call(memory, "save", LONG)
    [note] = call(memory, "load", LONG[0].text)
    assert "Nemo swims." in note.text
    assert [len([*WORD.finditer(text)]) for text in given] == [WORDS] * 3
    assert len(given[2]) <= QUESTION


def test_an_embedder_is_given_the_beginning_of_a_question(call: Call, tmp_path: Path) -> None:
    """And of a message no more than 100,000 characters, with the overlap of its parts."""
    asked: list[str] = []
    stored: list[str] = []

    class Noting(WordLlamaEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            asked.append(text)
            return super().embed_query(text)

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            stored.extend(texts)
            return super().embed_documents(texts[:1]) * len(texts)

    histories = SQLiteChatMessageHistory.factory(tmp_path / "v.db")
    memory = VectorMemory(histories, Noting(), "s1", user_id="u1")
    call(memory, "save", [HumanMessage(" ".join(f"tea{i}" for i in range(30_000))), AIMessage("I see.")])
    assert MESSAGE < sum(map(len, stored)) < 1.3 * MESSAGE
    asked.clear()
    call(memory, "load", "tea " * 50_000)
    assert [len(text) for text in asked] == [QUESTION]


def test_titles_are_looked_for_in_the_beginning(call: Call) -> None:
    """Of a question, and of a message of the past."""
    memory = KeyValueMemory({"The Skeleton Songs": "Poems."})
    before, after = "x " * 9_000 + "The Skeleton Songs", "x " * 11_000 + "The Skeleton Songs"
    assert [len(call(memory, "load", text)) for text in (before, after)] == [1, 0]


def test_names_without_places_are_looked_for_once() -> None:
    """An extractor that returns the same name for each of its places is given these places once."""
    text = "Nemo " * 1000
    spots = read_mentions(["Nemo"] * 1000, text)
    assert len(spots) == NAMED
    assert len({spot.start for spot in spots}) == NAMED
    others = read_mentions([f"name{i}" for i in range(2 * NAMED)], " ".join(f"name{i}" for i in range(2 * NAMED)))
    assert len(others) == NAMED


@pytest.mark.parametrize("blank", [" ", "\t", "\u3000"])
def test_descriptions_with_long_blanks(blank: str) -> None:
    """A line that holds nothing but a number and blanks is none, and blanks around a description are not its own."""
    blanks = blank * 50_000
    assert read_answer(f"1. a{blanks}b\n2.{blanks}\n{blanks}3) Likes tea.{blanks}\n9999999. no", 3) == {3: "Likes tea."}


def test_a_title_of_twenty_thousand_characters(call: Call) -> None:
    """It is found as it is written, and no typos are looked for in it: that takes the square of its length."""
    title = "the skeleton songs of the sea " * 600
    memory: Any = KeyValueMemory({title: "Poems.", "Moby-Dick": "A whale."})
    assert [hit.kind for hit in call(memory, "match", title)] == ["exact"]
    assert call(memory, "match", title.replace("skeleton", "skeletn", 1)) == []
    assert [hit.kind for hit in call(memory, "match", "moby dikc")] == ["fuzzy"]


def test_a_loop_goes_on_while_a_thread_reads_a_long_text() -> None:
    """The memories of a factory share what was read: who waits for it waits in a thread, and the loop does not."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    entities = EntityMemory.factory(histories, lambda text: [Mention("Nemo", "PERSON", 0, 4)])
    memory = entities("s1", "u1")
    memory.save([HumanMessage("Nemo swims.")])
    lock = memory._core.log.lock

    async def turn() -> tuple[Any, Any]:
        with lock:  # as the thread of another turn does
            loading = asyncio.create_task(memory.aload("Who is Nemo?"))
            saving = asyncio.create_task(entities("s2", "u2").asave([HumanMessage("Nemo sleeps.")]))
            for _ in range(100):  # the loop runs, and they wait
                await asyncio.sleep(0)
            assert not loading.done()
            assert not saving.done()
        return await loading, await saving

    [note], nothing = asyncio.run(turn())
    assert "Nemo swims." in note.text
    assert nothing is None
    assert "Nemo sleeps." in entities("s2", "u2").load("Nemo?")[0].text
