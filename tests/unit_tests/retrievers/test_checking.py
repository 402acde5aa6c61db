"""What of a model's answer is the question, and which rewrites are taken."""

from __future__ import annotations

import pytest

from langchain_memkit.retrievers.rewriter import question_in, refusal, same_question

WANTED = "How old is Emmanuel Macron?"


@pytest.mark.parametrize(
    "text",
    [
        WANTED,
        f"  {WANTED}\n",
        f'"{WANTED}"',
        f"\u201c{WANTED}\u201d",
        f"**{WANTED}**",
        f"Standalone question: {WANTED}",
        f"**Standalone Question:** {WANTED}",
        f"The rewritten question: '{WANTED}'",
        f"Stand-alone question:\n\n{WANTED}\n\nExplanation: he is the president.",
        f"Here is the standalone question: {WANTED}",
        f"Here's the reformulated question:\n> {WANTED}",
        f"<think>He is Macron.\nSo I ask.</think>\n{WANTED}",
        f"```\n{WANTED}\n```",
        f"Question: {WANTED}",
    ],
)
def test_question_is_found_in_what_was_written(text: str) -> None:
    """Labels, quotes, thoughts, fences and explanations are not part of it."""
    assert question_in(text) == WANTED


@pytest.mark.parametrize("text", ["", " \n\t", "```\n```", "<think>never ends", '""', "Question:"])
def test_nothing_stays_nothing(text: str) -> None:
    """What says nothing is no question."""
    assert refusal("How old is he?", question_in(text)) is not None


@pytest.mark.parametrize("text", ["Who wrote 'Emma'?", "Is the question: to be or not to be?", "What is 'it' about?"])
def test_question_with_quotes_stays(text: str) -> None:
    """Only quotes around the whole are taken off."""
    assert question_in(text) == text


@pytest.mark.parametrize(
    ("question", "rewrite"),
    [
        ("How old is he?", WANTED),
        ("how old is he", "how old is emmanuel macron"),
        ("And his wife?", "Who is Emmanuel Macron's wife?"),
        ("Tell me more about it.", "Tell me more about the Eiffel Tower."),
        ("Can you tell me more?", "Can you provide more information about the Eiffel Tower?"),
        ("his age", "Emmanuel Macron's age"),
        ("What about the 2nd?", "What about the second candidate of the French election?"),
        ("Did it cost $1,500 in 2019?", "Did the Macbook cost $1500 in 2019?"),
        ('Did she write "Emma" too?', 'Did Jane Austen write "Emma" too?'),
        ("Which one?", "In which year did Dr. Who begin?"),
        ("Wie alt ist er?", "Wie alt ist Emmanuel Macron?"),
        ("他多大了？", "马克龙多大了？"),
        ("How did he meet his wife?", "How did Emmanuel Macron meet his wife?"),
        ("What was the first album?", "What was the first album of Queen?"),
        ("What else did they record?", "What else did Queen record?"),
        ("Who was Ada Lovelace?", "who was Ada Lovelace"),
        ("How old was he when he became president?", "How old was Macron when he became president?"),
    ],
)
def test_good_rewrites_are_taken(question: str, rewrite: str) -> None:
    """Questions in several forms and languages."""
    assert refusal(question, rewrite) is None


@pytest.mark.parametrize(
    ("question", "rewrite", "why"),
    [
        ("How old is he?", "Emmanuel Macron is 48 years old.", "answers"),
        ("How old is he?", "48", "answers"),
        ("how old is he", "Emmanuel Macron is 48 years old", "answers"),
        ("Tell me more about it.", "The Eiffel Tower was built in 1889.", "answers"),
        ("How old is he?", "How old is Emmanuel Macron? He is 48 years old.", "more than one sentence"),
        ("How old is he?", "", "empty"),
        ("How old is he?", "  \n ", "empty"),
        ("How old is he?", "How old is he " + "really " * 80 + "?", "too long"),
        ("How old is he?", "I'm sorry, I don't know who he is.", "refuses"),
        ("How old is he?", "I cannot answer that.", "refuses"),
        ("How old is he?", "Could you please clarify who he is?", "refuses"),
        ("How old is he?", "Who do you mean by he?", "refuses"),
        ("How old is he?", "Unfortunately, there is no context.", "refuses"),
        ("How old is he?", "How old", "cut off"),
        ("How old is he?", "Who is the president of France?", "repeats"),
        ("Did it cost $1,500 in 2019?", "Did the Macbook cost $1500?", "number"),
        ("Which 3 of them are best?", "Which of the tips are best?", "number"),
        ('Did she write "Emma" too?', "Did Jane Austen write other novels too?", "quotation"),
        ("Did she write \u201cMansfield Park\u201d?", "Did Jane Austen write novels?", "quotation"),
        ("Did he ever meet Angela Merkel?", "Did Macron ever meet the chancellor?", "name"),
        ("How old is he?", "How old is he?", "still points back"),
        ("And how old is he", "How old is he?", "still points back"),
        ("Did he attend highschool?", "Did he attend high school in Amiens?", "still points back"),
        ("Is it old?", "is it old", "still points back"),
        ("Why?", "why?", "still points back"),
        ("How old was he when he became king?", "In which year was he king when he was old?", "still points back"),
        ("Thanks for the 3 tips, Bob! Which is best?", "Which of the tips is best?", "number"),
    ],
)
def test_bad_rewrites_are_refused(question: str, rewrite: str, why: str) -> None:
    """Answers, blanks, sermons, refusals, what lost a number, a quotation or a name, what needs the past as before."""
    problem = refusal(question, rewrite, ["Who is the president of France?"])
    assert problem is not None
    assert why in problem


def test_same_question() -> None:
    """Case, spaces and the last sign make no difference; a word does."""
    assert same_question("How old?", "how  old")
    assert not same_question("How old?", "How tall?")
