"""Which records answer a question: words, dates, an index in process, and the ranking. Pure, on numpy; no I/O.

`index` holds the records of a user (`entries`), `ranking` puts them in order. Both are made of the smaller modules:
`words`, `postings`, `matches` and `bm25` compare texts, `dates` and `speakers` read the question, `view` and `features`
are arrays.
"""
