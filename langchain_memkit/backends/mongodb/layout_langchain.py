"""`layout="langchain"`: writes langchain-mongodb's rows, one per message, for a rolling deploy or a rollback."""

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
        await ensure(self, [order, ops])

    async def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> int:
        """Insert a row per message; return 0, because rows have no positions.

        Raises:
            ConfigurationError: `expected_seq` is given.
        """
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
        """Delete the session's rows; if it has native turns, too, clear them with a tombstone."""
        await self.writing(self._clear(scope))

    async def _clear(self, scope: Scope) -> None:
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
