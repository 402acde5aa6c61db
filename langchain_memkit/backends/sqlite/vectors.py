"""`SQLiteVectorStore`: documents with their vectors and words, in the file of the chat histories or one of their own.

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

    Give it to `VectorMemory`, or use it as any vector store. A document whose metadata has a `user_id` is found only by
    a search with that user in the filter; one without belongs to nobody. Safe with threads and with several processes
    on one file: what another process wrote or deleted is seen by the next search. The file may hold chat histories as
    well. Deleted text is overwritten, its words and its vector too: by `delete`, `forget` and `purge` everywhere and at
    once; what `evict` deleted, was replaced or has expired stays in the write-ahead log beside the file until that is
    used again, after some 4 MB of writes, or until the last process closes the file. No I/O happens before the first
    use.

    Args:
        path: The file; created at first use, its folder must exist. `":memory:"` keeps it in this object.
        embedding: The embedding model. Vectors of two models are never mixed: the store knows which one filled it.
        cache_bytes: How much of the last users' records is held in process, 96 MB by default; about 9 KB for a record
            with 384 dimensions. The last user is held however large, until another one is asked for.
        timeout: Seconds to wait for another process that is writing.
        file_mode: The rights of the file if it is made here, with its -wal and -shm: 0o600 by default, which is the
            owner's alone; 0o660 shares it with a group. A file that is there keeps its own.
        now: The clock, for tests.

    Raises:
        TypeError: The path is no file name.
        ConfigurationError: `embedding` is no `Embeddings`, or `cache_bytes` is no number of bytes.

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
        """Name the file."""
        return f"{type(self).__name__}({self._path!r})"
