"""`layout="langchain"`: writes the rows of langchain-mongodb, one per message, for a rolling deploy or the way back."""

from __future__ import annotations

import json
import time
from typing import Any

from langchain_core.messages import BaseMessage, message_to_dict
from pymongo import ASCENDING, IndexModel

from langchain_memkit.backends._history.rows import Batch, Origin, Scope
from langchain_memkit.backends.mongodb.documents import legacy_filter, legacy_index
from langchain_memkit.backends.mongodb.foreign import ascending_ids, ensure, insert_once, refuse_positions
from langchain_memkit.backends.mongodb.settled import known
from langchain_memkit.backends.mongodb.store import MongoTurnStore
from langchain_memkit.errors import MessageDecodeError, MessageEncodeError
from langchain_memkit.messages.codec import decode_legacy_message

MARK = "memkit"  # our note in a row: the op it belongs to and its place there; langchain-mongodb does not look at it


class LangChainRowStore(MongoTurnStore):
    """Reads both kinds of rows, as `layout="turns"` does; writes langchain-mongodb's kind."""

    layout = "langchain"

    async def setup(self) -> None:
        """Builds the indexes for rows of langchain-mongodb."""
        await self.reading(self._ensure())

    async def _ensure(self) -> None:
        key = self.settings.legacy_keys[0]
        order = legacy_index(key, self.settings.index_kwargs)
        ops = IndexModel(
            [(key, ASCENDING), (f"{MARK}.op", ASCENDING)],
            name="memkit_legacy_op",
            partialFilterExpression={f"{MARK}.op": {"$exists": True}},
        )
        await ensure(self, [order, ops])

    async def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> int:
        """Inserts a row per message; returns 0, because rows have no position."""
        refuse_positions("langchain", expected_seq)
        documents = self._documents(scope, batch)
        await self.writing(self._append(scope, batch, documents), batch)
        return 0

    async def _append(self, scope: Scope, batch: Batch, documents: list[dict[str, Any]]) -> None:
        await self._ensure()
        query = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        query[f"{MARK}.op"] = {"$in": [row.op for row in batch.rows]}
        deadline = time.monotonic() + self.patience
        found = await known(self, query, {MARK: 1}, batch, deadline)
        there = {(d[MARK].get("op"), d[MARK].get("i")) for d in found}
        missing = [d for d in documents if (d[MARK]["op"], d[MARK]["i"]) not in there]
        if missing:
            await insert_once(self, missing, batch, deadline)

    def _documents(self, scope: Scope, batch: Batch) -> list[dict[str, Any]]:
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

    async def clear(self, scope: Scope) -> None:
        """Deletes the session's rows; native turns in the same collection are cleared with their marker."""
        await self.writing(self._clear(scope))

    async def _clear(self, scope: Scope) -> None:
        if await self.head(scope, "local") is not None:
            await self._void(scope, "clear")
            return
        rows = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        await self.retried(lambda c: c.delete_many(rows))


def row_text(message: BaseMessage, path: str) -> str:
    """A message as langchain-mongodb stores it: JSON in a string, refused if it would not come back equal.

    Raises:
        MessageEncodeError: JSON cannot say it.
    """
    try:
        text = json.dumps(message_to_dict(message))
        same = decode_legacy_message(json.loads(text)) == message
    except (TypeError, ValueError, RecursionError, MessageDecodeError) as error:
        # a TypeError of JSON names a class
        why = f"{error!s:.200}" if isinstance(error, (TypeError, MessageDecodeError)) else type(error).__name__
        text, problem = "", f"cannot be written as a row of langchain-mongodb ({why})"
    else:
        problem = "" if same else "would not come back equal from a row of langchain-mongodb"
    if problem:
        raise MessageEncodeError(path, problem)
    return text
