"""The finder for English: what it takes for a wish, and whose words it does not read."""

from __future__ import annotations

import pytest

from langchain_memkit import find_english_preferences

WISHES = """\
Always answer in metric units.
Never use emojis.
Please never suggest seafood restaurants.
From now on call me Al.
From now on I want short answers.
Going forward, please include the total price.
In the future please show prices in euros.
You can call me Al.
Don\u2019t ever call me by my last name.
My pronouns are they/them.
I prefer window seats.
I'd rather fly in the morning than at night.
I hate it when you use exclamation marks.
I hate layovers.
I can't stand cilantro.
I don't eat meat.
Do not use jargon with me.
Keep your answers short.
Whenever I ask for code, use Python.
If I ask about the weather, assume I mean Lisbon.
When you write code for me, add type hints.
Add a summary at the end of all your answers.
I want you to always check with me before sending an email.
I'm vegetarian, so never suggest meat dishes.
Can you always use Celsius?""".splitlines()
OTHERS = """\
Never been to an animal shelter.
Always good to hear from you!
Never give up!
Always be yourself.
Always wanted to see Japan.
Always check the oil before you start the engine.
Never share your password with anyone.
Please never feed the ducks.
From now on bikes are kept in the cellar.
I always use metric units at work.
He always answers in German.
She prefers window seats.
Bob said to always use metric units.
Should I always answer in metric units?
Do you always answer this fast?
I used to prefer aisle seats.
When I was a child I hated spinach.
I'd prefer the second option.
I prefer this one.
I hate this song.
I hate my job.
I don't want to go.
Use metric units in this table.
Answer in one word.
Don't forget to call your mom.
Call me when you arrive.
Call me a taxi.
If you find a cheap flight, book it.
From now on I'll run every morning.
In the future I want to live in Spain.
Write the report in German.
The sign says never feed the ducks.
Everyone calls me Al at work.
Please book the hotel you always recommend.
My preferred bidder dropped out.
We always fly economy.""".splitlines()
WISH = "Always answer in metric units."


@pytest.mark.parametrize("sentence", WISHES)
def test_wishes(sentence: str) -> None:
    """What an assistant is asked to keep to, and what a user likes, is found word for word."""
    assert find_english_preferences(sentence) == [sentence]


@pytest.mark.parametrize("sentence", OTHERS)
def test_other_sentences(sentence: str) -> None:
    """Small talk, notices, questions, reports, others' wishes and single tasks are none."""
    assert find_english_preferences(sentence) == []


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (f"How far is Oslo? {WISH}", [WISH]),
        ("Ok, and since I hate layovers, which way is best?", ["I hate layovers"]),
        ("Don\u2019t use jargon with me \u2013 what is a bond?", ["Don\u2019t use jargon with me"]),
        (
            "I prefer tea. Never book me a hotel near a station!",
            ["I prefer tea.", "Never book me a hotel near a station!"],
        ),
        ('From now on call me "Al".', ['From now on call me "Al".']),
        (f"  {WISH}\n", [WISH]),
        ("", []),
    ],
)
def test_wishes_in_a_message(message: str, found: list[str]) -> None:
    """A wish may be a clause of a question; each sentence gives one, as it is written."""
    assert find_english_preferences(message) == found


@pytest.mark.parametrize(
    "message",
    [
        f"Bob: {WISH}",
        f"Hi Bob, {WISH}",
        f"{WISH} Best, Bob",
        f"> {WISH}",
        f"- {WISH}",
        f'The manual has "{WISH}" in it.',
        f"The manual has \u201c{WISH}\u201d in it.",
        f"```{WISH}```",
        f"{WISH}\nIs that so?",
        f"{WISH}\u2028Is that so?",
        f"Translate this. {WISH}",
        f"My boss wrote me. {WISH}",
        f"Send it to a@b.org. {WISH}",
        f"Ovens get hot. {WISH}",
        f"You are a butler. {WISH}",
        f"I like it. You like it. I do. {WISH}",
        f"{'I like it, ' * 30}{WISH}",
    ],
)
def test_words_of_others(message: str) -> None:
    """A message is left out as a whole if anything in it looks like another's words."""
    assert find_english_preferences(message) == []
