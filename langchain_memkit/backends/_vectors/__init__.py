"""The shared half of the vector stores: verbs, a cache of users' records, and the data exchanged with a backend.

`store` has LangChain's verbs, built on `forgetting`, `writing` and `reading`. `embedding` calls the embedding model and
checks its vectors, `shelf` caches users' records in process, `scope` parses filters. `backend` is the interface that a
backend implements, `rows` the data that passes through it.
"""
