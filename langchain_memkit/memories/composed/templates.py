"""Templates that render records for a model in other formats than our quoted frame. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from langchain_memkit.messages.notes import Record
from langchain_memkit.messages.text import escaped, one_line

__all__ = ["llama_index_template"]

INTRO = "Below are a set of relevant dialogues retrieved from potentially several memory sources:"
OUTRO = "This is the end of the retrieved message dialogues."
ROLES = {"human": "USER", "ai": "ASSISTANT"}
CALLS = re.compile(r"\[calls .*\]", re.DOTALL)  # a message that says nothing else


def llama_index_template(records: Sequence[Record]) -> str:
    r"""Render records as the notebook on LlamaIndex's `SimpleComposableMemory` prints them, for `position="system"`.

    As there, a message that only calls tools is rendered as `None`; dates and sources are left out, and nothing says
    that the records are no instructions. Unlike there, further lines of a message are indented, so that a message
    cannot imitate the end of the records or another speaker. The lines of `=====` that LlamaIndex itself puts around
    each source are neither in that notebook's output nor here.

    Args:
        records: In the order in which they are shown.

    Example:
        >>> llama_index_template([Record("Bob likes burgers.", role="human")]).splitlines()[4]
        '\tUSER: Bob likes burgers.'
    """
    lines = [f"\t{_line(who, text)}" for record in records for who, text in _spoken(record)]
    return "\n".join([INTRO, "", "", "", *lines, "", "", "", OUTRO])


def _line(who: str, text: str) -> str:
    if who == "ai" and (not text or CALLS.fullmatch(text)):
        text = "None"
    role = ROLES.get(who) or one_line(who).upper() or "RECORD"
    return f"{role}: " + "\n\t  ".join(escaped(text).splitlines())


def _spoken(record: Record) -> Iterator[tuple[str, str]]:
    """Yield speaker and words of each message in a record; its text holds a line `speaker: words` for each message."""
    at = 0
    lines: list[tuple[str, str]] = []
    for _, words in record.parts:
        begin = record.text.find(f": {words}", at)
        if begin < 0:
            lines = []
            break
        lines.append((record.text[at:begin].strip(), words))
        at = begin + len(": ") + len(words)
    yield from lines or [(record.role or record.about, record.text)]
