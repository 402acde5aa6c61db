"""A vector store in a MongoDB collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from langchain_core.embeddings import Embeddings
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure
from pymongo.operations import SearchIndexModel
from pymongo.read_concern import ReadConcern

from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends.mongodb.clients import Clients, redact
from langchain_memkit.backends.mongodb.commands import CollectionRef, Command, is_transient, text_of
from langchain_memkit.backends.mongodb.vector_documents import ON_STORED, stored_of
from langchain_memkit.backends.mongodb.vector_records import MongoDBVectorRecords
from langchain_memkit.base import Now, check_id, utc_now
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.stores.vector_rows import StoredDocument, Vector, question_vector, readable_documents
from langchain_memkit.stores.vectors import CACHE_BYTES, RecordVectorStore, SearchScope, check_k

NEAR, WORDS = "memkit_near", "memkit_words"
WIDER = 10  # candidates of the approximate search for each result
MOST = 10_000  # the most candidates that the server accepts
SCORE = "memkit_score"

_ready: dict[Any, frozenset[str]] = {}


class Candidates(NamedTuple):
    """Results of the server's two searches for one user.

    Attributes:
        near: Cosine by record id, for the records with the nearest vectors.
        words: The server's BM25 score by record id, for the records that contain the words.
    """

    near: Mapping[str, float]
    words: Mapping[str, float]


def search_index_models(dims: int) -> list[SearchIndexModel]:
    """Return the two search indexes: vectors (with user and session as filters), and words.

    Args:
        dims: The number of dimensions of the vectors.
    """
    near = [{"type": "vector", "path": "vector", "numDimensions": dims, "similarity": "cosine"}]
    near += [{"type": "filter", "path": path} for path in ("user_id", "session_id")]
    fields = {"text": {"type": "string", "analyzer": "lucene.english"}, "user_id": {"type": "token"}}
    return [
        SearchIndexModel({"fields": near}, NEAR, "vectorSearch"),
        SearchIndexModel({"mappings": {"dynamic": False, "fields": fields}}, WORDS, "search"),
    ]


def near_pipeline(user_id: str, session_id: str | None, vector: Sequence[float], k: int) -> list[dict[str, Any]]:
    """Build the search for the `k` records with the nearest vectors; the user is a filter inside the search."""
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
    """Build the search for the `k` records that best match the words of a text; the server stems both sides."""
    search = {
        "index": WORDS,
        "compound": {
            "must": [{"text": {"query": words, "path": "text"}}],
            "filter": [{"equals": {"path": "user_id", "value": user_id}}],
        },
    }
    return [{"$search": search}, {"$limit": k}, {"$project": {**ON_STORED, SCORE: {"$meta": "searchScore"}}}]


class SearchedRecords(MongoDBVectorRecords):
    """All flows of a vector collection, including the server's own searches."""

    @property
    def collection_key(self) -> Any:
        """A value that is equal for stores on the same collection of the same connection string."""
        return (self.clients.key, self.settings.names)

    async def searches(self) -> frozenset[str]:
        """Return the names of the search indexes that are ready; asks the server once per process and collection."""
        if self.collection_key not in _ready:
            try:
                rows = await self._asked([{"$listSearchIndexes": {}}])
            except OperationFailure as error:
                if is_transient(error):
                    raise
                rows = []  # a server without search indexes does not know the stage
            _ready[self.collection_key] = frozenset(row["name"] for row in rows if row.get("queryable") is True)
        return _ready[self.collection_key]

    async def _asked(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run a search pipeline with read concern local: the server refuses searches with majority."""
        timeout, plain = self.settings.timeout, ReadConcern("local")
        cursor = await Command(lambda c: c.with_options(read_concern=plain).aggregate(pipeline), timeout)
        rows: list[dict[str, Any]] = await Command(lambda c: cursor.to_list(), timeout)
        return rows

    async def build_searches(self, dims: int) -> None:
        """Create missing search indexes, which the server builds in the background.

        Raises:
            ConfigurationError: The deployment has no search indexes.
        """
        models = search_index_models(dims)
        try:
            names = {row["name"] for row in await self._asked([{"$listSearchIndexes": {}}])}
            if missing := [model for model in models if model.document["name"] not in names]:
                await Command(lambda c: c.create_search_indexes(missing), self.settings.save_timeout)
        except OperationFailure as error:
            if is_transient(error):
                raise
            msg = f"{self.clients.hosts} has no search indexes: {text_of(error)}. Leave out search_index=True."
            raise ConfigurationError(msg) from error
        _ready.pop(self.collection_key, None)

    async def near(
        self, user_id: str, session_id: str | None, vector: Vector, k: int
    ) -> list[tuple[StoredDocument, float]]:
        """Return the records with the nearest vectors and their cosines, nearest first."""
        found = await self._hits(user_id, near_pipeline(user_id, session_id, vector.tolist(), k))
        # The server's score is (1 + cosine) / 2.
        return [(shown, 2 * score - 1) for shown, score in found]

    async def saying(self, user_id: str, words: str, k: int) -> list[tuple[StoredDocument, float]]:
        """Return the records that match the words of a text and the server's scores, best first."""
        return await self._hits(user_id, words_pipeline(user_id, words, k))

    async def _hits(self, user_id: str, pipeline: list[dict[str, Any]]) -> list[tuple[StoredDocument, float]]:
        rows = await self.reading(self._asked(pipeline))
        scores = {row["_id"]: float(row[SCORE]) for row in rows}
        shown = readable_documents([stored_of(row) for row in rows], self._now())
        # The user is checked again here: the server's filter alone is never trusted.
        return [(s, scores[s.document.id]) for s in shown if s.user_id == user_id]


ATLAS_ONLY = frozenset(
    {
        "auto_create_index",
        "auto_index_timeout",
        "dimensions",
        "embedding_key",
        "index_name",
        "relevance_score_fn",
        "text_key",
        "vector_index_options",
    }
)
"""Arguments of langchain-mongodb's vector store that describe an index of Atlas, or its documents."""


class MongoDBVectorStore(RecordVectorStore):
    """A LangChain `VectorStore` in MongoDB: exact search per user on any server, writes stored by a majority.

    Give it to `VectorMemory`, or use it as any vector store. A document whose metadata has a `user_id` is found only by
    a search with that user in the filter; one without is unowned. What another process wrote or deleted is seen by the
    next search. A save that is under way while its session or user is forgotten stores nothing. No I/O happens before
    the first use. Clients are shared as with `MongoDBChatMessageHistory`.

    The search is exact and runs in process on the records of one user, so it works on any server. Where the deployment
    has search indexes (Atlas, or a server with mongot) and `setup(search_index=True)` built them, `similarity_search`
    asks the server instead: approximate, seconds behind the writes, and for users too large to be held in process.
    The shard key is `{user_id: 1, session_id: 1}`. Other indexes are built at the first write, unless the collection is
    large already.

    Args:
        connection_string: `mongodb://...`; None if `client` or `async_client` is given. Writes wait for a majority and
            the journal, reads see what a majority has, whatever it says.
        embedding: The embedding model. Vectors of two models are never mixed: the store knows which one filled it.
        database_name: The database.
        collection_name: The collection: one of its own.
        client: Your own `MongoClient`, never closed here. The async methods then use a worker thread.
        async_client: Your own `AsyncMongoClient`, never closed here.
        timeout: Seconds within which reads and the first use fail if the server cannot be reached.
        save_timeout: Seconds for which a write is retried on a server that was reached before.
        cache_bytes: Size of the cache of the most recently used users' records, in bytes, 96 MB by default; a record
            with 384 dimensions takes about 9 KB. The last user is cached however large, until another one is used.
        now: The clock, for tests.

    Raises:
        ConfigurationError: The arguments contradict each other, or `embedding` is no `Embeddings`.

    Example:
        ```python
        from langchain_core.embeddings import DeterministicFakeEmbedding

        embedding = DeterministicFakeEmbedding(size=8)  # yours: OpenAIEmbeddings(), WordLlamaEmbeddings(), ...
        with MongoDBVectorStore("mongodb://localhost:27017", embedding, collection_name="fish") as store:
            store.add_texts(["Nemo is a fish."], [{"user_id": "u1"}])
            assert store.similarity_search("fish", filter={"user_id": "u1"})[0].page_content == "Nemo is a fish."
            assert store.purge("u1") == {"records": 1}
        ```
    """

    is_remote: ClassVar = True
    """True: reads go over the network, so callers should run several of them concurrently."""

    def __init__(
        self,
        connection_string: str | None = None,
        embedding: Embeddings | None = None,
        database_name: str = "chat_history",
        collection_name: str = "vectors",
        *,
        client: MongoClient[dict[str, Any]] | None = None,
        async_client: AsyncMongoClient[dict[str, Any]] | None = None,
        timeout: float = 5.0,
        save_timeout: float = 30.0,
        cache_bytes: int = CACHE_BYTES,
        now: Now = utc_now,
    ) -> None:
        clients = Clients(connection_string, client, async_client)
        place = CollectionRef(names=(database_name, collection_name), timeout=timeout, save_timeout=save_timeout)
        self._searched = SearchedRecords(clients, place, now)
        super().__init__(self._searched, embedding, cache_bytes, now)  # type: ignore[arg-type]  # it is checked there
        clients.hold()
        self._name = f"{clients.hosts}, {database_name}.{collection_name}"

    @classmethod
    def from_connection_string(
        cls, connection_string: str, namespace: str, embedding: Embeddings, **kwargs: Any
    ) -> MongoDBVectorStore:
        """Create a store for a namespace, with the signature of langchain-mongodb's vector store. No I/O.

        Args:
            connection_string: `mongodb://...`.
            namespace: `"database.collection"`: a collection of this store's own, not one that langchain-mongodb filled.
            embedding: The embedding model.
            **kwargs: The other arguments of the constructor.

        Returns:
            The store.

        Raises:
            ConfigurationError: `namespace` has no dot, or an argument describes an Atlas index.

        Example:
            ```python
            from langchain_core.embeddings import DeterministicFakeEmbedding

            embedding = DeterministicFakeEmbedding(size=8)
            store = MongoDBVectorStore.from_connection_string("mongodb://localhost:27017", "app.fish", embedding)
            ```
        """
        if given := sorted(ATLAS_ONLY & kwargs.keys()):
            msg = (
                f"{', '.join(given)}: this store searches without an index that has to be named or described, and "
                "keeps documents in a form of its own. Leave it out; where there is Atlas Search, "
                "setup(search_index=True) builds what is needed"
            )
            raise ConfigurationError(msg)
        database, dot, collection = namespace.partition(".")
        if not dot:
            msg = f"namespace must be 'database.collection', got {redact(namespace)!r:.80}"
            raise ConfigurationError(msg)
        return cls(connection_string, embedding, database, collection, **kwargs)

    @property
    def collection(self) -> Any:
        """The collection, with the guarantees pinned, for queries of your own."""
        return self._searched.collection(self._searched.clients.sync())

    def __repr__(self) -> str:
        """Name hosts and collection only."""
        return f"{type(self).__name__}({self._name})"

    def setup(self, *, search_index: bool = False) -> None:
        """Build the indexes of the collection, however large it is.

        Args:
            search_index: Build those of `$vectorSearch` and `$search` as well, for vectors of this embedding model. The
                server builds them in the background; a process that searched before uses them after a restart.

        Raises:
            ConfigurationError: The server has no search indexes.
            HistoryReadError: The server cannot be reached.
        """
        drive(self._setup(search_index))

    async def asetup(self, *, search_index: bool = False) -> None:
        """Run `setup` asynchronously."""
        await adrive(self._setup(search_index))

    async def _setup(self, search_index: bool) -> None:
        await self._step(self._searched.setup)
        if search_index:
            dims = await self._embedder.known()
            await self._step(lambda: self._searched.reading(self._searched.build_searches(dims)))

    def candidates(self, user_id: str, vector: Any, words: str, k: int) -> Candidates:
        """Search a user's records on the server by vector and by words, without loading them into this process.

        Args:
            user_id: The user.
            vector: The question's vector, as `embed_query` returns it.
            words: The question; the server stems it as English.
            k: The most results of each search.

        Returns:
            Cosines and word scores by record id. What was written in the last seconds may be missing.

        Raises:
            TypeError: `user_id` is not a string.
            ValueError: `user_id` is not a valid id, or `k` is below 0.
            ConfigurationError: The deployment has no search indexes, or they are not ready.
            HistoryReadError: The server cannot be reached or read.
        """
        return drive(self._candidates(check_id(user_id, "user_id"), vector, words, check_k(k)))

    async def acandidates(self, user_id: str, vector: Any, words: str, k: int) -> Candidates:
        """Run `candidates` asynchronously."""
        return await adrive(self._candidates(check_id(user_id, "user_id"), vector, words, check_k(k)))

    async def _candidates(self, user_id: str, vector: Any, words: str, k: int) -> Candidates:
        searched, near = self._searched, question_vector(vector, self._embedder.dims)
        if not {NEAR, WORDS} <= await self._step(lambda: searched.reading(searched.searches())):
            msg = f"{self._name} has no search indexes that are ready: call setup(search_index=True) on a deployment"
            raise ConfigurationError(f"{msg} with Atlas Search, and wait until they are built")
        if not k or not words.strip():
            return Candidates({}, {})
        nearest = await self._step(lambda: searched.near(user_id, None, near, k))
        saying = await self._step(lambda: searched.saying(user_id, words, k))
        return Candidates({s.document.id or "": n for s, n in nearest}, {s.document.id or "": n for s, n in saying})

    async def _nearest(self, vector: Vector, k: int, scope: SearchScope) -> list[tuple[StoredDocument, float]]:
        """Search on the server if its index is ready and the scope has only filters that the index covers."""
        searched = self._searched
        if scope.matches or NEAR not in await self._step(lambda: searched.reading(searched.searches())):
            return await super()._nearest(vector, k, scope)
        found = await self._step(lambda: searched.near(scope.user_id, scope.session_id, vector, k))
        return [(shown, score) for shown, score in found if scope.takes(shown)]
