"""What the key-value stores share: verbs, and what goes between them and a backend."""
