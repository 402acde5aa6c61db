"""Chat histories and key-value store in MongoDB: standalone, replica set or sharded cluster."""

from langchain_memkit.backends.mongodb.history import MongoDBChatMessageHistory
from langchain_memkit.backends.mongodb.key_value import MongoDBKeyValueStore

__all__ = ["MongoDBChatMessageHistory", "MongoDBKeyValueStore"]
