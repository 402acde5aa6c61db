"""Ranking of records for a question: tokenizing, an in-process index, and the score. Pure, on numpy; no I/O.

`question` reads what is asked, once, with the days (`dates`) and speakers that it names. `index` holds the
records of a user (`records`, `bm25`), by their stems (`tokenize`) and vectors. `score` says how related each of them is
to the question, and `floor` which of them are related at all, and why.
"""

from __future__ import annotations
