"""Collections that other packages began: langchain-mongodb's, and questions with answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from operator import methodcaller
from typing import Any, NamedTuple, TypeAlias

from bson import ObjectId
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict
from pymongo import ASCENDING, IndexModel
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

from langchain_memkit.backends.mongodb import commands
from langchain_memkit.backends.mongodb import documents as docs
from langchain_memkit.backends.mongodb.bursts import clock
from langchain_memkit.backends.mongodb.clients import BsonDict
from langchain_memkit.backends.mongodb.commands import details_of, is_transient, next_try, text_of
from langchain_memkit.backends.mongodb.turns import MongoTurnStore
from langchain_memkit.base import SessionInfo, TokenCounter, Turn
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, MessageDecodeError, MessageEncodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, Storable, decode_legacy_message, storable
from langchain_memkit.messages.tokens import count_tokens, counter_name
from langchain_memkit.messages.trimming import turn_starts
from langchain_memkit.stores import history_rows
from langchain_memkit.stores.history_rows import Batch, Page, PageLimit, ReadVersion, SessionScope, TurnPage, TurnRow
from langchain_memkit.stores.sessions import SessionQuery, page_of

Missing: TypeAlias = Callable[[list[BsonDict]], list[BsonDict]]
"""A function from the documents of a batch that are stored to those that are not."""


async def insert_once(
    store: MongoTurnStore, batch: Batch, expected_seq: int | None, query: BsonDict, fields: list[str], missing: Missing
) -> int:
    """Insert documents in order, looking before each try which of them are stored already, until all are.

    `query` and `fields` find the documents of the batch by their `op`; `missing` returns those to insert, given those
    that were found, with the same `_id` each time. It returns 0, because these layouts have no positions.
    """
    if expected_seq is not None:
        msg = f"layout={store.layout!r} has no positions, so expected_seq cannot be kept; use layout='turns'"
        raise ConfigurationError(msg)

    def unknown(reason: str) -> HistoryWriteError:
        msg = f"cannot write to {store.clients.hosts}: {reason}. It may be stored: retry with the same turn_id."
        return HistoryWriteError(msg, maybe_stored=True, **batch.error_context)

    with store.writing(batch):
        await store.ensure()
        deadline, begun = clock() + store.patience, False
        while True:
            try:
                found = await store.committed(query, fields, deadline)
                if found is None:
                    raise unknown("no majority has confirmed it")
                if pending := missing(found):
                    await store.command(methodcaller("insert_many", pending), commands.left_until(deadline))
                return 0
            except PyMongoError as error:
                # A duplicate `_id` is our own document, stored by a try that seemed to fail: look again.
                details = details_of(error)
                failures = [(f.get("code"), *(f.get("keyPattern") or ())) for f in details.get("writeErrors") or ()]
                again = is_transient(error) or set(failures) == {(commands.DUPLICATE_KEY, "_id")}
                begun = begun or (again and not isinstance(error, ServerSelectionTimeoutError))
                begun = begun or details.get("nInserted", 0) > 0
                pause = next_try(deadline)
                if not again or pause is None:
                    if begun:
                        raise unknown(text_of(error)) from error
                    raise
            await pause


MARK = "memkit"  # our field in a row: its `op` and the message's index there; langchain-mongodb ignores it


class LangChainRowStore(MongoTurnStore):
    """Store that reads both turns and langchain-mongodb's rows, as `layout="turns"` does, but writes only rows."""

    layout = "langchain"

    def index_models(self) -> list[IndexModel]:
        """Define the indexes for langchain-mongodb's rows."""
        key, marked = self.settings.legacy_keys[0], {f"{MARK}.op": {"$exists": True}}
        ops = IndexModel([(key, 1), (f"{MARK}.op", 1)], name="memkit_legacy_op", partialFilterExpression=marked)
        return [docs.legacy_index(key, self.settings.index_kwargs), ops]

    def storable(self, messages: Sequence[BaseMessage]) -> Storable:
        """Leave out of the metadata what JSON does not bring back equal, tuples among it."""
        said = storable(messages, row_text, is_json)
        found = super().storable(said.messages)
        return found._replace(left_out=[*said.left_out, *found.left_out])

    async def append(self, scope: SessionScope, batch: Batch, expected_seq: int | None, origin: ReadVersion) -> int:
        """Insert a row per message; return 0, because rows have no positions."""
        session_id_key, history_key = self.settings.legacy_keys
        marks = [{"op": row.op, "i": i} for row in batch.rows for i in range(len(row.messages))]
        texts = [row_text(message, f"messages[{n}]") for n, message in enumerate(batch.identified)]
        # They are read in `_id` order: sorted, since the driver's counter wraps to 0 at times.
        ids = sorted(ObjectId() for _ in marks)
        rows: list[BsonDict] = [
            {"_id": identity, session_id_key: scope.session_id, history_key: text, MARK: mark}
            for identity, text, mark in zip(ids, texts, marks, strict=True)
        ]
        query = docs.legacy_filter(session_id_key, history_key, scope.session_id)
        query[f"{MARK}.op"] = {"$in": [row.op for row in batch.rows]}

        def missing(found: list[BsonDict]) -> list[BsonDict]:
            there = {(d[MARK].get("op"), d[MARK].get("i")) for d in found}
            return [row for row, mark in zip(rows, marks, strict=True) if (mark["op"], mark["i"]) not in there]

        return await insert_once(self, batch, expected_seq, query, [MARK], missing)

    async def clear(self, scope: SessionScope) -> None:
        """Delete the session's rows; if it has native turns, too, clear them with a tombstone."""
        if docs.head_of(await self.sent(self.newest(scope))) is not None:
            await super().clear(scope)
        else:
            await self.delete_many(docs.legacy_filter(*self.settings.legacy_keys, scope.session_id))


def is_json(value: Any, depth: int = 0) -> bool:
    """Return whether a value comes back equal from JSON, however deep it stands."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except Exception:  # noqa: BLE001  # a value's own methods may raise anything
        return False


def row_text(message: BaseMessage, path: str) -> str:
    """Encode a message as langchain-mongodb stores it, in JSON; raise if it would not decode to an equal one."""
    try:
        text = json.dumps(message_to_dict(message))
        if decode_legacy_message(json.loads(text)) == message:
            return text
        problem = "would not come back equal from a row of langchain-mongodb"
    except (TypeError, ValueError, RecursionError, MessageDecodeError) as error:
        # Other errors may quote the content; a TypeError of JSON only names a class.
        why = f"{error!s:.200}" if isinstance(error, (TypeError, MessageDecodeError)) else type(error).__name__
        problem = f"cannot be written as a row of langchain-mongodb ({why})"
    raise MessageEncodeError(path, problem)


class PairPosition(NamedTuple):
    """A page position: date and `_id` of the last document read, among those with a date or those without."""

    dated: bool
    created_at: datetime | None = None
    identity: object = None  # None for the first page


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


class QAStore(MongoTurnStore):
    """Store of question and answer documents, read as turns ordered by (createdAt, _id)."""

    layout = "qa"

    def filter(self, scope: SessionScope) -> BsonDict:
        """Build a filter on the documents of a chat."""
        user = {self.settings.user_id_key: {"$eq": scope.user_id}, "question": {"$exists": True}}
        return {**user, "chatId": {"$eq": scope.session_id}}

    def index_models(self) -> list[IndexModel]:
        """Define the indexes for order, retries and expiry."""
        return qa_index_models(self.settings.user_id_key, self.settings.ttl)

    # -- reading

    async def page_back(self, scope: SessionScope, older: Any, limit: int, enough: PageLimit, floor: int = 0) -> Page:
        """Return a page of turns, newest first; `older` is the position that the page before returned."""
        turns, older = await self._page(scope, older, -1, limit)
        return Page(turns, 0, 0, None, older)

    async def page_forward(self, scope: SessionScope, after: Any, limit: int, *, hidden: bool = False) -> TurnPage:
        """Return a page of turns, oldest first, and the position of the next page.

        Turns have no `seq` here: an `after` that is not such a position begins at the start.
        """
        return await self._page(scope, after if isinstance(after, PairPosition) else None, 1, limit, hidden)

    async def _page(
        self, scope: SessionScope, at: PairPosition | None, direction: int, limit: int, hidden: bool = False
    ) -> tuple[list[Turn], PairPosition | None]:
        # Newest first, dated documents come before undated ones; oldest first, after them.
        at = at or PairPosition(direction < 0)
        query, beyond = self.filter(scope), "$lt" if direction < 0 else "$gt"
        if at.dated and at.identity is not None:
            tied = {"createdAt": {"$eq": at.created_at}, "_id": {beyond: at.identity}}
            query["$or"] = [{"createdAt": {beyond: at.created_at}}, tied]
        else:
            query["createdAt"] = {"$type": "date"} if at.dated else {"$not": {"$type": "date"}}
            query |= {} if at.identity is None else {"_id": {beyond: at.identity}}
        order = [("createdAt", direction)] if at.dated else []
        found = await self.find(query, sort=[*order, ("_id", direction)], limit=limit)
        now = self.settings.now()
        turns = [qa_turn(d, self.settings.token_counter) for d in found if docs.is_shown(d, now, hidden)]
        if len(found) == limit:
            return turns, PairPosition(at.dated, found[-1].get("createdAt"), found[-1]["_id"])
        return turns, PairPosition(not at.dated) if at.dated == (direction < 0) else None

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """Return the user's chats, most recently used first; with `hidden`, soft-deleted documents count as well."""
        match = self.filter(SessionScope(user_id, "")) | {"chatId": {"$type": "string"}}
        match |= {} if hidden else docs.SHOWN
        return page_of(await self.grouped(match, "chatId", "createdAt"), SessionQuery(user_id))

    async def owners(self) -> list[str]:
        """Return all users with documents, sorted."""
        key = self.settings.user_id_key
        match = {key: {"$type": "string"}, "question": {"$exists": True}}
        return sorted(info.session_id for info in await self.grouped(match, key, "createdAt"))

    # -- writing

    async def append(self, scope: SessionScope, batch: Batch, expected_seq: int | None, origin: ReadVersion) -> int:
        """Insert a document per turn; return 0, because documents have no positions."""
        documents = [d for row, messages in batch.parts() for d in self._documents(scope, row, messages)]
        query = {**self.filter(scope), "op": {"$in": [d["op"] for d in documents]}}

        def missing(found: list[BsonDict]) -> list[BsonDict]:
            there = {d["op"]: d for d in found}
            for index, row in enumerate(batch.rows):
                if row.op in there:  # else the row is new, or was split into several documents
                    stored = history_rows.read_turn(there[row.op], self.settings.token_counter)
                    history_rows.stored_or_conflict(batch, index, stored)
            return [d for d in documents if d["op"] not in there]

        return await insert_once(self, batch, expected_seq, query, ["op", "messages", "v"], missing)

    def _documents(self, scope: SessionScope, row: TurnRow, messages: Sequence[BaseMessage]) -> list[BsonDict]:
        starts = [*turn_starts(messages), len(messages)]
        documents: list[BsonDict] = []
        ids = sorted(ObjectId() for _ in starts)  # in order, though the driver's counter wraps to 0 at times
        for n, (begin, end) in enumerate(pairwise(starts)):
            now = self.settings.now()
            document: BsonDict = {
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
            documents.append(document | docs.expiry(row, document["createdAt"], self.settings))
        return documents

    async def flag(self, scope: SessionScope, turn: int | str, *, deleted: bool) -> bool:
        """Set the flags of the document with this `op` (or `_id`, for documents of other apps); return if it exists."""
        identity = str(turn).removeprefix("qa:")
        by_id = {"_id": ObjectId(identity)} if ObjectId.is_valid(identity) else {"op": {"$eq": turn}}
        query = {**self.filter(scope), **by_id}
        change = {"$set": {"isDeleted": deleted, "isActive": not deleted, "updatedAt": self.settings.now()}}
        return bool((await self.sent(lambda c: c.update_one(query, change))).matched_count)

    async def clear(self, scope: SessionScope) -> None:
        """Delete the chat's documents."""
        await self.delete_many(self.filter(scope))

    async def purge(self, user_id: str) -> dict[str, int]:
        """Delete all documents of the user; return counts of chats and turns."""
        sessions, whole = await self.sessions(user_id), self.filter(SessionScope(user_id, ""))
        del whole["chatId"]
        return {"sessions": len(sessions), "turns": await self.delete_many(whole)}


def side_text(messages: Sequence[BaseMessage], kind: type[BaseMessage]) -> str | None:
    """Return the text of one side of a turn, joined by newlines and valid UTF-8; None if it has none."""
    texts = [m.text for m in messages if isinstance(m, kind) and m.text]
    return "\n".join(texts).encode("utf-8", "replace").decode() if texts else None


def qa_turn(document: BsonDict, counter: TokenCounter | None) -> Turn:
    """Convert a document to a turn: our messages if their texts still equal `question` and `response`, else these."""
    op = str(document.get("op") or f"qa:{document.get('_id')}")
    sides: list[tuple[str, type[BaseMessage]]] = [("question", HumanMessage), ("response", AIMessage)]
    own = history_rows.read_turn({**document, "seq": 0, "epoch": 0, "op": op}, counter)
    texts = [side_text(own.messages, kind) for _, kind in sides]
    if "messages" in document and not own.problems and texts == [document.get(name) for name, _ in sides]:
        return own
    turn = Turn(0, 0, op, own.created_at, [], [], is_deleted=own.is_deleted)
    for name, kind in sides:
        value = document.get(name)
        if isinstance(value, str):
            turn.messages.append(kind(value))
        elif value is not None:
            turn.problems.append(f"document {document.get('_id')}: {name} is no text")
    turn.tokens.extend(count_tokens(turn.messages, counter))
    return turn
