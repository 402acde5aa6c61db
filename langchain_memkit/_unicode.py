"""Scripts without spaces, and protection of Unicode normalization against input on which it takes quadratic time."""

from __future__ import annotations

import re
import unicodedata

MARKS = 30  # on a letter: no language needs more, says the Stream-Safe Text Format (Unicode Standard Annex 15)
# Scripts written without spaces, and Korean, whose endings are attached to the word.
DENSE = "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
DENSE += "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
IS_DENSE = re.compile(f"[{DENSE}]")
RUN = re.compile(r"[^\x00-\u02ff\s]{31,}")  # runs in which more marks may occur: no mark has a lower code point


def few_marks(text: str) -> str:
    """Limit a text to 30 combining marks per letter: Python's normalization sorts them in quadratic time.

    Example:
        >>> len(few_marks("e" + 1000 * "\u0301")), few_marks("cafe\u0301") == "cafe\u0301"
        (31, True)
    """

    def few(run: re.Match[str]) -> str:
        kept: list[str] = []
        marks = 0
        for char in run.group():
            marks = marks + 1 if unicodedata.combining(char) else 0
            if marks <= MARKS:
                kept.append(char)
        return "".join(kept)

    return text if text.isascii() else RUN.sub(few, text)
