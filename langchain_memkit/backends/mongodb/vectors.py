"""`MongoDBVectorStore`: documents with their vectors and words, one document for each."""

from __future__ import annotations

from typing import Any, ClassVar

from langchain_core.embeddings import Embeddings
from pymongo import AsyncMongoClient, MongoClient

from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends._vectors.embedding import question_vector
from langchain_memkit.backends._vectors.reading import CACHE_BYTES
from langchain_memkit.backends._vectors.rows import Shown, Vector
from langchain_memkit.backends._vectors.scope import Scope, check_k
from langchain_memkit.backends._vectors.store import RecordVectorStore
from langchain_memkit.backends.mongodb.clients import Clients, redact
from langchain_memkit.backends.mongodb.commands import Place
from langchain_memkit.backends.mongodb.vector_search import NEAR, WORDS, Candidates, SearchedRecords
from langchain_memkit.base import Now, check_id, utc_now
from langchain_memkit.errors import ConfigurationError

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
    """A LangChain `VectorStore` in MongoDB: exact search per user on any server, stored by a majority.

    Give it to `VectorMemory`, or use it as any vector store. A document whose metadata has a `user_id` is found only by
    a search with that user in the filter; one without belongs to nobody. What another process wrote or deleted is seen
    by the next search. A save that is under way while anybody forgets its session or user stores nothing. No I/O
    happens before the first use. Clients are shared as with `MongoDBChatMessageHistory`.

    The search is exact and runs in process on the records of one user, so any server will do. Where the deployment has
    search indexes (Atlas, or a server with mongot) and `setup(search_index=True)` built them, `similarity_search` asks
    the server instead: approximate, seconds behind the writes, and for users who are too large to be held in process.
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
        cache_bytes: How much of the last users' records is held in process, 96 MB by default; about 9 KB for a record
            with 384 dimensions. The last user is held however large, until another one is asked for.
        now: The clock, for tests.

    Raises:
        ConfigurationError: Arguments do not fit together, or `embedding` is no `Embeddings`.

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
    """Reads wait for a server, so several at once save time."""

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
        place = Place(names=(database_name, collection_name), timeout=timeout, save_timeout=save_timeout)
        self._searched = SearchedRecords(clients, place, now)
        super().__init__(self._searched, embedding, cache_bytes, now)  # type: ignore[arg-type]  # it is checked there
        clients.hold()
        self._name = f"{clients.hosts}, {database_name}.{collection_name}"

    @classmethod
    def from_connection_string(
        cls, connection_string: str, namespace: str, embedding: Embeddings, **kwargs: Any
    ) -> MongoDBVectorStore:
        """Return a store for a namespace, as langchain-mongodb's vector store has it. No I/O.

        Args:
            connection_string: As in the class.
            namespace: `"database.collection"`: a collection of this store's own, not one that langchain-mongodb filled.
            embedding: As in the class.
            **kwargs: The class's further arguments.

        Returns:
            The store.

        Raises:
            ConfigurationError: `namespace` has no dot, or an argument concerns an index of Atlas.

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
        """Names hosts and collection only."""
        return f"{type(self).__name__}({self._name})"

    def setup(self, *, search_index: bool = False) -> None:
        """Builds the indexes of the collection, however large it is.

        Args:
            search_index: Also those of `$vectorSearch` and `$search`, for vectors of this embedding model. The server
                builds them in the background; a process that asked for them before uses them after a restart.

        Raises:
            ConfigurationError: The server has no search indexes.
            HistoryReadError: The server cannot be reached.
        """
        drive(self._setup(search_index))

    async def asetup(self, *, search_index: bool = False) -> None:
        """Async twin of `setup`."""
        await adrive(self._setup(search_index))

    async def _setup(self, search_index: bool) -> None:
        await self._step(self._searched.setup)
        if search_index:
            dims = await self._embedder.known()
            await self._step(lambda: self._searched.reading(self._searched.build_searches(dims)))

    def candidates(self, user_id: str, vector: Any, words: str, k: int) -> Candidates:
        """What the server's two searches find for a user, without the user's records in process.

        Args:
            user_id: Whose.
            vector: Of the question, as `embed_query` gives it.
            words: The question; the server stems it as English.
            k: How many of each search.

        Returns:
            Cosines and word scores by record id. What was written in the last seconds may be missing.

        Raises:
            TypeError: `user_id` is no string.
            ValueError: `user_id` is no valid id, or `k` is below 0.
            ConfigurationError: The deployment has no search indexes, or they are not ready.
            HistoryReadError: The server cannot be reached or read.
        """
        return drive(self._candidates(check_id(user_id, "user_id"), vector, words, check_k(k)))

    async def acandidates(self, user_id: str, vector: Any, words: str, k: int) -> Candidates:
        """Async twin of `candidates`."""
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

    async def _nearest(self, vector: Vector, k: int, scope: Scope) -> list[tuple[Shown, float]]:
        """By the server, if it can; by its filters only."""
        searched = self._searched
        if scope.matches or NEAR not in await self._step(lambda: searched.reading(searched.searches())):
            return await super()._nearest(vector, k, scope)
        found = await self._step(lambda: searched.near(scope.user_id, scope.session_id, vector, k))
        return [(shown, score) for shown, score in found if scope.takes(shown)]
