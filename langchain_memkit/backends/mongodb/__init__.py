"""Chat histories, key-values and vectors in MongoDB: standalone, replica set or sharded cluster.

`clients` are shared, `commands` runs flows of commands on a collection, `repeating` those that may be sent again.
Histories: `store` over `reader` and `append`; `documents` builds every filter; `layout_*` write the rows of others.
Vectors: `vectors` over `vector_records`, `vector_writer`, `vector_reader`; `vector_documents` builds every filter. They
need the extra `vector`, so they are not imported here.
"""

from langchain_memkit.backends.mongodb.history import MongoDBChatMessageHistory
from langchain_memkit.backends.mongodb.key_value import MongoDBKeyValueStore

__all__ = ["MongoDBChatMessageHistory", "MongoDBKeyValueStore"]
