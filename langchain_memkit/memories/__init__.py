"""Memories: what is remembered besides the history of a session.

The memories are `chat_history`, `retriever`, `composed`, `key_value`, `entity`, `vector` and `preferences`. Shared
parts: `fanout` calls several memories, `rebuildable` holds the base classes of the last three and reads the transcripts
that these are derived from. Each folder has a `memory` with the public classes, and modules below it.
"""
