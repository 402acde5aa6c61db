"""Ranking of records for a question: tokenizing, an in-process index, and the scores. Pure, on numpy; no I/O.

`index` holds the records of a user (`entries`); `ranking` orders them. Both build on smaller modules: `words`
(tokenizing), `postings`, `matches` and `bm25` (lexical search), `dates` and `speakers` (parsing the question), `view`
(an array snapshot of the index), `features` (scores as arrays) and `relation` (whether to recall anything at all).
"""

from __future__ import annotations
