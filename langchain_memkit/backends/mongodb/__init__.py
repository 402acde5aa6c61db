"""Chat histories and key-values in MongoDB: standalone, replica set or sharded cluster.

`clients` shares driver clients, `commands` runs flows of commands on a collection and `failures` cleans its errors.
Histories: `turns` appends and reads, `documents` builds every filter, `layouts` writes documents of other packages.
"""

from langchain_memkit.backends.mongodb.history import MongoDBChatMessageHistory
from langchain_memkit.backends.mongodb.key_value import MongoDBKeyValueStore

__all__ = ["MongoDBChatMessageHistory", "MongoDBKeyValueStore"]
