"""Validation of a model's rewrite: is it the question made standalone, or something else? Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from langchain_memkit.messages.sentences import sentence_spans
from langchain_memkit.retrievers.contextualize import CHARACTERS, words_of
from langchain_memkit.retrievers.gate import PERSONAL, pointing_word, without_courtesy
from langchain_memkit.scoring.words import stems

__all__ = ["refusal", "same_question"]

STILL = "it still points back"
LONGEST = (3, 200)  # a rewrite may be 3 times as long as the question, and 200 characters more
ASKING = """what which who whom whose when where why how is are am was were do does did can could will would shall
    should has have had may might must isn't aren't wasn't weren't don't doesn't didn't can't couldn't won't wouldn't
    shouldn't hasn't haven't what's who's where's when's how's why's"""
ORDERS = """tell list explain describe give compare find show name summarize summarise define discuss outline provide
    help recommend suggest identify elaborate write calculate search look translate please let"""
_ASKS = re.compile(
    rf"\W*(?:(?:{'|'.join(ASKING.split())})\b|\w+\s+(?:\w+\s+)?(?:what|which|whom?|whose)\b)", re.IGNORECASE
)
_ORDERS = re.compile(rf"\W*(?:{'|'.join(ORDERS.split())})\b", re.IGNORECASE)
_MARK = re.compile(r"[?\uff1f\u061f\u037e]")
_QUOTED = re.compile(
    r"\"([^\"]+)\"|\u201c([^\u201d]+)\u201d|\u00ab([^\u00bb]+)\u00bb|(?<!\w)['\u2018]([^'\u2019]+)['\u2019](?!\w)"
)
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_UNABLE = re.compile(
    r"""\W*(?:i(?:['\u2019]m|\ am)?\ (?:am\ |do\ |did\ |can)?(?:sorry|cannot|(?:ca|do)n['\u2019]t|not|unable)\b
    |sorry\b|unfortunately\b|apologies\b|as\ an\ ai\b|there\ is\ no\ (?:chat|context|question)
    |no\ (?:context|chat\ history)
    |(?:(?:can|could|would|will)\ you\ )?(?:please\ )?(?:clarify|rephrase|specify|provide\ (?:more|the)\ context)\b
    |(?:who|what|which)\b.{0,40}\b(?:do|are)\ you\ (?:mean|referring|talking|asking)\b
    |i\ need\ (?:more|some|additional)\b)""",
    re.VERBOSE | re.IGNORECASE,
)


def same_question(one: str, other: str) -> bool:
    """Return whether two questions are equal but for case, white space, and punctuation at their ends.

    Example:
        >>> same_question("How old is Macron?", " how old is  Macron")
        True
    """
    return _plain(one) == _plain(other)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .?!\"'")


def refusal(question: str, rewrite: str, earlier: Iterable[str] = ()) -> str | None:
    """Return why a rewrite is rejected; None if it is accepted. The reason never quotes the question or the rewrite.

    Args:
        question: The original question.
        rewrite: The model's rewrite.
        earlier: Earlier questions of the conversation.

    Example:
        >>> refusal("How old is he?", "Emmanuel Macron is 48.")
        'it answers instead of asking'
        >>> refusal("How old is he?", "How old is Emmanuel Macron?")
    """
    if not rewrite.strip():
        return "it is empty"
    if same_question(rewrite, question):
        return STILL if pointing_word(question) else None
    if len(rewrite) > LONGEST[0] * len(question) + LONGEST[1]:
        return "it is too long"
    if _UNABLE.match(rewrite) and not _UNABLE.match(question):
        return "it refuses or asks back"
    if _plain(question).startswith(_plain(rewrite)):
        return "it is cut off"
    if any(same_question(rewrite, text) for text in earlier):
        return "it repeats an earlier question"
    if _answers(question, rewrite):
        return "it answers instead of asking"
    if len(sentence_spans(rewrite)) > max(1, len(sentence_spans(question))):
        return "it says more than one sentence"
    return _lost(question, rewrite) or _still_points(question, rewrite)


def _answers(question: str, rewrite: str) -> bool:
    if _asks(rewrite):
        return False
    if _asks(question):
        return not _ORDERS.match(rewrite)
    return _ORDERS.match(question) is not None and not _ORDERS.match(rewrite)


def _asks(text: str) -> bool:
    return _MARK.search(text) is not None or _ASKS.match(text) is not None


def _lost(question: str, rewrite: str) -> str | None:
    """Return which kind of detail the rewrite lost (a number, a quotation, a name); None if none."""
    asked = (without_courtesy(question) or question)[:CHARACTERS]
    kept = set(stems(rewrite))
    if any(stem not in kept for stem in stems(asked) if re.search(r"\d", stem) and not _ORDINAL.fullmatch(stem)):
        return "it lost a number"
    folded = " ".join(rewrite.casefold().split())
    quotes = [next(filter(None, match.groups())) for match in _QUOTED.finditer(asked)]
    if any(" ".join(quote.casefold().split()).strip(" .,?!") not in folded for quote in quotes):
        return "it lost a quotation"
    if any(word.name and stem not in kept for stem, word in words_of(asked).items()):
        return "it lost a name"
    return None


def _still_points(question: str, rewrite: str) -> str | None:
    """Return `STILL` if the rewrite keeps the question's personal pronoun, else None.

    Weaker pointing words occur in good rewrites too: "the first album of Queen".
    """
    pointing = pointing_word(rewrite)
    return STILL if pointing in PERSONAL and pointing == pointing_word(question) else None
