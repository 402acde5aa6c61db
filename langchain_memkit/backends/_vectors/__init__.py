"""What the vector stores share: verbs, users' records in process, and what goes between them and a backend.

`store` has LangChain's verbs, on top of `forgetting`, `writing` and `reading`. `embedding` makes vectors that belong
together, `shelf` holds users' records in process, `scope` says where to look. `backend` is what a backend is, `rows`
what goes to it.
"""
