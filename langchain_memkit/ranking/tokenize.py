"""Tokenizing: case and accent folding, stop words, stemming. Pure."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Container, Sequence
from functools import lru_cache
from importlib.resources import files
from threading import local

import Stemmer  # type: ignore[import-not-found]  # brings no stubs

from langchain_memkit._unicode import DENSE, IS_DENSE, few_marks

STEMS_VERSION = 4  # stored with a record's words, so that a later version can tell which to stem again
MAX_CHARACTERS = 100_000  # characters of a text; the rest is ignored
MAX_WORD = 64  # characters of a word; longer ones are keys or data, which their beginning tells apart

WORDS = tomllib.loads(files("langchain_memkit.ranking").joinpath("words.toml").read_text("utf-8"))
FUNCTION_WORDS = {language: frozenset(words.split()) for language, words in WORDS["function_words"].items()}
STOP_WORDS = FUNCTION_WORDS["english"]
SHARED, GROUPS = (WORDS["english"][name].split() for name in ("shared", "irregular"))
FOREIGN = frozenset().union(*FUNCTION_WORDS.values()).difference(STOP_WORDS, SHARED)
IRREGULAR = {form: group.split("=")[-1] for group in GROUPS for form in group.split("=")}
FORMS = frozenset(IRREGULAR).difference(IRREGULAR.values())
# "e-mail" is read as "email mail", "co-worker" as "coworker worker".
PREFIX = re.compile(r"-(?:(?<=\b[a-z]-)|(?<=\b(?:co|re|wi)-)|(?<=\b(?:non|pre)-))(?=([a-z]{2,}))")

ASKS = "?"  # stands behind the stems of a stored text that only asks; no word of a question is this
SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[\u3002\uff01\uff1f])|\n+")
QUESTION = re.compile(r"[?\uff1f\u061f]\W*$")

# Marks within words that `\w` does not match: the scripts of India, Tibetan.
MARKS = "\u0900-\u0963\u0966-\u0dff\u0f71-\u0f87"
LETTER = rf"(?:[^\W_{DENSE}]|[{MARKS}])"
TOKEN = re.compile(rf"[{DENSE}]+|\d+(?:[.,:]\d+)+|{LETTER}+(?:['\u2019]{LETTER}+)*(?:\+\+|#)?")
ASCII_TOKEN = re.compile(r"\d+(?:[.,:]\d+)+|[a-z0-9]+(?:'[a-z0-9]+)*(?:\+\+|#)?")  # TOKEN for ASCII, but faster
# Accents, and the vowel signs of Hebrew and Arabic, which few people write.
ACCENTS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670]+"
)

THOUSANDS = re.compile(r",(?=\d{3}\b)")
# "l'eau", "d'accord", "O'Neill", "dell'arte"; not "I'm"
ELIDED = frozenset("c d j l m n o q s t qu jusqu un all dell nell dall sull quest quell".split())  # noqa: SIM905  # a text
_own = local()  # a stemmer is not thread-safe: each thread has its own


def tokenize(text: str, language: str = "", known: Container[str] | None = None) -> list[str]:
    """Tokenize a text for lexical ranking: return its stems in order, with repetitions.

    Words are lower-cased, accents are folded ("café" becomes "cafe"), English stop words and possessives are removed,
    and Snowball's stemmer is applied: English's, or that of the language whose function words the text holds most of
    (German, French, Spanish, Italian, Portuguese, Dutch), whose stop words are removed then, too. Scripts without
    spaces between words (Chinese, Japanese, Thai, ...) become character bigrams. Only the first 100,000 characters
    count.

    Args:
        text: Any text.
        language: What it is read as, one of `FUNCTION_WORDS`; told from the text by default.
        known: Stems of the records of a user of several languages: a word whose stem is not among them has its stem of
            another language, if that is.

    Returns:
        The stems; an empty list for a text of stop words and punctuation.

    Example:
        >>> tokenize("Where did Zoë's sisters go skiing for $1,500?")
        ['zoe', 'sister', 'go', 'ski', '1500']
        >>> tokenize("Wo haben meine Schwestern Häuser gekauft?")
        ['schwest', 'haus', 'gekauft']
        >>> tokenize("東京タワー")
        ['東京', '京タ', 'タワ', 'ワー']
    """
    kept, stems, language = _read(text, language)
    if known is not None and language != "english":  # English as ever: by chance other languages have its stems, too
        for i, word in enumerate(kept):
            others = (_stemmed([word], name)[0] for name in FUNCTION_WORDS if stems[i] not in known)
            stems[i] = next((stem for stem in others if stem in known), stems[i])
    return stems


def read_words(text: str) -> tuple[list[str], list[str], str]:
    """Return the words of a text without stop words, in small letters; their stems; and the language.

    Example:
        >>> read_words("Wo sind meine Katzen?")
        (['katzen'], ['katz'], 'german')
    """
    return _read(text)


def tokenize_record(text: str) -> list[str]:
    """Tokenize a text that is stored: as `tokenize`, and other languages' words with their English stems as well.

    So a question in English finds a name, or a word, in a record of another language. A text that only asks, and
    states nothing, has the mark `ASKS` at its end.

    Example:
        >>> tokenize_record("Wir haben Andreas getroffen.")
        ['andreas', 'getroff', 'andrea', 'getroffen']
        >>> tokenize_record("How do I boil an egg?")
        ['boil', 'egg', '?']
    """
    kept, stems, language = _read(text)
    if language != "english":
        stems += [stem for stem in dict.fromkeys(_stemmed(kept, "english")) if stem not in stems]
    return [*stems, ASKS] if _only_asks(text) else stems


def _only_asks(text: str) -> bool:
    """Return whether every sentence of a text is a question."""
    sentences = [sentence for sentence in SENTENCE.split(text[:MAX_CHARACTERS]) if sentence.strip()]
    return bool(sentences) and all(QUESTION.search(sentence) for sentence in sentences)


def language_of(text: str) -> str:
    """Return the language as which `tokenize` reads a text: "english" if its function words do not tell.

    Example:
        >>> language_of("Que fait ma sœur ?"), language_of("Paris, Texas")
        ('french', 'english')
    """
    return _language(_words(text))


@lru_cache(maxsize=2)  # a question is read several times in turn
def _words(text: str) -> tuple[str, ...]:
    text = text[:MAX_CHARACTERS]
    text = text.lower() if text.isascii() else _folded(text)
    if "-" in text:
        text = PREFIX.sub(r"\1 ", text)
    if text.isascii():
        return tuple(map(_bare, ASCII_TOKEN.findall(text)))
    return tuple([word for token in TOKEN.findall(text) for word in _pieces(token)])


def _read(text: str, language: str = "") -> tuple[list[str], list[str], str]:
    """Return the words of a text without stop words, their stems, and the language."""
    words = _words(text)
    language = language or _language(words)
    skipped = STOP_WORDS if language == "english" else STOP_WORDS | FUNCTION_WORDS[language]
    kept = [word[:MAX_WORD] for word in words if word not in skipped]
    return kept, _stemmed(kept, language), language


def _language(words: Sequence[str]) -> str:
    """Return the language with the most function words among these, two or more; English if it has as many."""
    if FOREIGN.isdisjoint(words):
        return "english"
    found = {name: sum(map(known.__contains__, words)) for name, known in FUNCTION_WORDS.items()}
    best = max(found, key=lambda name: found[name])
    return best if found[best] > 1 else "english"  # one alone may be an English word: "soy milk", "todo list"


def _stemmed(words: list[str], language: str) -> list[str]:
    try:
        stemmer = getattr(_own, language)
    except AttributeError:
        stemmer = Stemmer.Stemmer(language)
        setattr(_own, language, stemmer)
    found: list[str] = stemmer.stemWords(words)
    if language != "english" or FORMS.isdisjoint(found):
        return found
    return [IRREGULAR.get(stem, stem) for stem in found]


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
    first, _, rest = word.partition("'")
    return (rest if rest and first in ELIDED else word).replace("'", "")


def _pieces(token: str) -> list[str]:
    if IS_DENSE.match(token) is None:
        return [_bare(token)]
    return [token[i : i + 2] for i in range(len(token) - 1)] or [token]
