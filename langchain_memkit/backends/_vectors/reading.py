"""Reading records, and embedding texts: written once for both call styles and for every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from langchain_memkit._sync import ClosingMixin, Flow, Step, adrive, drive
from langchain_memkit.backends._vectors.backend import VectorBackend
from langchain_memkit.backends._vectors.embedding import Embedder
from langchain_memkit.backends._vectors.rows import NOBODY, Stored, Vector, check_ids, shown_of
from langchain_memkit.backends._vectors.shelf import Looked, Shelf
from langchain_memkit.base import Now, SessionInfo, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.scoring.index import Index

CACHE_BYTES = 96 * 2**20


T = TypeVar("T")


class Reading(ClosingMixin):
    """A store that is read; see `SQLiteVectorStore` and `MongoDBVectorStore`."""

    def __init__(self, backend: VectorBackend, embedding: Embeddings, cache_bytes: int, now: Now) -> None:
        if not isinstance(cache_bytes, int) or cache_bytes < 0:  # type: ignore[redundant-expr]  # callers without types
            msg = f"cache_bytes must be a whole number of bytes from 0; got {cache_bytes!r:.50}"
            raise ConfigurationError(msg)
        self._backend = backend
        self._now = now
        self._embedder = Embedder(embedding, backend, self._step)
        self._shelf = Shelf(backend, self._step, cache_bytes, now)

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        async def asynchronous() -> T:
            return await self._backend.arun(make_flow())

        return Step(lambda: self._backend.run(make_flow()), asynchronous)

    def setup(self) -> None:
        """Opens the file, or builds the indexes of the collection, however large it is.

        Raises:
            HistoryReadError: The store cannot be reached.
        """
        self._backend.run(self._backend.setup())

    async def asetup(self) -> None:
        """Async twin of `setup`."""
        await self._backend.arun(self._backend.setup())

    # -- reading

    def index(self, user_id: str) -> Index:
        """All records of a user in process, as they are now, whoever wrote or deleted them.

        One cheap query tells whether anything changed since the last call; if so, what changed is read. The last used
        users are held, `cache_bytes` of them; one that is larger than that only until another is asked for.

        Args:
            user_id: Whose.

        Returns:
            The index, without records that are damaged (which is logged) or have expired. Hold its lock to use it.

        Raises:
            TypeError: `user_id` is no string.
            ValueError: `user_id` is no valid id.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> store.add_texts(["The parrot is called Kiwi."], [{"user_id": "u1"}], ids=["1"])
            ['1']
            >>> [entry.said[0].stems for entry in store.index("u1").entries], len(store.index("u2"))
            ([('parrot', 'call', 'kiwi')], 0)
        """
        return drive(self._shelf.read(check_id(user_id, "user_id")))[0]

    async def aindex(self, user_id: str) -> Index:
        """Async twin of `index`."""
        return (await adrive(self._shelf.read(check_id(user_id, "user_id"))))[0]

    def get_by_ids(self, ids: Sequence[str], /, *, user_id: str | None = None) -> list[Document]:
        """Documents by id, of one user or of nobody: an id is unique for its user only.

        Args:
            ids: In any order.
            user_id: Whose. None: documents without a `user_id` in their metadata.

        Returns:
            Those that there are, in the order of `ids`; damaged ones are left out, which is logged.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is empty or malformed.
            ConfigurationError: No `user_id` is given, and an id belongs to a document of a user.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> store.add_texts(["one", "two"], ids=["1", "2"])
            ['1', '2']
            >>> [document.page_content for document in store.get_by_ids(["2", "none", "1"])]
            ['two', 'one']
            >>> ids = store.add_texts(["mine"], [{"user_id": "u1"}], ids=["1"])
            >>> [document.page_content for document in store.get_by_ids(["1"], user_id="u1")]
            ['mine']
        """
        return drive(self._get_by_ids(check_ids(ids), whose(user_id)))

    async def aget_by_ids(self, ids: Sequence[str], /, *, user_id: str | None = None) -> list[Document]:
        """Async twin of `get_by_ids`."""
        return await adrive(self._get_by_ids(check_ids(ids), whose(user_id)))

    async def _get_by_ids(self, ids: list[str], user_id: str) -> list[Document]:
        stored = await self._stored(ids, user_id, "") if ids else []
        found = {shown.document.id: shown.document for shown in shown_of(stored, self._now())}
        self._shelf.miss(user_id, [name for name in ids if name not in found])
        return [found[name] for name in ids if name in found]

    async def _stored(self, ids: list[str], user_id: str, state: str) -> list[Stored]:
        """Records by id; who does not say whose they are must mean those of nobody."""
        backend = self._backend
        stored: list[Stored] = await self._step(lambda: backend.by_ids(user_id, ids, vectors=False))
        there = {row.id for row in stored}
        missing = [name for name in ids if name not in there]
        if user_id == NOBODY and missing and await self._step(lambda: backend.owned(missing)):
            msg = (
                f"an id belongs to a document of a user: say whose, with user_id=; an id is unique for its user{state}"
            )
            raise ConfigurationError(msg)
        return stored

    async def _look(self, user_id: str, session_id: str | None) -> tuple[Index, Looked | None]:
        """The index, and the session, if what is held of it is enough to go on from; one read, as a rule."""
        return await self._shelf.read(user_id, session_id)

    async def _texts(self, user_id: str, ids: Sequence[str]) -> Callable[[str], Document | None]:
        """What gives the user's records with these ids, as the index was read last; nothing is read for those in it."""
        held = self._shelf.texts(user_id)
        missing = [name for name in ids if name not in held]
        found: dict[str, Document] = {}
        if missing:
            found = {document.id or "": document for document in await self._get_by_ids(missing, user_id)}

        def document(name: str) -> Document | None:
            stored = held.get(name)
            return found.get(name) if stored is None else stored.document(name)

        return document

    def sessions(self, user_id: str) -> list[SessionInfo]:
        """The sessions that a user has records of.

        Args:
            user_id: Whose.

        Returns:
            Most recently used first; `turns` is the number of rounds.

        Raises:
            TypeError: `user_id` is no string.
            ValueError: `user_id` is no valid id.
            HistoryReadError: The store cannot be reached or read.
        """
        return self._backend.run(self._backend.sessions(check_id(user_id, "user_id")))

    async def asessions(self, user_id: str) -> list[SessionInfo]:
        """Async twin of `sessions`."""
        return await self._backend.arun(self._backend.sessions(check_id(user_id, "user_id")))

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """When records were last recalled.

        Args:
            user_id: Whose.

        Returns:
            Aware, UTC, by record id; nothing for those that never were.

        Raises:
            TypeError: `user_id` is no string.
            ValueError: `user_id` is no valid id.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from datetime import UTC, datetime
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["one", "two"], [{"user_id": "u1"}] * 2, ids=["1", "2"])
            >>> store.touch("u1", ["2"], datetime(2026, 1, 2, tzinfo=UTC))
            >>> store.accesses("u1")
            {'2': datetime.datetime(2026, 1, 2, 0, 0, tzinfo=datetime.timezone.utc)}
        """
        return self._backend.run(self._backend.accesses(check_id(user_id, "user_id")))

    async def aaccesses(self, user_id: str) -> dict[str, datetime]:
        """Async twin of `accesses`."""
        return await self._backend.arun(self._backend.accesses(check_id(user_id, "user_id")))

    # -- embedding

    def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Vectors of texts to store.

        The first call in a process also embeds a fixed text, whose vector is kept in the store: so vectors of two
        models are never mixed.

        Args:
            texts: What is to be stored.

        Returns:
            A vector for each, float32, of length 1. None where the model gave all zeros, because it knows none of the
            words: such a text is stored without a vector.

        Raises:
            ConfigurationError: The store was filled with another model, or the model gave what is no vector.
            HistoryReadError: The store cannot be reached or read.
            HistoryWriteError: The store failed.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> [vector.shape for vector in store.embed(["one", "two"])]
            [(8,), (8,)]
        """
        return drive(self._embedder.documents(texts))

    async def aembed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Async twin of `embed`."""
        return await adrive(self._embedder.documents(texts))

    def embed_query(self, text: str) -> Vector:
        """The vector of a question; checked as in `embed`, once something is stored.

        Args:
            text: The question.

        Returns:
            Its vector, float32, of length 1.

        Raises:
            ConfigurationError: The store was filled with another model.
            HistoryReadError: The model gave no usable vector for this question, or the store cannot be reached or read.
        """
        return drive(self._embedder.query(text))

    async def aembed_query(self, text: str) -> Vector:
        """Async twin of `embed_query`."""
        return await adrive(self._embedder.query(text))


def whose(user_id: str | None) -> str:
    return NOBODY if user_id is None else check_id(user_id, "user_id")
