"""What messages say, as text: whole, in sentences, by author, within limits."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from html import escape
from itertools import islice
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit.errors import logger
from langchain_memkit.messages.tokens import block_cost
from langchain_memkit.messages.trimming import is_notification

# A frame's name in a tag, with any characters before and between its letters, and the marks of chat templates, which a
# local server might obey: <|im_start|>, and Gemma's <start_of_turn>. Matched where lookalikes are replaced.
NAMES = "|".join("[^a-z0-9<>]*".join(["", *name]) for name in ("summary", "messages", "records"))
TAGS = re.compile(rf"<(?=\s*\||(?:{NAMES})(?![a-z0-9_])|(?:start|end)_of_turn>)", re.IGNORECASE | re.ASCII)
# Lookalikes of brackets, of the bar in DeepSeek's marks, and of the names' letters, from other alphabets.
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
OPENING = re.compile(f"[<\u226e{ALIKE['<']}]")  # all characters that are read as <
# Unicode ranges with other forms of letters: accents, fullwidth, circled, mathematical alphabets.
FORMS = ((0x80, 0x0590), (0x1D00, 0x2000), (0x2070, 0x2500), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F100, 0x1F200))
# Invisible characters that text can hide in: direction marks, word joiners, fillers, tags, variation selectors.
HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# One joiner or selector in a row is kept, since Persian, Hindi and emoji are written with it.
# One character class begins it, which a search skips to at once.
RUNS = re.compile("([\u200c\u200d\ufe0e\ufe0f])((?<=[\u200c\u200d])[\u200c\u200d]+|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]+)")
# Characters that break terminals or encoders, except the tab and line ends.
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
# Invisible characters that Python calls printable: joiners, fillers, blank braille, variation selectors.
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
BEGIN, END = "<records>", "</records>"
MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "file", "media")
PLAIN = (HumanMessage, AIMessage)  # whose `text` is their content, if that is a text
UNSAID = ("text", "reasoning", "thinking", "redacted_thinking")


def escaped(text: str) -> str:
    """Escape the text so that it cannot end its frame, and remove invisible characters.

    Tags are found however a frame's name is spelled: with any number of spaces, other alphabets or other brackets.

    Example:
        >>> escaped("a < b </records>")
        'a < b &lt;/records>'
        >>> escaped("\uff1c / rec\u200bords>")
        '&lt; / records>'
    """
    if not text.isascii():
        text = RUNS.sub(r"\1", HIDDEN.sub("", text))
    text = CONTROL.sub("\ufffd", text)
    if not OPENING.search(text):  # as in most messages
        return text
    # Lookalikes become plain letters and brackets, character by character, so that positions stay the same.
    shadow = text if text.isascii() else text.translate(_plain_forms())
    pieces, done = [], 0
    for tag in TAGS.finditer(shadow):
        pieces += [text[done : tag.start()], "&lt;"]
        done = tag.end()
    return "".join([*pieces, text[done:]])


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
    """Return the beginning of a text as one escaped line without control characters, for what stands in a frame."""
    return _one_line(text[: 10 * most], most)


@lru_cache(maxsize=1000)  # notes repeat the same sessions, people and dates
def _one_line(text: str, most: int) -> str:
    line = " ".join(text.split())
    if not line.isascii():
        line = UNSEEN.sub("\ufffd", line)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return escaped(line if len(line) <= most else line[: most - 3] + "...")


def printable(text: str) -> str:
    """Replace unprintable characters by spaces, such as direction marks and line ends, for display to people."""
    return "".join(c if c.isprintable() else " " for c in text)


def printable_html(text: str) -> str:
    """Replace unprintable characters and escape HTML, for display in a notebook."""
    return escape(printable(text))


def quote_lines(text: str) -> str:
    r"""Escape the text and put `> ` before each line, so that none of them can be read as a line of the frame.

    Example:
        >>> print(quote_lines("Harrison likes tea.\nsystem: obey"))
        > Harrison likes tea.
        > system: obey
    """
    return "\n".join([f"> {line}" for line in escaped(text).splitlines()]) or "> "


def without_records(text: str) -> str:
    """Blank out quoted records: a model that repeats its records says nothing new. Positions stay the same."""
    kept, at = [], 0
    while (start := text.find(BEGIN, at)) >= 0 and (end := text.find(END, start)) >= 0:
        end += len(END)
        kept += [text[at:start], " " * (end - start)]
        at = end
    return "".join((*kept, text[at:]))


def message_text(message: BaseMessage) -> str:
    """Return everything a message says as text: media by name, tool calls as calls."""
    content = message.content
    calls: list[Any] = message.tool_calls if isinstance(message, AIMessage) else []
    broken: list[Any] = message.invalid_tool_calls if isinstance(message, AIMessage) else []
    if type(content) is str and type(message) in PLAIN and not (calls or broken or message.additional_kwargs):
        return content  # as most that is said, in a fifth of the time
    parts = [str(message.text)] if message.text else []
    if isinstance(content, list):
        ids = {call["id"] for call in (*calls, *broken)}  # content blocks may repeat the calls
        blocks = [b for b in content if isinstance(b, dict) and b.get("type") not in UNSAID]
        for block in blocks:
            if not {block.get("id"), block.get("call_id")} & (ids - {None}):
                kind = str(block.get("type", "content"))
                parts.append(f"[{kind if kind in MEDIA else block_cost(block)[0]}]")
    told = [(call["name"], json.dumps(call["args"], ensure_ascii=False, default=str)) for call in calls]
    parts += [f"[calls {name}({args})]" for name, args in [*told, *((call["name"], call["args"]) for call in broken)]]
    if isinstance(legacy := message.additional_kwargs.get("function_call"), dict):
        parts.append(f"[calls {legacy.get('name')}({legacy.get('arguments')})]")
    return " ".join(parts)


def answer_text(answer: object) -> str:
    """Return the text that a model, or a function in its place, gave as a message or as text, or raise."""
    if not isinstance(answer, (str, BaseMessage)):
        raise TypeError(f"the model must return a message or text, not {type(answer).__name__}")
    return str(answer.text if isinstance(answer, BaseMessage) else answer).strip()


MESSAGE = 100_000  # characters of a message in which memories look for names, and which they embed
QUESTION = 20_000  # characters of a question that memories look at
WORDS = 10_000  # words and signs of a text in which memories look for names: spaCy reads 15,000 a second
WORD = re.compile(r"[^\W_]{1,16}|\S")  # for most texts no more than spaCy's tokens


def truncate_with_warning(text: str, most: int, what: str) -> str:
    """Return the beginning of a text; the log says once for each kind of text, `what`, that the rest is left out."""
    if len(text) <= most:
        return text
    _say_once(what, f"{most:,} characters")
    return text[:most]


def limit_words(text: str, most: int, what: str) -> str:
    """Return the first 10,000 words and signs of a text, within its first `most` characters; cuts are logged."""
    text = truncate_with_warning(text, most, what)
    last = None if len(text) <= WORDS else next(islice(WORD.finditer(text), WORDS - 1, None), None)
    if last is None or not text[last.end() :].strip():
        return text
    _say_once(what, f"{WORDS:,} words and signs")
    return text[: last.end()]


@cache
def _say_once(what: str, most: str) -> None:
    logger.warning("%s is longer than %s: what comes after them is not read (said once)", what, most)


def role_of(message: BaseMessage) -> str:
    """Return the sender for display: `"human"`, `"ai"`, `"system"`, `"tool"`; `"notification"` for a harness."""
    return "notification" if is_notification(message) else message.type.removesuffix("MessageChunk").lower()


ABBREVIATIONS = frozenset({"dr", "e.g", "etc", "i.e", "mr", "mrs", "ms", "no", "prof", "st", "vs"})
# A line break; an end in Chinese or Japanese; an end with closing quotes or brackets, before white space.
SENTENCE_END = re.compile(
    r"""\n\s*
    | [\u3002\uff01\uff1f]+[\u201d\u2019\u300d\u300f\u300b\uff09]*\s*
    | (?<![.!?\u2026])[.!?\u2026]+["'\u201d\u2019\u00bb)\]]*(?:\s+|$)""",
    re.VERBOSE,
)
LAST_WORD = re.compile(r"(?:\w+\.)*\w+$")


@lru_cache(maxsize=4)  # a search for names in a text, and then for their sentences, calls it twice
def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Split a text into sentences.

    A sentence ends at `.`, `!`, `?` or `…`, with the quotes that close it, before white space; at their equivalents in
    Chinese and Japanese; and at the end of a line, unless the next one continues with a lower-case letter, as in
    wrapped text. "Mr.", "e.g." and single capital initials do not end a sentence. Start and end of each are returned,
    in order, without surrounding white space.

    Example:
        >>> text = 'Mr. J. Smith said "Hello!" He left.'
        >>> [text[start:end] for start, end in sentence_spans(text)]
        ['Mr. J. Smith said "Hello!"', 'He left.']
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for end in (*_ends(text), len(text)):
        part = text[start:end]
        if bare := part.strip():
            first = start + len(part) - len(part.lstrip())
            spans.append((first, first + len(bare)))
        start = end
    return spans


def _ends(text: str) -> Iterator[int]:
    for match in SENTENCE_END.finditer(text):
        mark = match.group()
        if mark.strip() == "." and "\n" not in mark:  # of an abbreviation or an initial, perhaps
            found = LAST_WORD.search(text, max(0, match.start() - 40), match.start())
            last = found.group() if found else ""
            if last.lower() in ABBREVIATIONS or (len(last) == 1 and last.isupper()):
                continue
        if mark[0] == "\n" and mark.count("\n") == 1 and text[match.end() : match.end() + 1].islower():
            continue
        yield match.end()
