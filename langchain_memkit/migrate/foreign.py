"""Sources for conversations of other packages: langchain-community's histories, LangChain's memories, checkpoints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_memkit._histories import to_messages
from langchain_memkit.backends.community import DatabaseTable, read_message_file
from langchain_memkit.backends.sqlite.inspection import MessageTable, Older, checkpoints_in
from langchain_memkit.base import Turn, check_id, check_path
from langchain_memkit.errors import ConfigurationError, MessageDecodeError, required_extra
from langchain_memkit.messages.codec import decode_legacy_message
from langchain_memkit.migrate.sources import Conversation, ConversationSource, message_turn, unreadable, utc_date

SQLITE_URL = re.compile(r"sqlite(\+aiosqlite)?:///(?P<path>[^?]*)")


def langchain_sql_source(
    url_or_path: str | os.PathLike[str], table_name: str = "message_store", session_id_column: str = "session_id"
) -> ConversationSource:
    """Open the table of langchain-community's `SQLChatMessageHistory` as a source for `migrate`. Read-only.

    Args:
        url_or_path: A SQLite file, or the URL that the history was given (extra `sql`, and the database's driver).
        table_name: The table.
        session_id_column: The column of session ids.

    Returns:
        A source: rows in the order of their ids, grouped into turns. Messages without an id get one that is the same
        each time.

    Raises:
        ConfigurationError: Raised when it is read: there is no such file, table or column.
        HistoryReadError: Raised when it is read: the database fails.

    Example:
        >>> import sqlite3, tempfile
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.migrate import migrate
        >>> old = sqlite3.connect(f"{tempfile.mkdtemp()}/chat.db")
        >>> file = old.execute("PRAGMA database_list").fetchone()[2]
        >>> _ = old.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)")
        >>> row = '{"type": "human", "data": {"content": "hello"}}'
        >>> _ = old.execute("INSERT INTO message_store (session_id, message) VALUES ('s1', ?)", (row,))
        >>> old.commit()
        >>> old.close()
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> print(migrate(langchain_sql_source(file), histories, progress=False))
        moved 1 messages in 1 turns of 1 sessions; 0 skipped
    """
    if isinstance(url_or_path, str) and "://" in url_or_path:
        match = SQLITE_URL.fullmatch(url_or_path)
        if match is None:
            return _rows_source(DatabaseTable(url_or_path, table_name, session_id_column))
        url_or_path = match["path"]
    return _rows_source(MessageTable(url_or_path, table_name, session_id_column))


def langchain_file_source(path: str | os.PathLike[str]) -> ConversationSource:
    """Open the files of langchain-community's `FileChatMessageHistory` as a source for `migrate`.

    Args:
        path: One file, or a folder of them; a file's name without its ending is the session.

    Returns:
        A source; from a truncated file it reads the complete messages, and reports the damage.

    Raises:
        ConfigurationError: There is no such file or folder.

    Example:
        >>> import tempfile
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.migrate import migrate
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "s1.json").write_text('[{"type": "human", "data": {"content": "hello"}}]')
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> print(migrate(langchain_file_source(folder), histories, progress=False))
        moved 1 messages in 1 turns of 1 sessions; 0 skipped
        >>> [message.content for message in histories("s1").messages]
        ['hello']
    """
    found = Path(check_path(path))
    if not found.exists():
        raise ConfigurationError(f"there is no file or folder {found}")
    files = sorted(f for f in found.iterdir() if f.is_file() and f.name[0] != ".") if found.is_dir() else [found]
    return ConversationSource(partial(_of_files, files))


def langchain_memory_source(memories: Mapping[str, object]) -> ConversationSource:
    """Use LangChain's memories and chat histories as a source for `migrate`.

    Use it for memories that live in a process: langchain-classic's `ConversationBufferMemory` and its family,
    LangChain's `InMemoryChatMessageHistory`, or any other chat history. A message without an id gets one made from its
    position and content, so that a second run stores nothing twice, unlike `add_messages`. Migrate a memory that drops
    its oldest messages before it does so again, since messages at new positions count as other messages.

    Args:
        memories: For each session id, a memory with `chat_memory`, a chat history, or a list of messages.

    Returns:
        A source: the messages grouped into turns, oldest first. They have no owner, unless `migrate` is given
        `user_id`.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.migrate import migrate
        >>> source = langchain_memory_source({"s1": [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]})
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> for _ in range(2):
        ...     report = migrate(source, histories, progress=False)
        >>> [message.content for message in histories("s1").messages]
        ['My name is Nemo.', 'Hello Nemo.']
    """
    read = {session_id: partial(_of_memory, memory) for session_id, memory in memories.items()}
    return ConversationSource(lambda: (Conversation(session_id, "", turns) for session_id, turns in read.items()))


def langgraph_source(
    url_or_path: str | os.PathLike[str],
    *,
    database_name: str = "checkpointing_db",
    collection_name: str = "checkpoints",
    writes_collection_name: str = "checkpoint_writes",
    channel: str = "messages",
) -> ConversationSource:
    """Open LangGraph's checkpoints as a source for `migrate` (extra `langgraph`). Read-only.

    Each thread is a session; a `user_id` in its config is its owner. The messages in the latest checkpoint of the
    thread's root namespace are migrated, without those that were summarised away before.

    Args:
        url_or_path: A `mongodb://` URI (langgraph-checkpoint-mongodb) or a SQLite file (langgraph-checkpoint-sqlite).
        database_name: MongoDB database.
        collection_name: MongoDB collection of the checkpoints.
        writes_collection_name: MongoDB collection of the writes between checkpoints, where a `DeltaChannel` keeps its
            messages.
        channel: The key of the graph's state that holds the messages.

    Returns:
        A source. Messages keep their ids, so that an agent with `MessageHistoryMiddleware` recognises them; those that
        have none get one made from the thread and their position in it, the same each time.

    Raises:
        MissingExtraError: `ormsgpack` is not installed, or for MongoDB `pymongo`.
        ConfigurationError: Raised when it is read: there is no such file, or it holds no checkpoints.
        HistoryReadError: Raised when it is read: the database fails.

    Example:
        ```python
        migrate(langgraph_source("checkpoints.sqlite"), SQLiteChatMessageHistory.factory("memkit.db"))
        ```
    """
    import langchain_memkit.backends.langgraph_checkpoints  # noqa: F401  # fails now if an extra is missing

    if isinstance(url_or_path, str) and url_or_path.startswith(("mongodb://", "mongodb+srv://")):
        with required_extra("mongodb", "reading MongoDB"):
            from langchain_memkit.backends.mongodb import inspection
        names = (url_or_path, database_name, collection_name, writes_collection_name)
        # No partial: its repr, which is part of the source's, would show the password.
        return ConversationSource(partial(_of_threads, lambda: inspection.checkpoints_in(*names), channel))
    return ConversationSource(partial(_of_threads, partial(checkpoints_in, Path(check_path(url_or_path))), channel))


# -- rows and files


def _rows_source(table: MessageTable | DatabaseTable) -> ConversationSource:
    """Return a source over a table with one message per row, each session read while the database sends it."""

    def conversations() -> Generator[Conversation, None, None]:
        with closing(table.rows()) as rows:
            for session_id, found in groupby(rows, key=lambda row: row[0]):
                yield Conversation(session_id, "", partial(_of_rows, found))

    return ConversationSource(conversations, table.count)


def _of_rows(rows: Iterable[tuple[object, object, object]]) -> Iterator[Turn]:
    for _, row_id, text in rows:
        where = f"row {row_id!r:.40}"
        try:
            data = json.loads(text) if isinstance(text, (str, bytes)) else text  # JSON columns come as dicts
        except (TypeError, ValueError, RecursionError) as error:
            yield unreadable(f"{where}: no JSON ({type(error).__name__})")
        else:
            yield _dict_turn(data, ("sql", str(row_id), str(text)), where, None)


def _of_files(files: list[Path]) -> Generator[Conversation, None, None]:
    seen: dict[str, Path] = {}
    for file in files:
        # Files that differ in their endings only would be one session; the first is taken, the others are reported.
        first = seen.setdefault(file.stem, file)
        if first == file:
            yield Conversation(file.stem, "", partial(_of_file, file))
        else:
            problem = unreadable(f"file {file.name}: left out: {first.name} is the same session")
            yield Conversation(file.stem, "", partial(iter, [problem]))


def _of_file(file: Path) -> Iterator[Turn]:
    found = read_message_file(file)
    for i, item in enumerate(found.items):
        yield _dict_turn(item, ("file", str(i), json.dumps(item, sort_keys=True)), f"message {i}", found.written_at)
    if found.problem:
        yield unreadable(f"file {file.name}: {found.problem}")


def _dict_turn(data: object, name: tuple[str, str, str], where: str, when: datetime | None) -> Turn:
    """Turn a message in LangChain's dict form into a turn of one message, or into a problem."""
    try:
        return message_turn(decode_legacy_message(data), name, when, where)
    except MessageDecodeError as error:
        return unreadable(f"{where}: {error}")


# -- memories and histories in this process


def _of_memory(memory: Any) -> Iterator[Turn]:
    if getattr(memory, "moving_summary_buffer", ""):
        yield unreadable("a summary of messages that the memory no longer holds: it is not moved")
    memory = getattr(memory, "memory", memory)  # `ReadOnlySharedMemory` wraps another memory
    history = getattr(memory, "chat_memory", memory)
    if not isinstance(history, list) and not hasattr(history, "messages"):
        msg = f"a {type(memory).__name__} holds no messages: pass its memories one by one, or their chat histories"
        raise ConfigurationError(msg)
    for i, given in enumerate(list(history if isinstance(history, list) else history.messages)):
        try:
            [message] = to_messages([given], "a history")
        except ConfigurationError:
            yield unreadable(f"message {i}: a {type(given).__name__}, not a message")
            continue
        name = ("memory", str(i), f"{message.type}:{message.content!r}:{message.id}")
        yield message_turn(message.model_copy(), name, None, f"message {i}")  # a copy, since this sets the id


# -- LangGraph's checkpoints


Threads: TypeAlias = Callable[[], Generator[tuple[object, object, object, object, Older], None, None]]
"""Reads the latest checkpoints: thread id, type, checkpoint, metadata, and a reader of the thread's earlier ones."""


def _of_threads(rows_of: Threads, channel: str) -> Generator[Conversation, None, None]:
    from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint

    with closing(rows_of()) as rows:
        for thread_id, kind, blob, metadata, older in rows:
            owner, problems = _owner(metadata)
            try:
                state = decode_checkpoint(kind, blob)
                values, versions = _parts(state)
                # A `DeltaChannel`: the channel was written to, but the checkpoint lacks its value.
                if channel in versions and isinstance(state.get("channel_values"), dict) and channel not in values:
                    values[channel] = _replayed(channel, versions[channel], older, problems)
            except MessageDecodeError as error:
                yield Conversation(thread_id, owner, partial(iter, [unreadable(f"thread: {error}")]))
            else:
                # By id, since an agent with `MessageHistoryMiddleware` may have stored the same messages under other
                # turns.
                turns = partial(_of_thread, thread_id, channel, state, problems)
                yield Conversation(thread_id, owner, turns, by_id=True)


def _parts(state: object) -> tuple[dict[str, object], dict[str, object]]:
    """Return the values of a checkpoint's channels, and their versions, both empty where they are no dicts."""
    found = [state.get(name) if isinstance(state, dict) else None for name in ("channel_values", "channel_versions")]
    values, versions = (part if isinstance(part, dict) else {} for part in found)
    return values, versions


def _replayed(channel: str, latest: object, older: Older, problems: list[str]) -> list[object]:
    """Rebuild the channel's list from the last checkpoint that holds it whole and the writes since."""
    from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint, replayed

    seed, version = None, None
    steps: list[list[object]] = []
    for found in older(channel):
        if found is None:
            problems.append("a checkpoint that it is built on is gone: what was said before it is not there")
            break
        kind, blob, writes = found
        # `older` goes from the newest to the oldest, so the writes are replayed in reverse order of this list.
        steps.append([decode_checkpoint(*write) for write in writes])
        values, versions = _parts(decode_checkpoint(kind, blob))
        if channel in values:
            seed, version = values[channel], versions.get(channel)
            break
    if not any(steps) and version != latest:
        problems.append(f"no writes of its {channel!r} were found (another writes_collection_name?)")
    return replayed(seed, (write for step in reversed(steps) for write in step))


def _of_thread(thread_id: object, channel: str, state: Any, problems: list[str]) -> Iterator[Turn]:
    from langchain_memkit.backends.langgraph_checkpoints import decode_message_of_graph

    for problem in problems:
        yield unreadable(f"thread: {problem}")
    values, versions = _parts(state)
    stored = values.get(channel)
    if not isinstance(stored, list):
        why = "are no list: nothing is moved" if channel in versions else ""
        yield unreadable(f"thread: its {channel!r} {why}" if why else f"thread: its state has no {channel!r}")
        return
    when = utc_date(state.get("ts"))
    messages: list[BaseMessage] = []
    for i, value in enumerate(stored):
        try:
            message, lost = decode_message_of_graph(value)
        except MessageDecodeError as error:
            yield unreadable(f"message {i}: {error}")
            continue
        if message.additional_kwargs.get("lc_source") == "summarization":
            yield unreadable(f"message {i}: a summary of SummarizationMiddleware; what it stands for is not there")
            continue
        messages.append(message)
        name = ("graph", message.id, "") if message.id else ("graph", f"{i}:{message!r}", str(thread_id))
        yield message_turn(message, name, when, f"message {i}", lost)
    answered = {m.tool_call_id for m in messages if isinstance(m, ToolMessage)}
    last = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
    if waiting := sum(call.get("id") not in answered for call in last.tool_calls) if last else 0:
        yield unreadable(f"thread: {waiting} tool calls have no results yet; move it again when they have")


def _owner(metadata: Any) -> tuple[str, list[str]]:
    """Return a thread's owner, the `user_id` of its config (an empty string for none), and what is wrong with it."""
    from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint

    found = None
    with suppress(AttributeError, TypeError, ValueError, RecursionError):
        found = (metadata if isinstance(metadata, dict) else json.loads(metadata)).get("user_id")
    try:
        if isinstance(found, (list, tuple)) and len(found) == 2:  # MongoDBSaver stores each value with its type
            found = decode_checkpoint(*found)
        if found is None:
            return "", []
        is_number = isinstance(found, int) and not isinstance(found, bool)
        return check_id(str(found) if is_number else found, "user_id"), []
    except (TypeError, ValueError) as error:
        return "", [f"moved as nobody's: {error}"]
