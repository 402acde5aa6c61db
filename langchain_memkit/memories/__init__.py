"""What is remembered besides the history of a session.

The memories: `chat_history`, `retriever`, `composed`, `key_value`, `entity`, `vector`. What they share: `telling` tries
several of them, `transcripts` reads the histories that `entity` and `vector` are derived from, and `derived` has what
these two have in common. Each folder has a `factory`, a `memory` with the public class, and pure modules below it.
"""
