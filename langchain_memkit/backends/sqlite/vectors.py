"""`SQLiteVectorStore`: documents with their vectors and words, in the file of the chat histories or one of its own.

Search is exact and runs in process, on the records of one user: neither FTS5 nor an extension is used. An FTS5 index
over all users is searched by words of all users, and before SQLite 3.42 it keeps deleted words in the file.
"""

from __future__ import annotations

import os

from langchain_core.embeddings import Embeddings

from langchain_memkit.backends._vectors.reading import CACHE_BYTES
from langchain_memkit.backends._vectors.store import RecordVectorStore
from langchain_memkit.backends.sqlite.database import OWNER_ALONE, shared_database
from langchain_memkit.backends.sqlite.vector_records import VectorRecords
from langchain_memkit.base import Now, utc_now


class SQLiteVectorStore(RecordVectorStore):
    """A LangChain `VectorStore` in one SQLite file: exact search per user, durable, no server.

    Pass it to `VectorMemory`, or use it as any vector store. A document whose metadata has a `user_id` is found only by
    a search with that user in the filter; one without is unowned. Safe with threads and with several processes on one
    file: the next search sees what another process wrote or deleted. The file may hold chat histories as well. Deleted
    text is overwritten, its words and its vector too: `delete`, `forget` and `purge` do so everywhere and at once;
    records that `evict` deleted, that were replaced or have expired stay in the write-ahead log beside the file until
    that is reused, after some 4 MB of writes, or until the last process closes the file. No I/O happens before the
    first use.

    Args:
        path: The file; created at first use, its folder must exist. `":memory:"` keeps the data in this object.
        embedding: The embedding model. Vectors of two models are never mixed: the store knows which one filled it.
        cache_bytes: How many bytes of recently used users' records are cached in process, 96 MB by default; a record
            with 384 dimensions takes about 9 KB. The last user is cached however large, until another one is asked for.
        timeout: Seconds to wait for another process that is writing.
        file_mode: The permissions of the file, its -wal and its -shm if they are created here: 0o600 by default, for
            the owner alone; 0o660 shares it with a group. An existing file keeps its own.
        now: The clock, for tests.

    Raises:
        TypeError: The path is not a file name.
        ConfigurationError: `embedding` is not an `Embeddings`, or `cache_bytes` is not a number of bytes.

    Example:
        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> with SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8)) as store:
        ...     ids = store.add_texts(["Nemo is a fish.", "Kiwi is a parrot."], [{"user_id": "u1"}, {"user_id": "u2"}])
        ...     [document.page_content for document in store.similarity_search("parrot", filter={"user_id": "u1"})]
        ...     store.purge("u1")
        ['Nemo is a fish.']
        {'records': 1}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        embedding: Embeddings,
        *,
        cache_bytes: int = CACHE_BYTES,
        timeout: float = 30.0,
        file_mode: int = OWNER_ALONE,
        now: Now = utc_now,
    ) -> None:
        database = shared_database(path, timeout, file_mode)
        super().__init__(VectorRecords(database, now), embedding, cache_bytes, now)
        self._path = database.path

    def __repr__(self) -> str:
        """Show the file."""
        return f"{type(self).__name__}({self._path!r})"
