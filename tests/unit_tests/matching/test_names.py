"""Names: what is one name, what is none, and which two are one by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.matching.names import (
    display_form,
    is_common_word,
    kind_of,
    name_key,
    parts_of,
    relation,
    without_amount,
)


@pytest.mark.parametrize(
    "text",
    ["Harrison", "harrison", "HARRISON", "Harrison's", "Harrison\u2019s", "“Harrison”", " 'Harrison', ", "Mr. Harrison",
     "the Harrison", "Dr Harrison", "Hey Harrison", "Ｈarrison"],
)  # fmt: skip
def test_one_key_for_all_spellings(text: str) -> None:
    """Case, 's, quotes, punctuation, width, article, title and greeting play no part."""
    assert name_key(text) == "harrison"


@pytest.mark.parametrize(
    "text",
    ["", "   ", "...", "42", "3.14", "May", "June", "Monday", "Mondays", "last week", "next month", "the 1990s", "2nd",
     "9 am", "9:30", "24 hours", "a few years ago", "two", "Twenty", "third", "half a dozen", "today", "Tonight",
     "5K", "10%", "May 5th", "5 May, 2023", "the past weekend", "this summer", "she", "It", "you", "Mr", "hey",
     "Everyone", "one hundred", "three weeks", "early morning", "\u0661\u0662", "x" * 200],
)  # fmt: skip
def test_no_name(text: str) -> None:
    """Dates, months, numbers, number words, pronouns, greetings and mere signs have no key."""
    assert name_key(text) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [("O'Brien", "o brien"), ("Jean-Luc", "jean luc"), ("Route 66", "route 66"), ("GPT-4", "gpt 4"), ("José", "josé"),
     ("James'", "james"), ("Mrs. Smith's", "smith"), ("李小龙", "李小龙"), ("Sunday Herald", "sunday herald")],
)  # fmt: skip
def test_keys(text: str, key: str) -> None:
    """What is part of a name stays in its key."""
    assert name_key(text) == key


def test_a_person_may_say_that_a_word_is_a_name() -> None:
    """Given names are names, if there is a letter in them."""
    assert name_key("June", given=True) == "june"
    assert name_key("42", given=True) is None


@given(st.text(max_size=60))
def test_keys_are_stable(text: str) -> None:
    """The key of a key is the key, and what is shown has the same key or none, whatever the text."""
    key = name_key(text, given=True)
    assert key is None or name_key(key, given=True) == key or key.split()[0] in key
    assert display_form(text).isprintable()
    assert key is None or (key == key.strip() and "\n" not in key and len(key) <= 80)


SAME = [("harrison", "harison"), ("langchain", "lang chain"), ("mcdonald", "mc donald"), ("hansen", "hanssen")]
NEVER = [
    ("sam", "samir"), ("anna", "ana"), ("daniel", "danielle"), ("sara", "sarah"), ("johnson", "johnston"),
    ("maria", "mario"), ("marie", "maria"), ("version 10", "version 11"), ("gpt 4", "gpt 4o"), ("john", "jon"),
    ("christina", "christian"), ("microsoft", "microsft"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SAME)
def test_same_letters(a: str, b: str) -> None:
    """Spaces and one doubled letter make no other name."""
    assert relation(a, b) == relation(b, a) == "same"


@pytest.mark.parametrize(("a", "b"), NEVER)
def test_never_merged(a: str, b: str) -> None:
    """Names of different people, and different versions, are near at most."""
    assert relation(a, b) == relation(b, a)
    assert relation(a, b) in ("near", None)


def test_near() -> None:
    """Long names that hardly differ are near, as is a word of a name."""
    assert relation("golden gate bridge", "golden gate bridges") == "near"
    assert relation("route 661 north", "route 662 north") == "near"
    assert relation("raman", "priya raman") == relation("priya", "priya raman") == "near"
    assert relation("sam", "priya") is None


@given(st.from_regex(r"[a-d]{1,8}( [a-d]{1,8})?", fullmatch=True), st.from_regex(r"[a-d]{1,9}", fullmatch=True))
def test_relation_is_symmetric(a: str, b: str) -> None:
    """It does not matter which of two names came first."""
    assert relation(a, b) == relation(b, a)


def test_kinds() -> None:
    """Kinds are compared in spaCy's words; dates and numbers are dropped, unknown ones kept."""
    assert [kind_of(label) for label in ("person", "PER", "Organization", "DATE", "cardinal", "Gene")] == [
        "PERSON", "PERSON", "ORG", None, None, "GENE",
    ]  # fmt: skip


def test_words_and_forms() -> None:
    """Common words are known as such; what is shown is clean."""
    assert is_common_word("will")
    assert is_common_word("apple")
    assert not is_common_word("priya")
    assert display_form("\u202e“Bob\x1b[31m”") == "Bob [31m"
    assert display_form("Melanie\u2019s ") == "Melanie"


def test_parts() -> None:
    """The first words of a name, and its last ones; a single word has no parts."""
    assert parts_of("anna keller") == ["anna", "keller"]
    assert parts_of("giulia de santis") == ["giulia", "giulia de", "de santis", "santis"]
    assert parts_of("priya") == parts_of("") == []


@pytest.mark.parametrize(
    ("taken", "kind", "name"),
    [("Priya 40", "PERSON", "Priya"), ("Priya 40 euros", "PRODUCT", "Priya"), ("Priya 40", "ORG", "Priya"),
     ("Priya $300", "ORG", "Priya"), ("Priya 15%", "GPE", "Priya"), ("Priya 2,000", "ORG", "Priya"),
     ("Priya 7", "PERSON", "Priya"), ("Priya", "PERSON", "Priya"), ("Route 66", "FAC", "Route 66"),
     ("Windows 11", "PRODUCT", "Windows 11"), ("GPT-4", "", "GPT-4")],
)  # fmt: skip
def test_amounts_are_no_part_of_a_name(taken: str, kind: str, name: str) -> None:
    """Numbers, prices, units and percentages, as far as an extractor took them and as the text goes on."""
    text = {
        "Priya 40": "I owe Priya 40 euros.",
        "Priya 2,000": "We paid Priya 2,000 EUR.",
        "Priya 7": "I owe Priya 7.",
        "Windows 11": "We use Windows 11 and Linux.",
    }.get(taken, f"It was {taken}.")
    start = text.index(taken)
    assert text[start : without_amount(text, start, start + len(taken), kind)] == name
