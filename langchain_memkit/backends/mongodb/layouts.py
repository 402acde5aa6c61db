"""Collections that other packages began: langchain-mongodb's, and questions with answers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from bson import ObjectId
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict
from pymongo import ASCENDING, IndexModel
from pymongo.errors import BulkWriteError, PyMongoError, ServerSelectionTimeoutError

from langchain_memkit.backends.mongodb.commands import (
    DUPLICATE_KEY,
    Command,
    Runner,
    Settings,
    find_committed,
    is_transient,
    next_try,
    text_of,
    unknown_outcome,
)
from langchain_memkit.backends.mongodb.documents import SHOWN, is_soft_deleted, legacy_filter, legacy_index
from langchain_memkit.backends.mongodb.turns import MongoTurnStore
from langchain_memkit.base import SessionInfo, TokenCounter, Turn
from langchain_memkit.errors import ConfigurationError, MessageDecodeError, MessageEncodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_legacy_message
from langchain_memkit.messages.tokens import count_tokens, counter_name
from langchain_memkit.messages.trimming import turn_starts
from langchain_memkit.stores.history import TurnStore
from langchain_memkit.stores.history_rows import (
    Batch,
    Page,
    PageLimit,
    ReadVersion,
    SessionScope,
    TurnRow,
    read_turn,
    stored_or_conflict,
)

_indexed: set[Any] = set()


def ascending_ids(count: int) -> list[ObjectId]:
    """Make ids for documents that are read in `_id` order: sorted, since the driver's counter wraps to 0 at times."""
    return sorted(ObjectId() for _ in range(count))


def refuse_positions(layout: str, expected_seq: int | None) -> None:
    """Refuse `expected_seq` for a layout whose documents have no positions.

    Raises:
        ConfigurationError: `expected_seq` is given.
    """
    if expected_seq is not None:
        msg = f"layout={layout!r} has no positions, so expected_seq cannot be kept; use layout='turns'"
        raise ConfigurationError(msg)


async def ensure_layout_indexes(store: Runner[Settings], models: list[IndexModel]) -> None:
    """Build the indexes of a layout, once per process and collection, unless `create_index=False`."""
    key = (store.clients.key, store.settings.names, tuple(m.document["name"] for m in models))
    if store.settings.create_index and key not in _indexed:
        await store.there()
        await Command(lambda c: c.create_indexes(models), None)
        _indexed.add(key)


def _insert_many(documents: list[dict[str, Any]], collection: Any) -> Any:
    return collection.insert_many(documents)


async def insert_once(store: Runner[Settings], documents: list[dict[str, Any]], batch: Batch, deadline: float) -> None:
    """Insert documents in order, retrying until all are stored.

    After an unknown outcome the documents are looked up by the ids that they had at the first try.

    Args:
        store: The collection.
        documents: The documents, with `_id`.
        batch: The batch, for errors.
        deadline: By `time.monotonic()`, in seconds.

    Raises:
        HistoryWriteError: The outcome is unknown at the deadline, or the server refused after some were stored.
    """
    pending, begun = list(documents), False
    while pending:
        try:
            if begun:
                query = {"_id": {"$in": [d["_id"] for d in pending]}}
                there = {d["_id"] for d in await find_committed(store, query, ["_id"], batch, deadline)}
                pending = [d for d in pending if d["_id"] not in there]
            if pending:
                await Command(partial(_insert_many, list(pending)), max(deadline - time.monotonic(), 0.1))
            return
        except PyMongoError as error:
            # A duplicate `_id` is our own document, stored by a try that seemed to fail: look up what is missing.
            again = is_transient(error) or _met_itself(error)
            begun = begun or (again and not isinstance(error, ServerSelectionTimeoutError)) or _inserted(error) > 0
            pause = next_try(deadline)
            if not again or pause is None:
                if begun:
                    raise unknown_outcome(store, text_of(error), batch) from error
                raise
        await pause


def _met_itself(error: PyMongoError) -> bool:
    """Return whether the only failures are duplicate ids, of documents that an earlier try stored."""
    failures = error.details.get("writeErrors") or [] if isinstance(error, BulkWriteError) and error.details else []
    return bool(failures) and all(
        f.get("code") == DUPLICATE_KEY and list(f.get("keyPattern") or ()) == ["_id"] for f in failures
    )


def _inserted(error: PyMongoError) -> int:
    details = error.details if isinstance(error, BulkWriteError) else None
    return int((details or {}).get("nInserted", 0))


def is_visible(document: Mapping[str, Any], now: datetime, hidden: bool = False) -> bool:
    """Return whether a document is neither expired nor (unless `hidden`) soft-deleted."""
    expires = document.get("expiresAt")
    return (hidden or not is_soft_deleted(document)) and not (isinstance(expires, datetime) and expires <= now)


MARK = "memkit"  # our field in a row: its `op` and the message's index there; langchain-mongodb ignores it


class LangChainRowStore(MongoTurnStore):
    """Store that reads both turns and langchain-mongodb's rows, as `layout="turns"` does, but writes only rows."""

    layout = "langchain"

    async def setup(self) -> None:
        """Build the indexes for langchain-mongodb's rows."""
        await self.reading(self._ensure())

    async def _ensure(self) -> None:
        key = self.settings.legacy_keys[0]
        order = legacy_index(key, self.settings.index_kwargs)
        ops = IndexModel(
            [(key, ASCENDING), (f"{MARK}.op", ASCENDING)],
            name="memkit_legacy_op",
            partialFilterExpression={f"{MARK}.op": {"$exists": True}},
        )
        await ensure_layout_indexes(self, [order, ops])

    async def append(self, scope: SessionScope, batch: Batch, expected_seq: int | None, origin: ReadVersion) -> int:
        """Insert a row per message; return 0, because rows have no positions.

        Raises:
            ConfigurationError: `expected_seq` is given.
        """
        refuse_positions("langchain", expected_seq)
        documents = self._documents(scope, batch)
        await self.writing(self._append(scope, batch, documents), batch)
        return 0

    async def _append(self, scope: SessionScope, batch: Batch, documents: list[dict[str, Any]]) -> None:
        await self._ensure()
        query = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        query[f"{MARK}.op"] = {"$in": [row.op for row in batch.rows]}
        deadline = time.monotonic() + self.patience
        found = await find_committed(self, query, {MARK: 1}, batch, deadline)
        there = {(d[MARK].get("op"), d[MARK].get("i")) for d in found}
        missing = [d for d in documents if (d[MARK]["op"], d[MARK]["i"]) not in there]
        if missing:
            await insert_once(self, missing, batch, deadline)

    def _documents(self, scope: SessionScope, batch: Batch) -> list[dict[str, Any]]:
        session_id_key, history_key = self.settings.legacy_keys
        documents, position = [], 0
        ids = ascending_ids(len(batch.identified))
        for row in batch.rows:
            for i in range(len(row.messages)):
                message = batch.identified[position]
                documents.append(
                    {
                        "_id": ids[position],
                        session_id_key: scope.session_id,
                        history_key: row_text(message, f"messages[{position}]"),
                        MARK: {"op": row.op, "i": i},
                    }
                )
                position += 1
        return documents

    async def clear(self, scope: SessionScope) -> None:
        """Delete the session's rows; if it has native turns, too, clear them with a tombstone."""
        await self.writing(self._clear(scope))

    async def _clear(self, scope: SessionScope) -> None:
        if await self.head(scope, "local") is not None:
            await self._void(scope, "clear")
            return
        rows = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        await self.retried(lambda c: c.delete_many(rows))


def row_text(message: BaseMessage, path: str) -> str:
    """Encode a message as langchain-mongodb stores it, as a JSON string.

    Args:
        message: The message.
        path: Its name in errors.

    Raises:
        MessageEncodeError: JSON cannot hold it, or it would not decode to an equal message.
    """
    try:
        text = json.dumps(message_to_dict(message))
        same = decode_legacy_message(json.loads(text)) == message
    except (TypeError, ValueError, RecursionError, MessageDecodeError) as error:
        # Other errors may quote the content; a TypeError of JSON only names a class.
        why = f"{error!s:.200}" if isinstance(error, (TypeError, MessageDecodeError)) else type(error).__name__
        text, problem = "", f"cannot be written as a row of langchain-mongodb ({why})"
    else:
        problem = "" if same else "would not come back equal from a row of langchain-mongodb"
    if problem:
        raise MessageEncodeError(path, problem)
    return text


EARLIEST, LATEST = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))  # noqa: DTZ901  # made aware


class PairPosition(NamedTuple):
    """A page position.

    Attributes:
        created_at: Date of the last document read; None among those without a date, which count as the oldest.
        identity: `_id` of the last document read; None at the beginning of the dated or the undated ones.
    """

    created_at: datetime | None
    identity: Any | None


def qa_index_models(user_id_key: str, ttl: float | None) -> list[IndexModel]:
    """Define all indexes of a collection in this layout: order, retries, and expiry if `ttl` (seconds) is given."""
    scope = [(user_id_key, ASCENDING), ("chatId", ASCENDING)]
    models = [
        IndexModel([*scope, ("createdAt", ASCENDING), ("_id", ASCENDING)], name="memkit_qa"),
        IndexModel([*scope, ("op", ASCENDING)], name="memkit_qa_op"),
    ]
    if ttl is not None:
        models.append(IndexModel([("expiresAt", ASCENDING)], expireAfterSeconds=0, name="memkit_qa_ttl"))
    return models


class QAStore(Runner[Settings], TurnStore):
    """Store of question and answer documents, read as turns ordered by (createdAt, _id)."""

    layout = "qa"

    def _filter(self, scope: SessionScope) -> dict[str, Any]:
        return {
            self.settings.user_id_key: {"$eq": scope.user_id},
            "chatId": {"$eq": scope.session_id},
            "question": {"$exists": True},
        }

    # -- set-up

    @property
    def ttl(self) -> float | None:
        """Seconds after which a turn expires; None if it stays."""
        return self.settings.ttl

    async def setup(self) -> None:
        """Build the indexes for order and for retries."""
        await self.reading(self._ensure())

    async def _ensure(self) -> None:
        await ensure_layout_indexes(self, qa_index_models(self.settings.user_id_key, self.settings.ttl))

    # -- reading

    async def page_back(
        self, scope: SessionScope, older: Any | None, limit: int, enough: PageLimit, floor: int = 0
    ) -> Page:
        """Return a page of turns, newest first; `older` is the position that the page before returned."""
        turns, older = await self.reading(self._page(scope, older, -1, limit))
        return Page(turns, 0, 0, None, older)

    async def page_forward(
        self, scope: SessionScope, after: Any | None, limit: int, *, hidden: bool = False
    ) -> tuple[list[Turn], Any | None]:
        """Return a page of turns, oldest first, and the position of the next page.

        Turns have no `seq` here: an `after` that is not such a position begins at the start.
        """
        place = after if isinstance(after, PairPosition) else None
        return await self.reading(self._page(scope, place, 1, limit, hidden))

    async def _page(
        self, scope: SessionScope, at: PairPosition | None, direction: int, limit: int, hidden: bool = False
    ) -> tuple[list[Turn], Any]:
        # Newest first, dated documents come before undated ones; oldest first, after them.
        at = at or PairPosition(LATEST if direction < 0 else None, None)
        undated, beyond = at.created_at is None, "$lt" if direction < 0 else "$gt"
        query = self._filter(scope)
        if undated:
            query["createdAt"] = {"$not": {"$type": "date"}}
            query |= {} if at.identity is None else {"_id": {beyond: at.identity}}
        elif at.identity is None:
            query["createdAt"] = {"$type": "date"}
        else:
            tied = {"createdAt": {"$eq": at.created_at}, "_id": {beyond: at.identity}}
            query["$or"] = [{"createdAt": {beyond: at.created_at}}, tied]
        order = [("_id", direction)] if undated else [("createdAt", direction), ("_id", direction)]
        found = await self.retried(lambda c: c.find(query).sort(order).limit(limit).to_list(), self.settings.timeout)
        now = self.settings.now()
        turns = [qa_turn(d, self.settings.token_counter) for d in found if is_visible(d, now, hidden)]
        if len(found) == limit:
            return turns, PairPosition(None if undated else found[-1]["createdAt"], found[-1]["_id"])
        if undated == (direction > 0):  # dated documents follow undated ones, or the other way round
            return turns, PairPosition(EARLIEST if undated else None, None)
        return turns, None

    async def stored_ids(self, scope: SessionScope, ids: Sequence[str]) -> set[str]:
        """Return which of the ids belong to messages of live documents that we wrote."""
        query = {**self._filter(scope), "messages.id": {"$in": list(ids)}}
        documents = await self.reading(
            self.retried(lambda c: c.find(query, ["messages.id", "isActive", "isDeleted", "expiresAt"]).to_list())
        )
        now = self.settings.now()
        found = [m.get("id") for d in documents if is_visible(d, now) for m in d.get("messages") or ()]
        return set(ids) & {i for i in found if isinstance(i, str)}  # an id that is no valid UTF-8 is stored as a dict

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """Return the user's chats, most recently used first; with `hidden`, soft-deleted documents count as well."""
        match = self._filter(SessionScope(user_id, "")) | ({} if hidden else SHOWN)
        match["chatId"] = {"$type": "string"}
        group = {"_id": "$chatId", "n": {"$sum": 1}, "a": {"$min": "$createdAt"}, "z": {"$max": "$createdAt"}}
        pipeline = [{"$match": match}, {"$group": group}, {"$sort": {"z": -1, "_id": 1}}]
        rows = await self.reading(self.aggregate(pipeline))
        dates = [[row[name] if isinstance(row[name], datetime) else None for name in "az"] for row in rows]
        return [SessionInfo(row["_id"], row["n"], a, z) for row, (a, z) in zip(rows, dates, strict=True)]

    async def owners(self) -> list[str]:
        """Return all users with documents, sorted."""
        key = self.settings.user_id_key
        pipeline: list[dict[str, Any]] = [
            {"$match": {key: {"$type": "string"}, "question": {"$exists": True}}},
            {"$group": {"_id": f"${key}"}},
        ]
        rows = await self.reading(self.aggregate(pipeline))
        return sorted(row["_id"] for row in rows)

    # -- writing

    async def append(self, scope: SessionScope, batch: Batch, expected_seq: int | None, origin: ReadVersion) -> int:
        """Insert a document per turn; return 0, because documents have no positions.

        Raises:
            ConfigurationError: `expected_seq` is given.
        """
        refuse_positions("qa", expected_seq)
        documents = [d for row, messages in batch.parts() for d in self._documents(scope, row, messages)]
        await self.writing(self._append(scope, batch, documents), batch)
        return 0

    async def _append(self, scope: SessionScope, batch: Batch, documents: list[dict[str, Any]]) -> None:
        await self._ensure()
        query = {**self._filter(scope), "op": {"$in": [d["op"] for d in documents]}}
        deadline = time.monotonic() + self.patience
        found = await find_committed(self, query, ["op", "messages", "v"], batch, deadline)
        there = {d["op"]: d for d in found}
        for index, row in enumerate(batch.rows):
            if row.op in there:  # else the row is new, or was split into several documents
                stored_or_conflict(batch, index, read_turn(there[row.op], self.settings.token_counter))
        if missing := [d for d in documents if d["op"] not in there]:
            await insert_once(self, missing, batch, deadline)

    def _documents(self, scope: SessionScope, row: TurnRow, messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
        starts = [*turn_starts(messages), len(messages)]
        documents: list[dict[str, Any]] = []
        ids = ascending_ids(len(starts) - 1)
        for n, (begin, end) in enumerate(pairwise(starts)):
            now = self.settings.now()
            document: dict[str, Any] = {
                "_id": ids[n],
                "question": side_text(messages[begin:end], HumanMessage),
                "response": side_text(messages[begin:end], AIMessage),
                "chatId": scope.session_id,
                self.settings.user_id_key: scope.user_id,
                "isActive": not row.is_deleted,
                "isDeleted": row.is_deleted,
                "createdAt": row.created_at or now,
                "updatedAt": now,
                "op": row.op if len(starts) == 2 else f"{row.op}/{n}",
                "messages": row.messages[begin:end],
                "tokens": row.tokens[begin:end],
                "token_counter": counter_name(self.settings.token_counter),
                "v": FORMAT_VERSION,
            }
            if self.settings.ttl is not None:
                document["expiresAt"] = document["createdAt"] + timedelta(seconds=self.settings.ttl)
            elif row.expires_at is not None:
                document["expiresAt"] = row.expires_at
            documents.append(document)
        return documents

    async def flag(self, scope: SessionScope, turn: int | str, *, deleted: bool) -> bool:
        """Set the flags of the document with this `op` (or `_id`, for documents of other apps); return if it exists."""
        identity = str(turn).removeprefix("qa:")
        by_id = {"_id": ObjectId(identity)} if ObjectId.is_valid(identity) else {"op": {"$eq": turn}}
        query = {**self._filter(scope), **by_id}
        change = {"$set": {"isDeleted": deleted, "isActive": not deleted, "updatedAt": self.settings.now()}}
        result = await self.writing(self.retried(lambda c: c.update_one(query, change)))
        return bool(result.matched_count)

    async def clear(self, scope: SessionScope) -> None:
        """Delete the chat's documents."""
        query = self._filter(scope)
        await self.writing(self.retried(lambda c: c.delete_many(query)))

    async def purge(self, user_id: str) -> dict[str, int]:
        """Delete all documents of the user; return counts of chats and turns."""
        sessions = await self.sessions(user_id)
        query = {k: v for k, v in self._filter(SessionScope(user_id, "")).items() if k != "chatId"}
        result = await self.writing(self.retried(lambda c: c.delete_many(query)))
        return {"sessions": len(sessions), "turns": int(result.deleted_count)}


def side_text(messages: Sequence[BaseMessage], kind: type[BaseMessage]) -> str | None:
    """Return the text of one side of a turn, joined by newlines and valid UTF-8; None if it has none.

    Args:
        messages: The messages of the turn.
        kind: The message class of the side.
    """
    texts = [m.text for m in messages if isinstance(m, kind) and m.text]
    return "\n".join(texts).encode("utf-8", "replace").decode() if texts else None


def qa_turn(document: Mapping[str, Any], counter: TokenCounter | None) -> Turn:
    """Convert a document to a turn.

    Our messages are used if their texts still equal the plain fields, else `question` and `response` are.
    """
    op = str(document.get("op") or f"qa:{document.get('_id')}")
    question, response = document.get("question"), document.get("response")
    created_at = document.get("createdAt")
    date = created_at if isinstance(created_at, datetime) else None
    if "messages" in document:
        own = read_turn({**document, "seq": 0, "epoch": 0, "op": op}, counter)
        if not own.problems and (side_text(own.messages, HumanMessage), side_text(own.messages, AIMessage)) == (
            question,
            response,
        ):
            return own
    turn = Turn(0, 0, op, date, [], [], is_deleted=is_soft_deleted(document))
    for name, value, kind in (("question", question, HumanMessage), ("response", response, AIMessage)):
        if isinstance(value, str):
            turn.messages.append(kind(value))
        elif value is not None:
            turn.problems.append(f"document {document.get('_id')}: {name} is no text")
    turn.tokens.extend(count_tokens(turn.messages, counter))
    return turn
