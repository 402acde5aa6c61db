"""Chat histories and key-values in one SQLite file: no server, safe with threads and processes.

Every write is one transaction (`BEGIN IMMEDIATE`) on a WAL database with `synchronous=FULL`: a turn that was
acknowledged survives a kill and a power cut, and half a turn is never seen. Deleted text is overwritten
(`secure_delete`), the write-ahead log is emptied after `clear` and `purge`, and a small file is rewritten.

`database` has the connections and runs flows on them; `history` and `key_value` have the SQL of their tables;
`inspection` reads files without changing them.
"""

from langchain_memkit.backends.sqlite.history import SQLiteChatMessageHistory
from langchain_memkit.backends.sqlite.key_value import SQLiteKeyValueStore

__all__ = ["SQLiteChatMessageHistory", "SQLiteKeyValueStore"]
