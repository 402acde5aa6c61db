"""Memories: what is remembered besides the history of a session.

The memories are `chat_history`, `retriever`, `composed`, `key_value`, `entity`, `vector` and `preferences`. Shared
parts: `fanout` calls several memories, `over_histories` has the base classes of the last three, and `derived_log` holds
in process what these derive from turns. Each folder has a `memory` with the public classes, and modules below it.
"""
