"""`$vectorSearch` and `$search`, where a deployment has them. The pipelines are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymongo.errors import OperationFailure
from pymongo.operations import SearchIndexModel
from pymongo.read_concern import ReadConcern

from langchain_memkit.backends._vectors.rows import Shown, Vector, shown_of
from langchain_memkit.backends.mongodb.commands import Call, is_transient, text_of
from langchain_memkit.backends.mongodb.vector_documents import ON_STORED, stored_of
from langchain_memkit.backends.mongodb.vector_records import VectorRecords
from langchain_memkit.errors import ConfigurationError

NEAR, WORDS = "memkit_near", "memkit_words"
WIDER = 10  # candidates of the approximate search for each one that is wanted
MOST = 10_000  # candidates that the server takes
SCORE = "memkit_score"

_ready: dict[Any, frozenset[str]] = {}


class Candidates(NamedTuple):
    """What two searches of the server found for one user.

    Attributes:
        near: Cosine by record id, of the records with the nearest vectors.
        words: The server's BM25 by record id, of the records with the words.
    """

    near: Mapping[str, float]
    words: Mapping[str, float]


def search_index_models(dims: int) -> list[SearchIndexModel]:
    """What the server has to build: vectors with their user as a filter, and words."""
    near = [{"type": "vector", "path": "vector", "numDimensions": dims, "similarity": "cosine"}]
    near += [{"type": "filter", "path": path} for path in ("user_id", "session_id")]
    fields = {"text": {"type": "string", "analyzer": "lucene.english"}, "user_id": {"type": "token"}}
    return [
        SearchIndexModel({"fields": near}, NEAR, "vectorSearch"),
        SearchIndexModel({"mappings": {"dynamic": False, "fields": fields}}, WORDS, "search"),
    ]


def near_pipeline(user_id: str, session_id: str | None, vector: Sequence[float], k: int) -> list[dict[str, Any]]:
    """The records with the nearest vectors; the user is a filter inside of the search."""
    where: dict[str, Any] = {"user_id": {"$eq": user_id}}
    if session_id is not None:
        where["session_id"] = {"$eq": session_id}
    search = {
        "index": NEAR,
        "path": "vector",
        "queryVector": list(vector),
        "numCandidates": min(k * WIDER, MOST),
        "limit": min(k, MOST),
        "filter": where,
    }
    return [{"$vectorSearch": search}, {"$project": {**ON_STORED, SCORE: {"$meta": "vectorSearchScore"}}}]


def words_pipeline(user_id: str, words: str, k: int) -> list[dict[str, Any]]:
    """The records with words of a text; the server stems both."""
    search = {
        "index": WORDS,
        "compound": {
            "must": [{"text": {"query": words, "path": "text"}}],
            "filter": [{"equals": {"path": "user_id", "value": user_id}}],
        },
    }
    return [{"$search": search}, {"$limit": k}, {"$project": {**ON_STORED, SCORE: {"$meta": "searchScore"}}}]


class SearchedRecords(VectorRecords):
    """The flows of a store, with the searches of the server."""

    async def searches(self) -> frozenset[str]:
        """The search indexes that can be used; the server is asked once per process and collection."""
        if self.place not in _ready:
            try:
                rows = await self._asked([{"$listSearchIndexes": {}}])
            except OperationFailure as error:
                if is_transient(error):
                    raise
                rows = []  # the server knows no such stage
            _ready[self.place] = frozenset(row["name"] for row in rows if row.get("queryable") is True)
        return _ready[self.place]

    async def _asked(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The result of a search: the server runs none with a read concern of majority."""
        timeout, plain = self.settings.timeout, ReadConcern("local")
        cursor = await Call(lambda c: c.with_options(read_concern=plain).aggregate(pipeline), timeout)
        rows: list[dict[str, Any]] = await Call(lambda c: cursor.to_list(), timeout)
        return rows

    async def build_searches(self, dims: int) -> None:
        """Has the server build its search indexes, which takes it a while."""
        models = search_index_models(dims)
        try:
            names = {row["name"] for row in await self._asked([{"$listSearchIndexes": {}}])}
            if missing := [model for model in models if model.document["name"] not in names]:
                await Call(lambda c: c.create_search_indexes(missing), self.settings.save_timeout)
        except OperationFailure as error:
            if is_transient(error):
                raise
            msg = f"{self.clients.hosts} has no search indexes: {text_of(error)}. Leave out search_index=True."
            raise ConfigurationError(msg) from error
        _ready.pop(self.place, None)

    async def near(self, user_id: str, session_id: str | None, vector: Vector, k: int) -> list[tuple[Shown, float]]:
        """Records with the nearest vectors, with their cosines, nearest first."""
        found = await self._hits(user_id, near_pipeline(user_id, session_id, vector.tolist(), k))
        return [(shown, 2 * score - 1) for shown, score in found]

    async def saying(self, user_id: str, words: str, k: int) -> list[tuple[Shown, float]]:
        """Records with words of a text, with the server's scores, best first."""
        return await self._hits(user_id, words_pipeline(user_id, words, k))

    async def _hits(self, user_id: str, pipeline: list[dict[str, Any]]) -> list[tuple[Shown, float]]:
        rows = await self.reading(self._asked(pipeline))
        scores = {row["_id"]: float(row[SCORE]) for row in rows}
        shown = shown_of([stored_of(row) for row in rows], self._now())
        return [(s, scores[s.document.id]) for s in shown if s.user_id == user_id]  # checked again: never trusted
