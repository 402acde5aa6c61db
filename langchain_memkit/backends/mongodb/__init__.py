"""Chat histories, key-values and vectors in MongoDB: standalone, replica set or sharded cluster.

`clients` shares driver clients, `commands` runs flows of commands on a collection and `failures` cleans its errors.
Histories: `turns` appends and reads, `documents` builds every filter, `layouts` writes documents of other packages.
Vectors: `vectors` is the store with its flows, `vector_documents` builds every filter. They need the extra
`vector`, so they are not imported here.
"""

from langchain_memkit.backends.mongodb.history import MongoDBChatMessageHistory
from langchain_memkit.backends.mongodb.key_value import MongoDBKeyValueStore

__all__ = ["MongoDBChatMessageHistory", "MongoDBKeyValueStore"]
