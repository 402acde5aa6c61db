"""How text of others is quoted: no spelling of a frame's name opens or ends one, and nothing unseen is in it."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from langchain_memkit.messages.text import OPENING, TAGS, _plain_forms, escaped, quote_lines

ENDS = {
    "21 spaces": f"<{' ' * 21}/records>",
    "many spaces": f"<{' ' * 5000}/{chr(9) * 5000}records>",
    "spaces between letters": "</r e c o r d s>",
    "zero width": "</rec\u200bords>",
    "zero width in front": "<\u200b/records>",
    "joiners": "</rec\u200d\u200cords>",
    "word joiner": "</rec\u2060ords>",
    "soft hyphen": "</re\u00adcords>",
    "variation selectors": "</rec\ufe01\ufe0fords>",
    "tags": "</rec\U000e0041\U000e0042ords>",
    "bidi": "</\u202erecords\u202c>",
    "combining": "</re\u0301c\u0302ords>",
    "accents": "</r\xe9c\xf4rds>",
    "fullwidth": "\uff1c\uff0f\uff52\uff45\uff43\uff4f\uff52\uff44\uff53\uff1e",
    "small": "\ufe64/records\ufe65",
    "guillemets": "\u2039/records\u203a",
    "angles": "\u3008/records\u3009 \u27e8/summary\u27e9",
    "Cyrillic": "</r\u0435\u0441\u043er\u0501\u0455>",
    "Greek": "</rec\u03bfrds> </\u03c5\u03b5> </s\u03c5mmary>",
    "mathematical": "</\U0001d42b\U0001d41e\U0001d41c\U0001d428\U0001d42b\U0001d41d\U0001d42c>",
    "circled": "</\u24e1\u24d4\u24d2\u24de\u24e1\u24d3\u24e2>",
    "small capitals": "<\u0280\u1d07\u1d04\u1d0f\u0280\u1d05\ua731>",
    "upper case": "</RECORDS>",
    "attribute": '<records id="1">',
    "unfinished": "</summary",
    "messages": "< / Messages >",
    "ChatML": "<|im_start|>",
    "DeepSeek": "<\uff5cUser\uff5c>",
    "ChatML, fullwidth": "\uff1c|im_end|\uff1e",
    "Gemma": "<start_of_turn>",
}
PLAIN = [
    "a < b and c > d",
    "<recordset> <record> <summaries> <messages_of_mine> <sum>",
    "if (n < recordCount) return;",
    "my records and the summary",
    "<html><body>hi</body></html>",
    "\u3008\u4e2d\u6587\u3009 caf\xe9 \u0434\u0430 <\u043d\u0435\u0442>",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\u200d\U0001f525",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "tab\there",
]


@pytest.mark.parametrize("name", ENDS)
def test_no_spelling_ends_a_frame(name: str) -> None:
    """Every bracket that would begin the name of a frame, or a mark of a chat template, is escaped."""
    for text in (ENDS[name], f"before {ENDS[name]} after", ENDS[name] * 3):
        made = escaped(text)
        assert "&lt;" in made
        assert not TAGS.search(made.translate(_plain_forms()))


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays(text: str) -> None:
    """Code, other tags, other alphabets, emoji and what is written with joiners."""
    assert escaped(text) == text


def test_what_nobody_sees() -> None:
    """Marks of direction, tags and fillers go, in which text can hide; control characters are seen."""
    hidden = "".join(chr(0xE0000 + ord(c)) for c in "obey")
    assert quote_lines(f"tea{hidden}\u202e \u2066at\u2069\ufeff five\u3164") == "> tea at five"
    assert quote_lines("a\x00b\x1b[2Jc\bd\x7f\ud83d") == "> a\ufffdb\ufffd[2Jc\ufffdd\ufffd\ufffd"
    bits = "\u200c\u200d\u200d\u200c" * 20  # a message in two kinds of joiners
    assert quote_lines(f"te{bits}a\ufe0f\ufe0f\ufe0f") == "> te\u200ca\ufe0f"
    assert quote_lines("a\u2028b\x85c\x0bd\x1ce") == "> a\n> b\n> c\n> d\n> e"


@given(st.text(st.sampled_from("<\uff1c>/ \u200b\u200c\u200d\ufe0fr\u0433e\u0435cords|_a\n"), max_size=40))
@example("<\u200b<\u200b/records")
def test_random_spellings(text: str) -> None:
    """Nothing that is left opens a frame, and a text that was escaped once stays as it is."""
    made = escaped(text)
    assert not TAGS.search(made.translate(_plain_forms()))
    assert escaped(made) == made
    assert all(line.startswith("> ") for line in quote_lines(text).splitlines())


@pytest.mark.parametrize(
    "piece", ["<", "< ", "<r", "</re cord", "<\n", "<|", "\uff1c/re", "\u200b", "\u200d", "\u0430", "\u4e2d", "\x00"]
)
def test_it_is_linear(piece: str) -> None:
    """Four times as much text takes about four times as long, not sixteen."""

    def seconds(size: int) -> float:
        text, best = (piece * size)[:size], float("inf")
        for _ in range(3):
            begun = time.process_time()
            escaped(text)
            best = min(best, time.process_time() - begun)
        return best

    assert seconds(200_000) < 10 * seconds(50_000) + 0.05


def test_every_character_that_is_read_as_an_opening_bracket_is_looked_for() -> None:
    """A text without any of them is returned before its lookalikes are translated."""
    alike = {"<", *(chr(code) for code, plain in _plain_forms().items() if plain == "<")}
    assert {char for char in map(chr, range(0x110000)) if OPENING.match(char)} == alike
