"""Texts that make a parser slow: each short alphabet at random, and shapes that were found to be, at any length."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from string import punctuation

WIDE = "\u65e5\uff0e\U0001f642"  # a letter, a full stop and a sign of two columns
CHARACTERS = f"{punctuation}aA0 \n\u0301\u2019{WIDE}"

# One of each kind: what spaCy's tokenizer splits off before, after and within words, what our patterns and
# LangChain's look for, and what no rule knows.
ALPHABETS = tuple(
    "_. 's _ US$ . - a 0 \u0301 \u65e5 \U0001f642 "
    "_- _' _a _0 _\u0301 .a .0 .A '- 'a \u2019s -a -0 ,a ,0 :a :0 /a @. # % ( () (a [] {} <> </ <a \"a \"' ` * ** ~ ^ + += = "
    "& | \\ ! ?! ; $0 0% 0k aA a0 a\u0301 .\u0301 \u65e5. \u65e5\uff0e \U0001f642a "
    "_.a _'s .,; ?!. (). ([{ <>/ a.b a-b A.B 0.0 0,0 0:0 0-a 'a. \u65e5a. a\u0301. \u0301._ \U0001f642._".split()
)
LINES = ("a ", "A b. ", "I. ", "a\n", "A\n", " \n", "\t", "\u00a0a", "\u3000\u65e5", "\u200ba", "a\u00ad")
UNITS = {
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
    "marks on a letter": "a" + 30 * "\u0301",
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


def filled(unit: str, size: int) -> str:
    """The unit again and again."""
    return (unit * (size // len(unit) + 1))[:size]


def scattered(alphabet: str, size: int) -> str:
    """The characters of an alphabet at random, the same at every run."""
    return "".join(random.Random(alphabet).choices(alphabet, k=size))  # noqa: S311  # nothing secret


def shaped(name: str, size: int) -> str:
    """A shape by name."""
    if name == "new names":
        return " ".join(f"Ann{number:x} met Bob{number:x}." for number in range(size // 16))[:size]
    return filled(UNITS[name], size)


def packs(alphabets: list[str], many: int, size: int) -> dict[str, Callable[[], str]]:
    """Texts of several alphabets each, a part for each."""
    groups = [alphabets[i : i + many] for i in range(0, len(alphabets), many)]

    def text(group: list[str]) -> str:
        parts = [half for a in group for half in (filled(a, size // many // 2), scattered(a, size // many // 2))]
        return "\n".join(parts)[:size]

    return {" ".join(map(repr, group)): lambda group=group: text(group) for group in groups}  # type: ignore[misc]


def all_alphabets() -> list[str]:
    """Every one of one to three characters."""
    return ["".join(chosen) for most in (1, 2, 3) for chosen in combinations(CHARACTERS, most)]
