"""Tokenizing: case and accent folding, stop words, stemming. Pure."""

from __future__ import annotations

import re
import unicodedata
from threading import local

import Stemmer  # type: ignore[import-not-found]  # brings no stubs

from langchain_memkit._unicode import few_marks

STEMS_VERSION = 1  # stored with a record's words, so that a later version can tell which to stem again
MAX_CHARACTERS = 100_000  # characters of a text; the rest is ignored
MAX_WORD = 64  # characters of a word; longer ones are keys or data, which their beginning tells apart

ENGLISH = """
    a about again all also am an and any are as at be because been before being but by can could did do does doing
    done down each few for from further had has have having he her here hers herself him himself his how i if in into
    is it its itself just me might more most must my myself no nor not now of off on once only or other our ours
    ourselves out over own same shall she should so some such than that the their theirs them themselves then there
    these they this those through to too under until up us very was we were what when where which while who whom whose
    why will with would you your yours yourself yourselves
    im ive ill id youre youve youll youd hes shes theyre theyve theyll theyd weve were arent isnt wasnt werent dont
    doesnt didnt cant couldnt wont wouldnt shouldnt hasnt havent hadnt thats whats wheres whos hows lets theres s
"""
STOP_WORDS = frozenset(ENGLISH.split())

# Scripts written without spaces, and Korean, whose endings are attached to the word: tokenized as character bigrams.
DENSE = "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
DENSE += "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
# Marks within words that `\w` does not match: the scripts of India, Tibetan.
MARKS = "\u0900-\u0963\u0966-\u0dff\u0f71-\u0f87"
IS_DENSE = re.compile(f"[{DENSE}]")
LETTER = rf"(?:[^\W_{DENSE}]|[{MARKS}])"
TOKEN = re.compile(rf"[{DENSE}]+|\d+(?:[.,:]\d+)+|{LETTER}+(?:['\u2019]{LETTER}+)*(?:\+\+|#)?")
ASCII_TOKEN = re.compile(r"\d+(?:[.,:]\d+)+|[a-z0-9]+(?:'[a-z0-9]+)*(?:\+\+|#)?")  # TOKEN for ASCII, but faster
# Accents, and the vowel signs of Hebrew and Arabic, which few people write.
ACCENTS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670]+"
)

THOUSANDS = re.compile(r",(?=\d{3}\b)")
ELIDED = "cdjlmnoqst"  # "l'eau", "d'accord", "O'Neill"; not "I'm"
_own = local()  # a stemmer is not thread-safe: each thread has its own


def tokenize(text: str) -> list[str]:
    """Tokenize a text for lexical ranking: return its stems in order, with repetitions.

    Words are lower-cased, accents are folded ("café" becomes "cafe"), English stop words and possessives are removed,
    and Snowball's English stemmer is applied, which leaves most words of other languages unchanged. Scripts without
    spaces between words (Chinese, Japanese, Thai, ...) become character bigrams. Only the first 100,000 characters
    count.

    Args:
        text: Any text.

    Returns:
        The stems; an empty list for a text of stop words and punctuation.

    Example:
        >>> tokenize("Where did Zoë's sisters go skiing for $1,500?")
        ['zoe', 'sister', 'go', 'ski', '1500']
        >>> tokenize("東京タワー")
        ['東京', '京タ', 'タワ', 'ワー']
    """
    text = text[:MAX_CHARACTERS]
    if text.isascii():
        found = [*map(_bare, ASCII_TOKEN.findall(text.lower()))]
    else:
        found = [word for token in TOKEN.findall(_folded(text)) for word in _pieces(token)]
    return _stemmed([word[:MAX_WORD] for word in found if word not in STOP_WORDS])


def _stemmed(words: list[str]) -> list[str]:
    try:
        stemmer = _own.stemmer
    except AttributeError:
        stemmer = _own.stemmer = Stemmer.Stemmer("english")
    found: list[str] = stemmer.stemWords(words)
    return found


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", few_marks(text)).casefold())
    return unicodedata.normalize("NFC", ACCENTS.sub("", plain[:MAX_CHARACTERS]))  # one character may expand to 18


def _bare(token: str) -> str:
    """Strip apostrophes, possessive and elided article ("l'eau") from a word, thousands separators from a number."""
    if token.isalpha():
        return token
    word = token.replace("\u2019", "'").removesuffix("'s")
    if word[0].isdigit():
        return THOUSANDS.sub("", word)
    return (word[2:] if word[1:2] == "'" and word[0] in ELIDED else word).replace("'", "")


def _pieces(token: str) -> list[str]:
    if IS_DENSE.match(token) is None:
        return [_bare(token)]
    return [token[i : i + 2] for i in range(len(token) - 1)] or [token]
