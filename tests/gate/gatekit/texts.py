"""Texts that make a parser slow: each short alphabet at random, and shapes that were found to be, at any length."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from string import punctuation

TOGETHER = 10  # alphabets in a text
WIDE = "\u65e5\uff0e\U0001f642"  # a letter, a full stop and a sign of two columns
CHARACTERS = f"{punctuation}aA0 \n\u0301\u2019{WIDE}"

# One of each kind: what spaCy's tokenizer splits off before, after and within words, what our patterns and
# LangChain's look for, and what no rule knows.
ALPHABETS = """
_. 's _ US$ . - a 0 \u0301 \u65e5 \U0001f642 _- _' _a _0 _\u0301 .a .0 .A '- 'a \u2019s -a -0 ,a ,0 :a :0 /a @. # % ( ()
(a [] {} <> </ <a "a "' ` * ** ~ ^ + += = & | \\ ! ?! ; $0 0% 0k aA a0 a\u0301 .\u0301 \u65e5. \u65e5\uff0e \U0001f642a
_.a _'s .,; ?!. (). ([{ <>/ a.b a-b A.B 0.0 0,0 0:0 0-a 'a. \u65e5a. a\u0301. \u0301._ \U0001f642._
""".split()  # noqa: SIM905  # a list would be a line for each
SHAPES = {
    "spaces": " ",
    "lines": "\n",
    "tabs and lines": "\t\n ",
    "one letter": "a",
    "words of one letter": "a b ",
    "names": "Ann Bob ",
    "new names": "",  # see `shaped`
    "initials": "J. R. R. ",
    "abbreviations": "e.g. i.e. Mr. ",
    "greetings": "Hi Ann, Dear Bob! ",
    "unclosed records": "<records>",
    "closed records": "</records>",
    "records": "<records>a</records>",
    "summaries": "<summary> </ summary>",
    "marks of templates": "<|im_start|><start_of_turn>",
    "thoughts": "<think>",
    "tool calls": "[calls a(",
    "quotes": "> > ",
    "brackets": "[(",
    "JSON": '{"a": [',
    "backslashes": "\\",
    "hashes and fences": "#\n```\n",
    "a table": "| a | b |\n|---|---|\n",
    "links": "https://a.b/c?d=e&f=%20#g,",
    "addresses": "a.b@c.d,",
    "dates": "2026-01-02 3 May 2026, last week, ",
    "numbers": "1,234.5e-6 ",
    "titles": "The Skeleton Songs ",
    "titles, misspelt": "The Skeletn Sogns ",
    "pieces of titles": "The Skel ",
    "what folds to 18 characters": "\ufdfa",
    "what folds to 18, in words": "\ufdfa ",
    "marks on a letter": "a" + 500 * "\u0301\u0323",
    "joined emoji": "\U0001f468\u200d\U0001f469\u200d",
    "flags": "\U0001f1e9\U0001f1ea",
    "from right to left": "\u202e\u05d0\u0627 ",
    "unseen": "\u200b\ufeff\u00ad",
    "Hangul parts": "\u1100\u1161\u11a8",
    "half pairs": "\ud83d",
    "NUL": "\x00",
    "wide words": "\u65e5\u672c\u8a9e\u3002",
    "pronouns": "and why does it, the one that he ",
    "thanks": "ok, thanks, so now, ",
    "contractions": "can't won't I'd've ",
    "citations": "[1] [2, 3] ",
}
LONG = (  # where something was found, or is slow
    "words of one letter",
    "new names",
    "unclosed records",
    "JSON",
    "links",
    "titles, misspelt",
    "what folds to 18 characters",
    "marks on a letter",
    "joined emoji",
    "half pairs",
)


def filled(unit: str, size: int) -> str:
    """The unit again and again."""
    return (unit * (size // len(unit) + 1))[:size]


def scattered(alphabet: str, size: int) -> str:
    """The characters of an alphabet at random, the same at every run."""
    return "".join(random.Random(alphabet).choices(alphabet, k=size))


def shaped(name: str, size: int) -> str:
    """A shape by name."""
    if name == "new names":
        return " ".join(f"Ann{number:x} met Bob{number:x}." for number in range(size // 16))[:size]
    return filled(SHAPES[name], size)


def packs(alphabets: Sequence[str], size: int) -> dict[str, Callable[[], str]]:
    """Texts of ten alphabets each: of each its characters again and again, and then at random."""

    def text(group: Sequence[str]) -> str:
        part = size // (2 * TOGETHER)
        return "\n".join(half for a in group for half in (filled(a, part - 1), scattered(a, part - 1)))

    groups = [alphabets[i : i + TOGETHER] for i in range(0, len(alphabets), TOGETHER)]
    return {" ".join(map(ascii, group)): partial(text, group) for group in groups}


def all_alphabets(most: int) -> list[str]:
    """Every one of so many characters at most."""
    return ["".join(chosen) for size in range(1, most + 1) for chosen in combinations(CHARACTERS, size)]
