"""One module per outside dependency; nothing here is imported before it is used."""
