"""Errors and logs never carry what was said: each error is formatted with its causes and searched for stored text."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    CondenseQuestionRetriever,
    EntityMemory,
    KeyValueMemory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.backends.mongodb.layouts import row_text
from langchain_memkit.errors import MemkitError
from langchain_memkit.messages.codec import decode_legacy_message, decode_message
from langchain_memkit.migrate import import_history, langchain_sql_source, migrate
from langchain_memkit.testing import FakeChatModel

SAID = f"my secret is {uuid4().hex}"  # made here, so that no line of source has it
CONFIG = {"configurable": {"session_id": "s1"}}
EMBEDDING = DeterministicFakeEmbedding(size=8)

Provoked = Callable[..., None]


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test does, our loggers do not say it either."""
    with caplog.at_level(logging.DEBUG, "langchain_memkit"):
        yield
    assert SAID not in "".join(r.getMessage() + str(r.exc_text) for r in caplog.records)


@pytest.fixture
def provoked(told_by: Callable[[BaseException], str]) -> Provoked:
    """Calls what fails, and fails itself if nothing is raised or the error tells."""

    def provoke(call: Callable[[], Any], *, surely: bool = True) -> None:
        try:
            result = call()
            if asyncio.iscoroutine(result):
                asyncio.run(result)
        except (MemkitError, ValueError, TypeError) as error:
            text = told_by(error)
            assert SAID not in text, text
        else:
            assert not surely, "nothing was raised"

    return provoke


def test_values_that_are_not_stored(provoked: Provoked) -> None:
    """A hostile value beside what was said, in each field of a message, through each verb of a history."""
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep, SAID]
    moment = type(SAID, (str,), {})(SAID)  # a class that is named by what was said is no case
    values = [object(), float("nan"), deep, {SAID, object}, [SAID, lambda: moment], {1: {"k": print}}]
    history = SQLiteChatMessageHistory(":memory:", "s1")
    for value in values:
        beside = {"said": SAID, "value": value}
        refused = AIMessage([{"type": "text", "text": SAID, "extra": value}])
        left_out = [
            HumanMessage(SAID, additional_kwargs=beside),
            AIMessage(SAID, response_metadata=beside),
            ToolMessage(SAID, tool_call_id="1", artifact=beside),
        ]
        turn: list[BaseMessage] = [*left_out, refused]
        provoked(lambda turn=turn: history.add_messages(turn))  # type: ignore[misc]  # bound now
        provoked(lambda turn=turn: history.aadd_messages(turn))  # type: ignore[misc]  # as above
        history.append_turn(turn[:3])  # which is logged
        for message in turn:
            # in JSON a list may be as deep as it likes
            provoked(lambda message=message: row_text(message, "messages[0]"), surely=value is not deep)  # type: ignore[misc]  # as above
    assert len(history.messages) == 3 * len(values)


DAMAGED: list[Any] = [
    {"role": SAID, "content": SAID},
    {"role": [SAID], "content": SAID},
    {"role": "human", "content": {"said": SAID}},
    {"role": "human", "content": [{"a": SAID}, 7]},
    {"role": "human", "content": SAID, "extra": SAID},
    {"role": "human", "content": SAID, "extra": {"content": SAID}},
    {"role": "human", "content": SAID, "name": {"said": SAID}},
    {"role": "human", "content": {"_memkit": SAID, "value": SAID}},
    {"role": "human", "content": {"_memkit": "int", "value": SAID}},
    {"role": "human", "content": {"_memkit": "datetime", "value": SAID}},
    {"role": "human", "content": {"_memkit": "bytes", "value": SAID}},
    {"role": "human", "content": {"_memkit": "dict", "value": SAID}},
    {"role": "human", "content": {"_memkit": "document", "value": {"page_content": {"said": SAID}}}},
    {"role": "ai", "content": SAID, "tool_calls": SAID},
    {"role": "ai", "content": SAID, "tool_calls": [{"name": [SAID], "args": SAID}]},
    {"role": "ai", "content": SAID, "usage_metadata": {"input_tokens": SAID}},
    {"role": "tool", "content": SAID},
    [SAID],
    SAID,
]


def test_damaged_messages(provoked: Provoked, told_by: Callable[[BaseException], str]) -> None:
    """Of what cannot be decoded, in our form and in LangChain's, the error says where and why, not what."""
    for data in DAMAGED:
        provoked(lambda data=data: decode_message(data))  # type: ignore[misc]  # bound now
        legacy = {"type": data["role"], "data": data} if isinstance(data, dict) else data
        # which takes more fields than ours
        provoked(lambda legacy=legacy: decode_legacy_message(legacy), surely=legacy is data)  # type: ignore[misc]  # as above


def test_damaged_rows(tmp_path: Path, provoked: Provoked) -> None:
    """A history that raises for damaged rows, in all its ways to read, sync and async."""
    file = tmp_path / "chat.db"
    for i, data in enumerate([*DAMAGED, None]):
        history = SQLiteChatMessageHistory(file, f"s{i}", on_corrupt="raise")
        history.add_user_message("hello")
        with sqlite3.connect(file) as connection:
            stored = SAID if data is None else json.dumps([data])
            connection.execute("UPDATE turns SET messages = ? WHERE session_id = ?", (stored, f"s{i}"))
        connection.close()
        provoked(lambda history=history: history.messages)  # type: ignore[misc]  # bound now
        provoked(lambda history=history: history.aget_messages())  # type: ignore[misc]  # as above
        provoked(lambda history=history: history.tail(max_messages=3))  # type: ignore[misc]  # as above


def test_conflicts(provoked: Provoked) -> None:
    """Another turn under the same id, another position, a cleared session."""
    history = SQLiteChatMessageHistory(":memory:", "s1", user_id="u1")
    view = history.view()
    history.append_turn([HumanMessage(SAID)], turn_id="t1")
    other = [HumanMessage(f"{SAID}!")]
    provoked(lambda: history.append_turn(other, turn_id="t1"))
    provoked(lambda: history.aappend_turn(other, turn_id="t1"))
    provoked(lambda: history.append_turn(other, expected_seq=7))
    provoked(lambda: history.aappend_turn(other, expected_seq=7))
    epoch = history.view().epoch
    history.clear()
    provoked(lambda: history.append_turn(other, epoch=epoch, since=view.read_at))
    provoked(lambda: history.aappend_turn(other, epoch=epoch, since=view.read_at))


def test_refusing_file(tmp_path: Path, provoked: Provoked) -> None:
    """A file that refuses writes, and one that is none: histories, key-values and vector memories."""
    refusing, broken = tmp_path / "refusing.db", tmp_path / "broken.db"
    history = SQLiteChatMessageHistory(refusing, "s1")
    history.add_user_message("hello")
    SQLiteKeyValueStore(refusing).mset([("k", {"a": 1})])
    SQLiteChatMessageHistory(refusing, "s2", user_id="u1").add_user_message(SAID)  # which has no vectors yet
    with sqlite3.connect(refusing) as connection:
        for table in ("turns", "key_values", "turn_indexes"):
            for verb in ("INSERT", "UPDATE", "DELETE"):
                connection.execute(
                    f"CREATE TRIGGER no_{table}_{verb} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"
                )
    connection.close()
    broken.write_bytes(SAID.encode() * 1000)
    for file in (refusing, broken):
        history, keys = SQLiteChatMessageHistory(file, "s1"), SQLiteKeyValueStore(file)
        memory = VectorMemory(SQLiteChatMessageHistory.factory(file), EMBEDDING, "s1", user_id="u1")
        calls: list[Callable[[], Any]] = [
            lambda: history.add_messages([HumanMessage(SAID)]),  # noqa: B023  # called below
            lambda: history.aadd_messages([HumanMessage(SAID)]),  # noqa: B023  # as above
            lambda: keys.mset([("k", {"said": SAID})]),  # noqa: B023  # as above
            lambda: keys.amset([("k", {"said": SAID})]),  # noqa: B023  # as above
            lambda: memory.save([HumanMessage(SAID)]),  # noqa: B023  # as above
            lambda: memory.asave([HumanMessage(SAID)]),  # noqa: B023  # as above
        ]
        for call in calls:
            provoked(call)
        if file == broken:
            provoked(lambda: history.messages)  # noqa: B023  # as above
            provoked(lambda: history.aget_messages())  # noqa: B023  # as above
            provoked(lambda: keys.mget(["k"]))  # noqa: B023  # as above
            provoked(lambda: memory.search(SAID))  # noqa: B023  # as above
        else:  # the log is searched when the test ends
            assert [hit.text for hit in memory.search(SAID)] == [f"human: {SAID}"]


def test_key_values_that_are_not_stored(provoked: Provoked) -> None:
    """What a key-value store refuses."""
    keys = SQLiteKeyValueStore(":memory:")
    for value in (object(), float("nan"), [SAID, object()]):
        provoked(lambda value=value: keys.mset([("k", {"said": SAID, "value": value})]))  # type: ignore[misc]  # bound now
        provoked(lambda value=value: keys.amset([("k", {"said": SAID, "value": value})]))  # type: ignore[misc]  # as above
    provoked(lambda: keys.mset([("k", SAID)]))  # type: ignore[list-item]  # on purpose


def test_entries(tmp_path: Path, provoked: Provoked) -> None:
    """Key-values that are malformed, given and read from files."""
    wrong: list[Any] = [
        [SAID],
        [{"title": "t", "text": {"said": SAID}}],
        {"t": {"said": SAID}},
        {"t": {"text": SAID, "source": [SAID]}},
        {"t": {"text": SAID, "aliases": [[SAID]]}},
        [{"title": [SAID], "text": SAID}],
        SAID,
    ]
    for entries in wrong:
        provoked(lambda entries=entries: KeyValueMemory(entries))  # type: ignore[misc]  # bound now
    for name, text in (("a.txt", f"{SAID}\n"), ("b.json", f'{{"a": "{SAID}"')):
        (tmp_path / name).write_text(text)
        provoked(lambda name=name: KeyValueMemory.from_file(tmp_path / name))  # type: ignore[misc,attr-defined]  # as above


def test_input_and_output_of_chains(provoked: Provoked) -> None:
    """What is no message, given to a chain and returned by one."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    wrong: list[Any] = [[(SAID, SAID)], [{"said": SAID}], [7, SAID], {"a": SAID, "b": SAID}, 7]
    for value in wrong:
        provoked(lambda value=value: chat.invoke(value, CONFIG))  # type: ignore[misc]  # bound now
        provoked(lambda value=value: chat.ainvoke(value, CONFIG))  # type: ignore[misc]  # as above
    outputs: list[Any] = [{SAID}, [SAID, 7], object()]
    for output in outputs:
        odd = create_runnable_with_message_history(RunnableLambda(lambda _, output=output: output), histories)
        provoked(lambda odd=odd: odd.invoke(SAID, CONFIG))  # type: ignore[misc]  # as above
        provoked(lambda odd=odd: odd.ainvoke(SAID, CONFIG))  # type: ignore[misc]  # as above
    odd_answer = AIMessage([{"type": "text", "text": SAID, "odd": object()}])
    odd = create_runnable_with_message_history(RunnableLambda(lambda _: odd_answer), histories)
    provoked(lambda: odd.invoke(SAID, CONFIG))
    provoked(lambda: list(odd.stream(SAID, CONFIG)))
    finder = CondenseQuestionRetriever(retriever=RunnableLambda(lambda _: []), llm=None)
    for past in ([(SAID, SAID)], [{"said": SAID}], [[SAID]], {"said": SAID}):
        given = {"input": SAID, "chat_history": past}
        provoked(lambda given=given: finder.invoke(given), surely=False)  # type: ignore[misc]  # as above
        provoked(lambda given=given: finder.ainvoke(given), surely=False)  # type: ignore[misc]  # as above


def test_parts_of_others_that_fail(tmp_path: Path) -> None:
    """An extractor's or a model's own words are its error's; they stand in no text of ours."""

    def extract(text: str) -> list[Any]:
        raise RuntimeError(text)

    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    memory = EntityMemory.factory(histories, extract)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memory])
    chat.invoke(f"I say that {SAID}.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    assert len(histories("s1", "u1").messages) == 2

    def quoting(given: Any) -> str:
        raise ValueError(str(given))

    summarize = create_history_preprocessor(
        RunnableLambda(quoting), max_tokens=10_000, trigger=("messages", 2), keep=("messages", 1)
    )
    told = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=summarize)
    for _ in range(3):
        told.invoke(f"I say that {SAID}.", CONFIG)  # the log is searched when the test ends


@pytest.mark.parametrize("local", [False, True])
def test_embedders_that_fail(local: bool, caplog: pytest.LogCaptureFixture) -> None:
    """They cost no turn, and what is logged of it has none of their words."""

    class Failing(DeterministicFakeEmbedding):
        is_local: bool = local

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise RuntimeError(" ".join([SAID, *texts]))

    histories = SQLiteChatMessageHistory.factory(":memory:")
    memory = VectorMemory.factory(histories, Failing(size=8))
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memory])
    chat.invoke(f"I say that {SAID}.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    assert len(histories("s1", "u1").messages) == 2
    assert [hit.text for hit in memory("s2", "u1").search("What do I say?")] == [
        f"human: I say that {SAID}.\nai: Noted."
    ]
    assert "RuntimeError" in caplog.text


def test_files_to_import(tmp_path: Path, provoked: Provoked) -> None:
    """Lines that are damaged are reported without what they hold."""
    file = tmp_path / "out.jsonl"
    header = json.dumps({"memkit": "export", "v": 1, "created_at": "2026-01-01T00:00:00+00:00"})
    bad = [{"user_id": None, "session_id": "s1", "op": f"t{i}", "v": 1, "messages": [d]} for i, d in enumerate(DAMAGED)]
    bad += [{"user_id": SAID * 50, "session_id": "s1"}, {"session_id": [SAID]}, {"session_id": "s1", "op": [SAID]}]
    bad += [{"session_id": "s1", "op": "o", "v": SAID, "seq": SAID, "messages": SAID}]
    file.write_text("\n".join([header, *map(json.dumps, bad), f'{{"said": "{SAID}']))
    with SQLiteChatMessageHistory.factory(":memory:") as histories:
        report = import_history(histories, file, progress=False)
        assert len(report.skipped) >= len(bad)
        assert SAID not in repr(report)
        (tmp_path / "no.jsonl").write_text(SAID)
        provoked(lambda: import_history(histories, tmp_path / "no.jsonl", progress=False))
        with sqlite3.connect(tmp_path / "others.db") as connection:
            connection.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)")
            rows = [("s1", SAID), *(("s1", json.dumps({"type": d, "data": d})) for d in DAMAGED)]
            connection.executemany("INSERT INTO message_store (session_id, message) VALUES (?, ?)", rows)
        connection.close()
        moved = migrate(langchain_sql_source(str(tmp_path / "others.db")), histories, progress=False)
        assert len(moved.skipped) == len(rows)
        assert SAID not in repr(moved)
