"""What is read of a question, once."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.ranking.dates import DateRange
from langchain_memkit.ranking.question import Question, read_question

NOW = datetime(2024, 5, 15, 12, tzinfo=UTC)


def read(text: str) -> Question:
    """A question that is asked on a Wednesday."""
    return read_question(text, NOW)


def test_everything_of_a_question() -> None:
    """Words, language, names, days, whose it is, and when it was asked; what the memory adds is not there yet."""
    found = read("Did I meet Nemo on 7 May 2023?")
    day = date(2023, 5, 7)
    assert found == Question(
        text="Did I meet Nemo on 7 May 2023?",
        words=("meet", "nemo", "7", "may", "2023"),
        spelled=("meet", "nemo", "7", "may", "2023"),
        language="english",
        capitals=frozenset({"nemo"}),
        dates=[DateRange(day, day, False)],
        first_person=True,
        of_model=False,
        now=NOW,
    )
    assert (found.vector, found.accessed) == (None, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where does Nemo live?", {"nemo"}),
        ("Nemo's birthday?", {"nemo"}),
        ("Nemo is who?", set()),
        ("Is it Ann or Bob, or Caroline?", {"ann", "bob", "carolin"}),
        ("What happened on Monday in May?", set()),
        ("WHERE IS NEMO?", set()),
        ("Is Al here?", set()),
        ("Wo war denn mein Hund, als ich das Haus verkauft habe?", set()),
        ("O\u00f9 est la maison de Nemo ?", {"nemo"}),
    ],
)
def test_what_may_be_a_name(text: str, expected: set[str]) -> None:
    """Words with a capital within a sentence, of three letters; no months or days, and none in German."""
    assert read(text).capitals == expected


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where do I live?", "english"),
        ("What's my name?", "english"),
        ("Where did we go?", "english"),
        ("I\u2019ve got how many cats?", "english"),
        ("Wo wohne ich und seit wann?", "german"),
        ("Wie hei\u00dft die Schwester von meinem Mann?", "german"),
        ("O\u00f9 est mon chat et que fait-il ?", "french"),
        ("\u00bfD\u00f3nde est\u00e1 la casa de mi hermana?", "spanish"),
        ("Quando \u00e8 il compleanno di mia sorella?", "italian"),
        ("Quando \u00e9 o anivers\u00e1rio da minha irm\u00e3 e do Jo\u00e3o?", "portuguese"),
        ("Wanneer is het feest van mijn zus?", "dutch"),
        ("\u6211\u4f4f\u5728\u54ea\u91cc\uff1f", "english"),
        ("\u79c1\u306e\u732b\u306e\u540d\u524d\u306f\uff1f", "english"),
    ],
)
def test_first_person(text: str, language: str) -> None:
    """Whoever asks about himself, in seven languages, Chinese and Japanese."""
    found = read(text)
    assert (found.language, found.first_person) == (language, True)


@pytest.mark.parametrize(
    "text",
    [
        "Who won?",
        "Where does Ann live?",
        "Imagine a mine shaft.",
        "Is it a miniature?",
        "Wo wohnt der Bruder von Andreas?",
        "Que fait la voisine et son mari ?",
        "\u5929\u6c14\u600e\u4e48\u6837\uff1f",
    ],
)
def test_no_first_person(text: str) -> None:
    """Nothing there means whoever asks; "mine" does, whatever is meant by it."""
    assert read(text).first_person is ("mine" in text.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did you suggest for dinner?", True),
        ("What was the book you told me about?", True),
        ("What have you just recommended?", True),
        ("What was your last answer?", True),
        ("Can you tell me what my dog is called?", False),
        ("What did I tell you?", False),
        ("Can you recommend a book?", False),
    ],
)
def test_questions_for_what_the_model_said(text: str, expected: bool) -> None:
    """A request to the model is none."""
    assert read(text).of_model is expected


def test_days_are_those_of_who_asks() -> None:
    """It is another day in Sydney."""
    late = datetime(2024, 5, 15, 22, tzinfo=UTC)
    there = late.astimezone(ZoneInfo("Australia/Sydney"))
    days = [read_question("What did I do today?", now).dates[0].first for now in (late, there)]
    assert days == [date(2024, 5, 15), date(2024, 5, 16)]


def test_of_a_long_text_the_beginning_is_read() -> None:
    """Names, days and persons are looked for in its first characters; words in all of it."""
    text = f"{'so ' * 700} did I meet Nemo in May 2023?"
    found = read(text)
    assert (found.capitals, [*found.dates], found.first_person) == (frozenset(), [], False)
    assert "nemo" in found.words
    assert read_question(text, NOW, most=5_000).first_person


def test_words_as_records_have_them() -> None:
    """A word of another language has the stem that is known; English is as ever."""
    assert "andrea" in read("Wo habe ich Andreas getroffen?").words_among({"andrea"})
    assert read("Where did I meet Andreas?").words_among({"andreas"}) == ["meet", "andrea"]


@given(st.text())
def test_any_text(text: str) -> None:
    """No text fails, and the same text is read alike."""
    assert read(text) == read(text)
    assert read(text).capitals <= {*read(text).words_among(())} | read(text).capitals
