"""The words that are compared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.ranking.tokenize import (
    ASKS,
    FUNCTION_WORDS,
    MAX_CHARACTERS,
    MAX_WORD,
    STOP_WORDS,
    language_of,
    tokenize,
    tokenize_record,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("the and of it", []),
        ("I'm sure that you've been there, haven't you?", ["sure"]),
        ("She was running; he runs.", ["run", "run"]),
        ("Melanie's kids' toys", ["melani", "kid", "toy"]),
        ("O\u2019Reilly\u2019s d'accord l'eau rock'n'roll", ["reilli", "accord", "eau", "rocknrol"]),
        ("C++ or C# for $1,000.50, 3.5% at 10:30", ["c++", "c#", "1000.50", "3.5", "10:30"]),
        ("1,5 kg", ["1,5", "kg"]),
        ("plan B", ["plan", "b"]),
        ("bob.smith@x-y.org", ["bob", "smith", "x", "y", "org"]),
        ("snake_case self-care", ["snake", "case", "self", "care"]),
        ("E-mail, T-shirts; a-b-cd", ["email", "mail", "tshirt", "shirt", "bcd", "cd"]),
        ("an e-mail’s co-author, wi-fi", ["email", "mail", "coauthor", "author", "wifi", "fi"]),
        ("Café Müller, Straße, ÑANDÚ, \ufb01ne", ["cafe", "muller", "strass", "nandu", "fine"]),
        ("Cafe\u0301", ["cafe"]),
        ("Привет, ёлка", ["привет", "елка"]),
        ("今天天气。I love 北京!", ["今天", "天天", "天气", "love", "北京"]),
        ("東", ["東"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("안녕하세요", ["안녕", "녕하", "하세", "세요"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("שָׁלוֹם שלום", ["שלום", "שלום"]),
        ("مُحَمَّد محمد", ["محمد", "محمد"]),
        ("👍🏽 \ud800", []),
    ],
)
def test_stems(text: str, expected: list[str]) -> None:
    """What words come of texts, in many scripts."""
    assert tokenize(text) == expected


def test_thai_has_pairs_of_characters() -> None:
    """A script without spaces: a word is found within a sentence."""
    assert set(tokenize("สวัสดี")) < set(tokenize("เขาพูดว่าสวัสดีครับ"))


@given(st.text())
def test_any_text(text: str) -> None:
    """No text fails; stems are short, not empty, no stop words of one letter, and always the same."""
    found = tokenize(text)
    assert found == tokenize(text)
    assert all(0 < len(stem) <= MAX_WORD for stem in found)


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_is_read_alike(text: str) -> None:
    """The fast way for plain ASCII gives what the other one gives."""
    assert tokenize(text) == tokenize(f"{text} \u2021")


@given(st.lists(st.sampled_from(["tea", "Tea", "TEAS", "sea", "the"])))
def test_repeated_words_are_repeated(words: list[str]) -> None:
    """Case, number and stop words make no difference, repetition does."""
    assert tokenize(" ".join(words)) == [word.lower().rstrip("s") for word in words if word != "the"]


def test_huge_text_is_bounded() -> None:
    """Of a text of any length the beginning counts, and long runs of characters are cut."""
    assert tokenize("tea " * MAX_CHARACTERS) == ["tea"] * (MAX_CHARACTERS // 4)
    assert tokenize("x" * 10_000) == ["x" * MAX_WORD]
    assert len(tokenize("\ufdfa" * MAX_CHARACTERS)) <= MAX_CHARACTERS  # one sign that folds to 18


def test_stop_words_are_words() -> None:
    """Every stop word is written as the words of a text are."""
    assert all(word == word.lower() and word.isalpha() for word in STOP_WORDS)


def test_threads() -> None:
    """Many threads may stem at once."""
    texts = [f"running skies number {i} generously" for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenize, texts)) == [tokenize(text) for text in texts]


@pytest.mark.parametrize(
    ("question", "record", "language"),
    [
        ("Welche Häuser habt ihr gekauft?", "Wir kaufen das alte Haus.", "german"),
        ("Où sont les chevaux ?", "Nous avons un cheval.", "french"),
        ("¿Cuándo compramos los libros?", "Yo compraba un libro cada mes desde marzo.", "spanish"),
        ("Quando abbiamo comprato i libri?", "Io compravo un libro per te.", "italian"),
        ("Quando compramos os livros?", "Eu comprava um livro.", "portuguese"),
        ("Wanneer hebben wij de boeken gelezen?", "Ik heb een boek.", "dutch"),
        ("Who bought the houses?", "They buy a house.", "english"),
    ],
)
def test_languages(question: str, record: str, language: str) -> None:
    """A question is stemmed as a record in its language is, and function words are no words."""
    assert language_of(question) == language_of(record) == language
    assert set(tokenize(question)) & set(tokenize_record(record))
    assert not FUNCTION_WORDS[language].intersection(tokenize(question))


@pytest.mark.parametrize(
    "text", ["", "Paris", "I met him in Los Angeles.", "Was it all plus tax, per person?", "今天天气", "Bello, 12.50"]
)
def test_unsure_texts_are_read_as_english(text: str) -> None:
    """Names and words that languages share tell none of them."""
    assert language_of(text) == "english"
    assert [stem for stem in tokenize_record(text) if stem != ASKS] == tokenize(text)


def test_users_of_several_languages_find_both() -> None:
    """English finds words of a record in another language, and another language words of an English one."""
    german = tokenize_record("Wir haben Andreas in Bremen getroffen.")
    assert {"andrea", "bremen"} == {"andrea", "bremen"}.intersection(german)
    assert set(tokenize("Where did I meet Andreas?")) & set(german) == {"andrea"}
    english = frozenset(tokenize_record("I met Andreas."))
    assert not english.intersection(tokenize("Wo habe ich Andreas getroffen?"))
    assert "andrea" in tokenize("Wo habe ich Andreas getroffen?", known=english)


@pytest.mark.parametrize(
    ("forms", "stem"), [("buy buys buying bought", "buy"), ("child children", "child"), ("goes went gone", "go")]
)
def test_irregular_forms(forms: str, stem: str) -> None:
    """They have the stem of their base form."""
    assert set(tokenize(forms)) == {stem}


@pytest.mark.parametrize(
    "forms",
    [
        "colour colours coloured color",
        "favourite favorite",
        "neighbours neighbor",
        "organise organised organisation organize organizing organization",
        "apologise apologize",
        "criticising criticize",
        "specialised specialize",
        "theatre theaters",
        "kilometres kilometer",
        "programmes program programmer",
        "mum mom",
        "pyjamas pajamas",
        "jewellery jewelry",
        "checkin check-in",
        "sign-up signup",
    ],
)
def test_spellings(forms: str) -> None:
    """British and American spellings, and words with a hyphen or none, have one stem."""
    assert len(set(tokenize(forms))) == 1


@pytest.mark.parametrize("text", ["organ", "tire", "promise surprise exercise Paris", "four hour tour our flour"])
def test_words_that_look_like_other_spellings(text: str) -> None:
    """They keep their own stems."""
    assert not set(tokenize(text)) & set(tokenize("organise tyre promiz surpriz exerciz pariz for hor tor or flor"))


def test_a_hyphen_hides_no_word() -> None:
    """What is written with a hyphen is found as one word, and by its last part."""
    stems = tokenize_record("He sent an e-mail about a T-shirt for the co-worker.")
    for question in ("email", "e-mail", "T-shirt", "shirt", "coworker", "co-worker", "worker"):
        assert set(tokenize(question)) <= set(stems)


def test_elided_articles() -> None:
    """French and Italian write them at the word."""
    assert tokenize("all'acqua dell'acqua l'acqua acqua") == ["acqua"] * 4


@pytest.mark.parametrize("text", ["soy milk", "Soy allergy?", "todo list", "tai chi class", "Elle magazine"])
def test_one_foreign_function_word_makes_no_other_language(text: str) -> None:
    """It may be an English word, which must not be lost."""
    assert language_of(text) == "english"
    assert len(tokenize(text)) == len(text.split())


@pytest.mark.parametrize(
    ("text", "only_asks"),
    [
        ("How do I boil an egg?", True),
        ("Eggs? How?", True),
        ('Did he say "eggs?"', True),
        ("\u5929\u6c14\u600e\u4e48\u6837\uff1f", True),
        ("\u0645\u0627 \u0627\u0633\u0645\u0643\u061f", True),
        ("I live in Perth. Where is the sea?", False),
        ("Where is the sea?\nI live in Perth", False),
        ("Is it 5 p.m. already? Fine.", False),
        ("I boil eggs.", False),
        ("?", True),
        ("", False),
    ],
)
def test_texts_that_only_ask(text: str, only_asks: bool) -> None:
    """They have a mark at their end, which no word of a text is."""
    stems = tokenize_record(text)
    assert (stems[-1:] == [ASKS]) is only_asks
    assert ASKS not in tokenize(text)
    assert stems[: len(stems) - only_asks] == tokenize(text)
