"""The shared half of the key-value stores: verbs, and the data exchanged with a backend."""
