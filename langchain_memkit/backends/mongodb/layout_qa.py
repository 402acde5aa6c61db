"""`layout="qa"`: a question and its answer as one document, with flags and dates, as many RAG apps keep them.

`{question, response, chatId, userId, isActive, isDeleted, createdAt, updatedAt}`. Documents of other apps are read as
turns; ours carry `messages` as well, so that tool calls and metadata survive. Where the two disagree, the plain fields
count: somebody edited them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from bson import ObjectId
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pymongo import ASCENDING, IndexModel

from langchain_memkit.backends._history.rows import (
    Batch,
    Enough,
    Origin,
    Page,
    Row,
    Scope,
    read_turn,
    stored_or_conflict,
)
from langchain_memkit.backends.mongodb.commands import Commands
from langchain_memkit.backends.mongodb.documents import SHOWN, is_soft_deleted
from langchain_memkit.backends.mongodb.foreign import ascending_ids, ensure, insert_once, is_shown, refuse_positions
from langchain_memkit.backends.mongodb.settled import known
from langchain_memkit.base import SessionInfo, TokenCounter, Turn
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.messages.counting import count_tokens, counter_name
from langchain_memkit.messages.turns import turn_starts

EARLIEST, LATEST = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))  # noqa: DTZ901  # made aware


class Place(NamedTuple):
    """After which document to go on; `created_at` None: among those without a date, which count as oldest."""

    created_at: datetime | None
    identity: Any | None


def qa_index_models(user_id_key: str, ttl: float | None) -> list[IndexModel]:
    """Every index of a collection of such documents: order, retries, expiry."""
    scope = [(user_id_key, ASCENDING), ("chatId", ASCENDING)]
    models = [
        IndexModel([*scope, ("createdAt", ASCENDING), ("_id", ASCENDING)], name="memkit_qa"),
        IndexModel([*scope, ("op", ASCENDING)], name="memkit_qa_op"),
    ]
    if ttl is not None:
        models.append(IndexModel([("expiresAt", ASCENDING)], expireAfterSeconds=0, name="memkit_qa_ttl"))
    return models


class QAStore(Commands):
    """Question and answer documents as turns, ordered by (createdAt, _id)."""

    layout = "qa"

    def _filter(self, scope: Scope) -> dict[str, Any]:
        return {
            self.settings.user_id_key: {"$eq": scope.user_id},
            "chatId": {"$eq": scope.session_id},
            "question": {"$exists": True},
        }

    # -- set-up

    async def setup(self) -> None:
        """Builds the indexes for order and for retries."""
        await self.reading(self._ensure())

    async def _ensure(self) -> None:
        await ensure(self, qa_index_models(self.settings.user_id_key, self.settings.ttl))

    # -- reading

    async def page_back(self, scope: Scope, older: Any | None, limit: int, enough: Enough, floor: int = 0) -> Page:
        """Turns newest first."""
        turns, older = await self.reading(self._page(scope, older, -1, limit))
        return Page(turns, 0, 0, None, older)

    async def page_forward(
        self, scope: Scope, after: Any | None, limit: int, *, hidden: bool = False
    ) -> tuple[list[Turn], Any | None]:
        """Turns oldest first; positions mean nothing here, so `after` is only where the last page ended."""
        place = after if isinstance(after, Place) else None
        return await self.reading(self._page(scope, place, 1, limit, hidden))

    async def _page(
        self, scope: Scope, at: Place | None, direction: int, limit: int, hidden: bool = False
    ) -> tuple[list[Turn], Any]:
        # newest first begins with dated documents and ends with undated ones; oldest first the other way round
        at = at or Place(LATEST if direction < 0 else None, None)
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
        turns = [qa_turn(d, self.settings.token_counter) for d in found if is_shown(d, now, hidden)]
        if len(found) == limit:
            return turns, Place(None if undated else found[-1]["createdAt"], found[-1]["_id"])
        if undated == (direction > 0):  # the other kind follows
            return turns, Place(EARLIEST if undated else None, None)
        return turns, None

    async def stored_ids(self, scope: Scope, ids: Sequence[str]) -> set[str]:
        """Ids of messages in documents of ours."""
        query = {**self._filter(scope), "messages.id": {"$in": list(ids)}}
        documents = await self.reading(
            self.retried(lambda c: c.find(query, ["messages.id", "isActive", "isDeleted", "expiresAt"]).to_list())
        )
        now = self.settings.now()
        found = [m.get("id") for d in documents if is_shown(d, now) for m in d.get("messages") or ()]
        return set(ids) & {i for i in found if isinstance(i, str)}  # what is no UTF-8 is tagged

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """The user's chats, most recently used first; `hidden`: counted with their soft-deleted documents."""
        match = self._filter(Scope(user_id, "")) | ({} if hidden else SHOWN)
        match["chatId"] = {"$type": "string"}
        group = {"_id": "$chatId", "n": {"$sum": 1}, "a": {"$min": "$createdAt"}, "z": {"$max": "$createdAt"}}
        pipeline = [{"$match": match}, {"$group": group}, {"$sort": {"z": -1, "_id": 1}}]
        rows = await self.reading(self.aggregate(pipeline))
        dates = [[row[name] if isinstance(row[name], datetime) else None for name in "az"] for row in rows]
        return [SessionInfo(row["_id"], row["n"], a, z) for row, (a, z) in zip(rows, dates, strict=True)]

    async def owners(self) -> list[str]:
        """Every user with documents."""
        key = self.settings.user_id_key
        pipeline: list[dict[str, Any]] = [
            {"$match": {key: {"$type": "string"}, "question": {"$exists": True}}},
            {"$group": {"_id": f"${key}"}},
        ]
        rows = await self.reading(self.aggregate(pipeline))
        return sorted(row["_id"] for row in rows)

    # -- writing

    async def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> int:
        """Inserts a document per turn; returns 0, because documents have no position."""
        refuse_positions("qa", expected_seq)
        documents = [d for row, messages in batch.parts() for d in self._documents(scope, row, messages)]
        await self.writing(self._append(scope, batch, documents), batch)
        return 0

    async def _append(self, scope: Scope, batch: Batch, documents: list[dict[str, Any]]) -> None:
        await self._ensure()
        query = {**self._filter(scope), "op": {"$in": [d["op"] for d in documents]}}
        deadline = time.monotonic() + self.patience
        found = await known(self, query, ["op", "messages", "v"], batch, deadline)
        there = {d["op"]: d for d in found}
        for index, row in enumerate(batch.rows):
            if row.op in there:  # else it is new, or several documents
                stored_or_conflict(batch, index, read_turn(there[row.op], self.settings.token_counter))
        if missing := [d for d in documents if d["op"] not in there]:
            await insert_once(self, missing, batch, deadline)

    def _documents(self, scope: Scope, row: Row, messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
        starts = [*turn_starts(messages), len(messages)]
        documents: list[dict[str, Any]] = []
        ids = ascending_ids(len(starts) - 1)
        for n, (begin, end) in enumerate(pairwise(starts)):
            now = self.settings.now()
            document: dict[str, Any] = {
                "_id": ids[n],
                "question": said(messages[begin:end], HumanMessage),
                "response": said(messages[begin:end], AIMessage),
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

    async def flag(self, scope: Scope, turn: int | str, *, deleted: bool) -> bool:
        """Sets the flags of the document whose `op` (or `_id`, for documents of other apps) is given."""
        identity = str(turn).removeprefix("qa:")
        by_id = {"_id": ObjectId(identity)} if ObjectId.is_valid(identity) else {"op": {"$eq": turn}}
        query = {**self._filter(scope), **by_id}
        change = {"$set": {"isDeleted": deleted, "isActive": not deleted, "updatedAt": self.settings.now()}}
        result = await self.writing(self.retried(lambda c: c.update_one(query, change)))
        return bool(result.matched_count)

    async def clear(self, scope: Scope) -> None:
        """Deletes the chat's documents."""
        query = self._filter(scope)
        await self.writing(self.retried(lambda c: c.delete_many(query)))

    async def purge(self, user_id: str) -> dict[str, int]:
        """Deletes the user's documents."""
        sessions = await self.sessions(user_id)
        query = {k: v for k, v in self._filter(Scope(user_id, "")).items() if k != "chatId"}
        result = await self.writing(self.retried(lambda c: c.delete_many(query)))
        return {"sessions": len(sessions), "turns": int(result.deleted_count)}


def said(messages: Sequence[BaseMessage], kind: type[BaseMessage]) -> str | None:
    """What was said on one side of a turn, as text that a database takes; None if nothing was."""
    texts = [m.text for m in messages if isinstance(m, kind) and m.text]
    return "\n".join(texts).encode("utf-8", "replace").decode() if texts else None


def qa_turn(document: Mapping[str, Any], counter: TokenCounter | None) -> Turn:
    """A document as a turn: our messages if they still say what the plain fields say, else question and response."""
    op = str(document.get("op") or f"qa:{document.get('_id')}")
    question, response = document.get("question"), document.get("response")
    created_at = document.get("createdAt")
    date = created_at if isinstance(created_at, datetime) else None
    if "messages" in document:
        own = read_turn({**document, "seq": 0, "epoch": 0, "op": op}, counter)
        if not own.problems and (said(own.messages, HumanMessage), said(own.messages, AIMessage)) == (
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
