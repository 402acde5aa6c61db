"""Which records answer a question: words, dates, an index in process, and the ranking. Pure, on numpy; no I/O."""
