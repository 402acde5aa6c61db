"""Sources for conversations of other packages: langchain-community's histories, LangChain's memories, checkpoints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_memkit.backends.community import DatabaseTable, read_message_file
from langchain_memkit.backends.sqlite.foreign import CheckpointFile, MessageTable
from langchain_memkit.base import Turn, check_id, check_path
from langchain_memkit.errors import ConfigurationError, MessageDecodeError, MissingExtraError
from langchain_memkit.messages.codec import decode_legacy_message
from langchain_memkit.migrate.sources import Conversation, ConversationSource, message_turn, unreadable

__all__ = ["langchain_file_source", "langchain_memory_source", "langchain_sql_source", "langgraph_source"]


@dataclass(frozen=True)
class ThreadSource:
    """Source over the threads of a checkpointer."""

    checkpoints: Any
    channel: str

    def __post_init__(self) -> None:
        import langchain_memkit.backends.langgraph_checkpoints  # noqa: F401  # fails now if an extra is missing

    def size(self) -> None:
        """Return None: messages are counted when a thread is read."""

    def conversations(self) -> Iterator[Conversation]:
        """Iterate over the threads."""
        from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint

        with closing(self.checkpoints.rows()) as rows:
            for thread_id, kind, blob, metadata, older in rows:
                owner, problem = _owner(metadata)
                problems = [problem] if problem else []
                try:
                    state = decode_checkpoint(kind, blob)
                    if self._keeps_differences(state):
                        state["channel_values"][self.channel] = self._replayed(state, older, problems)
                except MessageDecodeError as error:
                    yield Conversation(thread_id, owner, partial(iter, [unreadable(f"thread: {error}")]))
                else:
                    # By id, since an agent with `MessageHistoryMiddleware` may have stored the same messages under
                    # other turns.
                    yield Conversation(thread_id, owner, partial(self._turns, thread_id, state, problems), by_id=True)

    def _keeps_differences(self, state: Any) -> bool:
        """Return whether the channel is a `DeltaChannel`: it was written to, but the checkpoint lacks its value."""
        values = state.get("channel_values") if isinstance(state, dict) else None
        versions = state.get("channel_versions") if isinstance(state, dict) else None
        written = isinstance(versions, dict) and self.channel in versions
        return written and isinstance(values, dict) and self.channel not in values

    def _replayed(self, latest: Any, older: Any, problems: list[str]) -> list[Any]:
        """Rebuild the channel's list from the last checkpoint that holds it whole and the writes since."""
        from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint, replayed

        seed, version = None, None
        steps: list[list[Any]] = []
        for found in older(self.channel):
            if found is None:
                problems.append("a checkpoint that it is built on is gone: what was said before it is not there")
                break
            kind, blob, writes = found
            # `older` goes from the newest checkpoint to the oldest, so the writes are replayed in reverse order of this
            # list.
            steps.append([decode_checkpoint(*write) for write in writes])
            state = decode_checkpoint(kind, blob)
            values = state.get("channel_values") if isinstance(state, dict) else None
            if isinstance(values, dict) and self.channel in values:
                seed, version = values[self.channel], (state.get("channel_versions") or {}).get(self.channel)
                break
        if not any(steps) and version != latest["channel_versions"][self.channel]:
            problems.append(f"no writes of its {self.channel!r} were found (another writes_collection_name?)")
        return replayed(seed, (write for step in reversed(steps) for write in step))

    def _turns(self, thread_id: Any, state: Any, problems: list[str]) -> Iterator[Turn]:
        from langchain_memkit.backends.langgraph_checkpoints import decode_message_of_graph

        for problem in problems:
            yield unreadable(f"thread: {problem}")
        values = state.get("channel_values") if isinstance(state, dict) else None
        stored = values.get(self.channel) if isinstance(values, dict) else None
        if not isinstance(stored, list):
            yield unreadable(f"thread: {self._why_nothing(state)}")
            return
        when = _date(state.get("ts"))
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
        if waiting := _unanswered(messages):
            yield unreadable(f"thread: {waiting} tool calls have no results yet; move it again when they have")

    def _why_nothing(self, state: Any) -> str:
        versions = state.get("channel_versions") if isinstance(state, dict) else None
        if isinstance(versions, dict) and self.channel in versions:
            return f"its {self.channel!r} are no list: nothing is moved"
        return f"its state has no {self.channel!r}"


def _owner(metadata: Any) -> tuple[str, str]:
    """Return the owner of a thread and a problem with it, both empty strings if there is none.

    The owner is the `user_id` of the thread's config, which LangGraph stores with every checkpoint.
    """
    from langchain_memkit.backends.langgraph_checkpoints import decode_checkpoint

    try:
        found = metadata.get("user_id") if isinstance(metadata, dict) else json.loads(metadata).get("user_id")
    except (AttributeError, TypeError, ValueError, RecursionError):
        return "", ""
    try:
        if isinstance(found, (list, tuple)) and len(found) == 2:  # MongoDBSaver stores each value with its type
            found = decode_checkpoint(*found)
        if found is None:
            return "", ""
        is_number = isinstance(found, int) and not isinstance(found, bool)
        return check_id(str(found) if is_number else found, "user_id"), ""
    except (TypeError, ValueError) as error:
        return "", f"moved as nobody's: {error}"


def _unanswered(messages: list[BaseMessage]) -> int:
    """Return the number of tool calls in the last AI message that have no result."""
    answered = {m.tool_call_id for m in messages if isinstance(m, ToolMessage)}
    last = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
    return sum(call.get("id") not in answered for call in last.tool_calls) if last else 0


def _date(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None


SQLITE_URL = re.compile(r"sqlite(\+aiosqlite)?:///(?P<path>[^?]*)")


def langchain_sql_source(
    url_or_path: str | os.PathLike[str],
    table_name: str = "message_store",
    session_id_column: str = "session_id",
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
            return RowSource(DatabaseTable(url_or_path, table_name, session_id_column))
        url_or_path = match["path"]
    return RowSource(MessageTable(url_or_path, table_name, session_id_column))


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
        msg = f"there is no file or folder {found}"
        raise ConfigurationError(msg)
    files = sorted(f for f in found.iterdir() if f.is_file() and f.name[0] != ".") if found.is_dir() else [found]
    return FileSource(files)


def langchain_memory_source(memories: Mapping[str, Any]) -> ConversationSource:
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

    Raises:
        ConfigurationError: `memories` is not a dict, or a value holds no messages.

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
    if not isinstance(memories, Mapping):
        msg = f"memories must be a dict of session ids with what each of them holds, not {type(memories).__name__}"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    for session_id, memory in memories.items():
        if not isinstance(_history_in(memory), list) and not hasattr(_history_in(memory), "messages"):
            msg = (
                f"memories[{session_id!r:.80}] must be a memory with chat_memory, a chat history or a list of "
                f"messages, not {type(memory).__name__}"
            )
            raise ConfigurationError(msg)
    return MemorySource(memories)


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
    if isinstance(url_or_path, str) and url_or_path.startswith(("mongodb://", "mongodb+srv://")):
        try:
            from langchain_memkit.backends.mongodb.inspection import CheckpointCollection
        except ImportError as error:
            msg = f'reading MongoDB needs an extra: pip install "langchain-memkit[mongodb]" ({error.name} is missing)'
            raise MissingExtraError(msg) from error
        collections = CheckpointCollection(url_or_path, database_name, collection_name, writes_collection_name)
        return ThreadSource(collections, channel)
    return ThreadSource(CheckpointFile(url_or_path), channel)


@dataclass(frozen=True)
class RowSource:
    """Source over a table with one message per row."""

    table: MessageTable | DatabaseTable

    def size(self) -> int:
        """Count the rows."""
        return self.table.count()

    def conversations(self) -> Iterator[Conversation]:
        """Iterate over the sessions, each read while the database sends it."""
        with closing(self.table.rows()) as rows:
            for session_id, found in groupby(rows, key=lambda row: row[0]):
                yield Conversation(session_id, "", partial(self._turns, found))

    def _turns(self, rows: Iterable[tuple[Any, Any, Any]]) -> Iterator[Turn]:
        for _, row_id, text in rows:
            try:
                data = json.loads(text) if isinstance(text, (str, bytes)) else text  # JSON columns come as dicts
            except (TypeError, ValueError, RecursionError) as error:
                yield unreadable(f"row {row_id!r:.40}: no JSON ({type(error).__name__})")
            else:
                yield dict_turn(data, ("sql", str(row_id), str(text)), f"row {row_id!r:.40}", None)


@dataclass(frozen=True)
class FileSource:
    """Source over files that each hold a list of messages."""

    files: list[Path]

    def size(self) -> None:
        """Return None: the number is unknown before the files are read."""

    def conversations(self) -> Iterator[Conversation]:
        """Iterate over the files, one session each."""
        seen: dict[str, Path] = {}
        for file in self.files:
            # Files that differ in their endings only would be one session; the first is taken, the others are reported.
            first = seen.setdefault(file.stem, file)
            yield Conversation(file.stem, "", partial(self._turns, file, first))

    def _turns(self, file: Path, first: Path) -> Iterator[Turn]:
        if first != file:
            yield unreadable(f"file {file.name}: left out: {first.name} is the same session")
            return
        found = read_message_file(file)
        for i, item in enumerate(found.items):
            content = json.dumps(item, sort_keys=True)
            yield dict_turn(item, ("file", str(i), content), f"message {i}", found.written_at)
        if found.problem:
            yield unreadable(f"file {file.name}: {found.problem}")


@dataclass(frozen=True)
class MemorySource:
    """Source over memories and histories in this process."""

    memories: Mapping[str, Any]

    def size(self) -> None:
        """Return None: the number is unknown before the memories are read."""

    def conversations(self) -> Iterator[Conversation]:
        """Iterate over the sessions."""
        for session_id, memory in self.memories.items():
            yield Conversation(session_id, "", partial(self._turns, memory))

    def _turns(self, memory: Any) -> Iterator[Turn]:
        if getattr(memory, "moving_summary_buffer", ""):
            yield unreadable("a summary of messages that the memory no longer holds: it is not moved")
        history = _history_in(memory)
        for i, message in enumerate(list(history if isinstance(history, list) else history.messages)):
            where = f"message {i}"
            if not isinstance(message, BaseMessage):
                yield unreadable(f"{where}: a {type(message).__name__}, not a message")
                continue
            name = ("memory", str(i), f"{message.type}:{message.content!r}:{message.id}")
            # A copy, since `message_turn` sets the id.
            yield message_turn(message.model_copy(), name, None, where)


def _history_in(memory: Any) -> Any:
    """Return the object that holds a memory's messages; `ReadOnlySharedMemory` wraps another memory."""
    memory = getattr(memory, "memory", memory)
    return getattr(memory, "chat_memory", memory)


def dict_turn(data: Any, name: tuple[str, str, str], where: str, when: datetime | None) -> Turn:
    """Turn a message in LangChain's dict form into a turn of one message, or into a problem."""
    try:
        message = decode_legacy_message(data)
    except MessageDecodeError as error:
        return unreadable(f"{where}: {error}")
    return message_turn(message, name, when, where)
