"""One module per outside dependency; nothing here is imported before it is used.

`_history`, `_key_value` and `_vectors` hold what the stores of a kind share: verbs in both call styles, and pure data.
What a backend must be able to do is a protocol there: `TurnStore`, `KeyValueBackend`, `VectorBackend`.
"""
