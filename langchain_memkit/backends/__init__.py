"""One module or folder per outside dependency; nothing here is imported before it is used.

What a backend must be able to do is an interface of `stores`: `TurnStore` or `KeyValueBackend`.
"""
