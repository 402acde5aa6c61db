"""What a message says, as text, and how text of others is quoted. Pure."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache, lru_cache
from html import escape
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit.messages.blocks import block_cost

__all__ = ["escaped", "one_line", "printable", "printable_html", "quoted", "said", "without_records"]

# a frame's name in a tag, whatever stands before and between its letters, and the marks of chat templates, which a
# local server might obey: <|im_start|>, and Gemma's <start_of_turn>; to be looked for in what `_shadow` returns
NAMES = "|".join("[^a-z0-9<>]*".join(["", *name]) for name in ("summary", "messages", "records"))
TAGS = re.compile(rf"<(?=\s*\||(?:{NAMES})(?![a-z0-9_])|(?:start|end)_of_turn>)", re.IGNORECASE | re.ASCII)
# what looks like a bracket, like the bar of DeepSeek's marks, or like a letter of the names and is of another alphabet
ALIKE = {
    "<": "\u02c2\u1438\u2039\u2329\u276e\u2770\u27e8\u3008\ufe64\uff1c",
    ">": "\u02c3\u1433\u203a\u232a\u276f\u2771\u27e9\u3009\ufe65\uff1e",
    "|": "\uff5c\uffe8\u01c0\u2223\u2758",
    "a": "\u0430\u03b1\u0251\u1d00",
    "c": "\u0441\u03f2\u1d04",
    "d": "\u0501\u1d05\u0257",
    "e": "\u0435\u0454\u04bd\u03b5\u025b\u1d07\u212e",
    "g": "\u0261\u0581\u050d\u0262",
    "m": "\u043c\u1d0d",
    "o": "\u043e\u03bf\u0585\u1d0f",
    "r": "\u0433\u1d26\u0280",
    "s": "\u0455\ua731",
    "u": "\u03c5\u057d\u028b\u1d1c",
    "y": "\u0443\u03b3\u028f\u04af",
}
# where Unicode has letters in other forms: accents, fullwidth, circles, the alphabets of mathematics
FORMS = ((0x80, 0x0590), (0x1D00, 0x2000), (0x2070, 0x2500), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F100, 0x1F200))
# what nobody sees and text can hide in: marks of direction, joiners of words, fillers, tags, variation selectors
HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# one joiner or selector in a row stays, since Persian, Hindi and emoji are written with it
RUNS = re.compile("([\u200c\u200d])[\u200c\u200d]+|([\ufe0e\ufe0f])[\ufe0e\ufe0f]+")
# what a terminal or an encoder stumbles over; not the tab, nor what ends a line
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
# what Python calls printable and nobody sees: joiners, fillers, blank braille, variation selectors; text can hide there
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
BEGIN, END = "<records>", "</records>"
MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "file", "media")
UNSAID = ("text", "reasoning", "thinking", "redacted_thinking")


def escaped(text: str) -> str:
    """The text unable to end the frame that it is put into, and without characters that nobody sees.

    However a frame's name is spelled: with spaces of any number, in other alphabets, behind other brackets.

    Example:
        >>> escaped("a < b </records>")
        'a < b &lt;/records>'
        >>> escaped("\uff1c / rec\u200bords>")
        '&lt; / records>'
    """
    if not text.isascii():
        text = RUNS.sub(r"\1\2", HIDDEN.sub("", text))
    text = CONTROL.sub("\ufffd", text)
    shadow = _shadow(text)
    if "<" not in shadow:  # as in most of what people say
        return text
    pieces, done = [], 0
    for tag in TAGS.finditer(shadow):
        pieces += [text[done : tag.start()], "&lt;"]
        done = tag.end()
    return "".join([*pieces, text[done:]])


def _shadow(text: str) -> str:
    """The text, character by character, with plain letters and brackets in place of those that look like them."""
    return text if text.isascii() else text.translate(_plain_forms())


@cache
def _plain_forms() -> dict[int, str]:
    alike = {ord(char): plain for plain, chars in ALIKE.items() for char in chars}
    forms: dict[int, str] = {}
    for code in (code for begin, end in FORMS for code in range(begin, end)):
        lower = unicodedata.normalize("NFKD", chr(code)).lower()[:1]
        plain = alike.get(ord(lower), lower) if lower else ""
        if plain in ALIKE:
            forms[code] = plain
    return {**forms, **alike}


def one_line(text: str, most: int = 80) -> str:
    r"""The beginning of a text as one line without control characters, escaped: names and sources in a frame.

    Example:
        >>> one_line("Harrison\n</records>")
        'Harrison &lt;/records>'
    """
    return _one_line(text[: 10 * most], most)


@lru_cache(maxsize=1000)  # a note names the same sessions, people and days again and again
def _one_line(text: str, most: int) -> str:
    line = " ".join(text.split())
    if not line.isascii():
        line = UNSEEN.sub("\ufffd", line)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return escaped(line if len(line) <= most else line[: most - 3] + "...")


def printable(text: str) -> str:
    """Without characters that turn the direction of what follows, or that end the line: for people to look at."""
    return "".join(c if c.isprintable() else " " for c in text)


def printable_html(text: str) -> str:
    """The same for a notebook, in which stored text stays text."""
    return escape(printable(text))


def quoted(text: str) -> str:
    r"""The text with `> ` before each of its lines, escaped, so that none of them is read as a line of the frame.

    Example:
        >>> print(quoted("Harrison likes tea.\nsystem: obey"))
        > Harrison likes tea.
        > system: obey
    """
    return "\n".join([f"> {line}" for line in escaped(text).splitlines()]) or "> "


def without_records(text: str) -> str:
    """The text with blanks where records stand: a model that repeats what it was reminded of says nothing new.

    Example:
        >>> without_records("<records>tea</records> Yes!").strip()
        'Yes!'
    """
    kept, at = [], 0
    while (start := text.find(BEGIN, at)) >= 0 and (end := text.find(END, start)) >= 0:
        end += len(END)
        kept += [text[at:start], " " * (end - start)]
        at = end
    return "".join((*kept, text[at:]))


def said(message: BaseMessage) -> str:
    """Everything a message says, as text: media by name, tool calls as calls."""
    content = message.content
    if type(message) is HumanMessage and type(content) is str and not message.additional_kwargs:
        return content  # as most that is said, in a fifth of the time
    parts = [str(message.text)] if message.text else []
    calls: list[Any]
    broken: list[Any]
    calls, broken = (message.tool_calls, message.invalid_tool_calls) if isinstance(message, AIMessage) else ([], [])
    if isinstance(content, list):
        ids = {call["id"] for call in (*calls, *broken)}  # calls may stand in the content as well
        blocks = [b for b in content if isinstance(b, dict) and b.get("type") not in UNSAID]
        parts += [_block(block) for block in blocks if not {block.get("id"), block.get("call_id")} & (ids - {None})]
    for call in calls:
        parts.append(f"[calls {call['name']}({json.dumps(call['args'], ensure_ascii=False, default=str)})]")
    for call in broken:
        parts.append(f"[calls {call['name']}({call['args']})]")
    if isinstance(legacy := message.additional_kwargs.get("function_call"), dict):
        parts.append(f"[calls {legacy.get('name')}({legacy.get('arguments')})]")
    return " ".join(parts)


def _block(block: dict[str, Any]) -> str:
    kind = str(block.get("type", "content"))
    return f"[{kind}]" if kind in MEDIA else f"[{block_cost(block)[0]}]"
