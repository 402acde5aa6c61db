"""Whether a text asks something. Pure."""

from __future__ import annotations

import re

ASKING = """what which who whom whose when where why how is are am was were do does did can could will would shall
    should has have had may might must isn't aren't wasn't weren't don't doesn't didn't can't couldn't won't wouldn't
    shouldn't hasn't haven't what's who's where's when's how's why's"""
ORDERS = """tell list explain describe give compare find show name summarize summarise define discuss outline provide
    help recommend suggest identify elaborate write calculate search look translate please let"""
_MARK = re.compile(r"[?\uff1f\u061f\u037e]")
_ASKS = re.compile(rf"(?i)\W*(?:(?:{'|'.join(ASKING.split())})\b|\w+\s+(?:\w+\s+)?(?:what|which|whom?|whose)\b)")
_ORDERS = re.compile(rf"\W*(?:{'|'.join(ORDERS.split())})\b", re.IGNORECASE)


def asks(text: str) -> bool:
    """Return whether a text asks: by a question mark of any script, or as an English question or order begins.

    Example:
        >>> asks("how old is he"), asks("Tell me more."), asks("Noted.")
        (True, True, False)
    """
    return any(pattern.match(text) for pattern in (_ASKS, _ORDERS)) or _MARK.search(text) is not None
