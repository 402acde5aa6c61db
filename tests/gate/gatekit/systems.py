"""The two systems that the gate measures, behind LangChain's own verbs: memkit, and what its users have today."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableGenerator, RunnableLambda

from langchain_memkit import (
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
)

GetSessionHistory: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """Where conversations are kept: a server and a database of the test's own, or a file."""

    kind: str  # standalone, replica_set, sqlite
    uri: str
    database: str = ""
    hosts: tuple[str, ...] = ()

    def through(self, host: str) -> Place:
        """The same database, reached at one address only."""
        return replace(self, uri=f"mongodb://{host}/?directConnection=true")

    def with_options(self, options: str) -> Place:
        """The same place with more options in its connection string."""
        if self.kind == "sqlite":
            return self
        return replace(self, uri=f"{self.uri}{'&' if '?' in self.uri else '?'}{options}")


class Memkit:
    """langchain-memkit."""

    name = "memkit"
    stores = ("standalone", "replica_set", "sqlite")
    payload = "messages"

    def __init__(self) -> None:
        self._used: set[str] = set()

    def histories(self, place: Place, *, size: int | None = None, **options: Any) -> GetSessionHistory:
        """A `get_session_history(session_id, user_id=None)`."""
        if place.kind == "sqlite":
            return SQLiteChatMessageHistory.factory(place.uri, history_size=size, **_for_sqlite(options))
        self._used.add(place.uri)
        return MongoDBChatMessageHistory.factory(place.uri, place.database, history_size=size, **options)

    def history(self, place: Place, session_id: Any, user_id: Any = None, **options: Any) -> Any:
        """One history, made by the class itself, as an app without users of its own would."""
        if place.kind == "sqlite":
            return SQLiteChatMessageHistory(place.uri, session_id, user_id=user_id, **_for_sqlite(options))
        self._used.add(place.uri)
        return MongoDBChatMessageHistory(place.uri, session_id, place.database, user_id=user_id, **options)

    def chain(self, runnable: Runnable[Any, Any], histories: GetSessionHistory, **options: Any) -> Runnable[Any, Any]:
        """The runnable with a conversation around it."""
        return create_runnable_with_message_history(runnable, histories, **options)

    def sharing(self, place: Place, *, size: int | None = None) -> GetSessionHistory:
        """Histories over one client, where a test makes very many."""
        return self.histories(place, size=size)

    def leave(self, *hosts: str) -> None:
        """Closes this process's clients to a server that is about to end: the exit would wait for it otherwise."""
        for uri in [uri for uri in self._used if any(host in uri for host in hosts)]:
            MongoDBChatMessageHistory(uri, "-").client.close()
            self._used.discard(uri)


def _for_sqlite(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that only a server has."""
    return {k: v for k, v in options.items() if k not in ("create_index", "save_timeout")}


class Peer:
    """langchain-mongodb's history under LangChain's own RunnableWithMessageHistory.

    It knows no users: an app that has them puts both ids into one `SessionId`. Options that it lacks are left out.
    """

    name = "peer"
    stores = ("standalone", "replica_set")
    payload = "History"

    def histories(self, place: Place, *, size: int | None = None, **options: Any) -> GetSessionHistory:
        """As its documentation shows it: a new history for every call."""
        return lambda session_id, user_id=None: self.history(place, session_id, user_id, history_size=size, **options)

    def history(self, place: Place, session_id: Any, user_id: Any = None, **options: Any) -> Any:
        """One history."""
        from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as PeerHistory

        known = {k: v for k, v in options.items() if k in ("create_index", "history_size")}
        return PeerHistory(place.uri, _joined(session_id, user_id), place.database, **known)

    def sharing(self, place: Place, *, size: int | None = None) -> GetSessionHistory:
        """Histories over one client, where a test makes very many."""
        from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as PeerHistory

        client = self.history(place, "warm").client
        return lambda session_id, user_id=None: PeerHistory(
            None, _joined(session_id, user_id), place.database, client=client, create_index=False, history_size=size
        )

    def leave(self, *hosts: str) -> None:
        """Its clients close when they are collected."""
        gc.collect()

    def chain(self, runnable: Runnable[Any, Any], histories: GetSessionHistory, **options: Any) -> Runnable[Any, Any]:
        """The runnable with a conversation around it."""
        from langchain_core.runnables.history import RunnableWithMessageHistory

        keys = [ConfigurableFieldSpec(id=name, annotation=str) for name in signature(histories).parameters]
        nobody: Any = {"configurable": {"user_id": None}}  # unless the call names one
        return RunnableWithMessageHistory(runnable, histories, history_factory_config=keys, config=nobody)


def _joined(session_id: Any, user_id: Any) -> Any:
    """The one id of the peer, as its users make it of two."""
    return session_id if user_id is None else f"{user_id}:{session_id}"


SYSTEMS: dict[str, Any] = {"memkit": Memkit, "peer": Peer}


def config(session_id: Any, user_id: Any = None, turn_id: Any = None) -> Any:
    """The config of a call, with the keys that are given."""
    keys = {"session_id": session_id, "user_id": user_id, "turn_id": turn_id}
    return {"configurable": {k: v for k, v in keys.items() if v is not None}}


def answer_to(messages: Any) -> AIMessage:
    """What the model of the gate says: it repeats the question, so that pairs can be told."""
    last = messages[-1] if isinstance(messages, list) else messages
    return AIMessage(f"re: {last.text if isinstance(last, BaseMessage) else last}")


echo: Runnable[Any, Any] = RunnableLambda(answer_to)


def answering(message: AIMessage) -> Runnable[Any, Any]:
    """A model that always gives this answer, whole or as a stream of one chunk."""

    def transform(inputs: Iterator[Any]) -> Iterator[Any]:
        for _ in inputs:
            pass
        fields = {k: v for k, v in message.__dict__.items() if k in ("content", "additional_kwargs", "tool_calls")}
        fields.pop("tool_calls", None)
        yield AIMessageChunk(**fields)

    async def atransform(inputs: Any) -> Any:
        async for _ in inputs:
            pass
        for chunk in transform(iter([])):
            yield chunk

    return RunnableGenerator(transform, atransform)


def texts(history: Any) -> list[str]:
    """The text of each message."""
    return [message.text for message in history.messages]


def split_turns(said: list[str]) -> list[str]:
    """Questions and answers that do not stand together as question, answer."""
    wrong = []
    i = 0
    while i < len(said):
        if i + 1 < len(said) and said[i + 1] == f"re: {said[i]}":
            i += 2
        else:
            wrong.append(said[i])
            i += 1
    return wrong
