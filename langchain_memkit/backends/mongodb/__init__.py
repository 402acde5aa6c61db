"""Chat histories, key-values and vectors in MongoDB: standalone, replica set or sharded cluster.

`clients` shares driver clients, `commands` runs flows of commands on a collection, `repeating` retries idempotent
writes.
Histories: `store` builds on `reader` and `append`; `documents` builds every filter; the `layout_*` modules write the
documents of other packages.
Vectors: `vectors` builds on `vector_records`, `vector_writer` and `vector_reader`; `vector_documents` builds every
filter. They need the extra `vector`, so they are not imported here.
"""

from langchain_memkit.backends.mongodb.history import MongoDBChatMessageHistory
from langchain_memkit.backends.mongodb.key_value import MongoDBKeyValueStore

__all__ = ["MongoDBChatMessageHistory", "MongoDBKeyValueStore"]
