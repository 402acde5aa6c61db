"""Chat history in MongoDB: standalone, replica set or sharded cluster."""

from langchain_memkit.backends.mongodb.history import MongoDBChatMessageHistory

__all__ = ["MongoDBChatMessageHistory"]
