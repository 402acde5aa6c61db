"""Memories: what is remembered besides the history of a session.

The memories are `chat_history`, `retriever`, `composed`, `key_value`, `entity` and `vector`. Shared parts: `telling`
calls several memories, `transcripts` reads the histories that `entity` and `vector` are derived from, and `derived`
holds the base classes of these two. Each folder has a `factory`, a `memory` with the public class, and pure modules
below it.
"""
