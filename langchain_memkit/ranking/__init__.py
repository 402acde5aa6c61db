"""Ranking of records for a question: tokenizing, an in-process index, and the score. Pure, on numpy; no I/O.

`index` holds the records of a user (`records`), `question` reads what is asked, `score` orders the records for it, and
`floor` chooses those that are related to it at all. They build on `tokenize`, `bm25` (words), `dates` and `speakers`.
"""

from __future__ import annotations
