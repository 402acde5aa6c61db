"""What the vector stores share: verbs, users' records in process, and what goes between them and a backend."""
