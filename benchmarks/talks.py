"""Talks between two people: of a LoCoMo file that the user has, or made here."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Said", "Talk", "locomo", "own_talk"]

SESSION = re.compile(r"session_(\d+)")

SPEAKERS = ("Harrison", "Priya")
FILL = {
    "who": ("Tomás Oliveira", "Ingrid", "Ingrid Hansen", "Samir", "Sam", "Beatriz", "Dr. Okafor", "Leon", "Mei Lin"),
    "place": ("Lisbon", "Oslo", "New Orleans", "the Alps", "Kyoto", "Cape Town", "Lake Garda", "Brooklyn", "Dublin"),
    "org": ("Greenpeace", "Acme Robotics", "the Red Cross", "Northwind", "Stanford", "the BBC", "Volvo", "Lufthansa"),
    "work": ("Dune", "The Great Gatsby", "Abbey Road", "Spirited Away", "Carmen", "The Crown"),
    "when": ("on Friday", "last week", "in June", "on 12 March 2024", "tomorrow morning", "two years ago", "at 6:30 pm",
             "next summer", "on New Year's Eve", "every Tuesday"),
    "number": ("three", "15", "about 200", "2,400 euros", "40%", "$75", "seven", "1.5 miles", "the second", "half"),
    "thing": ("the pottery class", "my old bike", "the garden", "the marathon", "that recipe", "the choir", "a puppy",
              "the exam", "our allotment", "the guitar"),
}  # fmt: skip
NAMING = (
    "Hey {you}! How did {thing} go {when}?",
    "{you}, you will not believe it: I met {who} in {place} {when}.",
    "Thanks, {you}. That means a lot to me.",
    "Wow {you}, congrats! What did {who} say?",
    "That's great, {you}! Did you take {number} photos again?",
    "I told {who} about {you}'s plan for {thing}, and they loved it.",
    "No worries {you}, we can do it {when}.",
    "So good to hear from you, {you}! I was in {place} for {number} days.",
    "{you}: have you read {work}? {who} gave it to me {when}.",
    "Night {you}!",
    "Yes {you}, {org} called {when}. They want {number} of us.",
    "Same here, {you}. {thing} keeps me busy.",
    "It's {me} again, writing from {place}. The phone is {who}'s.",
    "Is that {you}'s sister in the picture?",
    "Absolutely, {you}!! You deserve it",
    "I agree with {you} and {who}: {number} is too much for {thing}.",
)
OTHERS = (
    "I started at {org} {when}. {who} is in my team.",
    "We went to {place} {when} and stayed {number} nights.",
    "{thing} was fun, I did it with {who} {when}.",
    "Nothing much. It rained, so I watched {work} and made soup.",
    "It cost {number}, which is a lot for {thing}.",
    "{who} moved to {place} and works for {org} now.",
    "Oh no, what happened? Is {who} all right?",
    "Sounds like a plan. Let's meet {when}.",
    "I ran {number} {when}, and my knees hate me.",
    "Do you remember {place}? We lost {thing} there.",
    "{org} sent me {number} letters about {thing}.",
    "I have been thinking about {thing} a lot. It helps me to calm down.",
    "My mother liked {work} more than I did.",
    "They open {when}, {number} people are allowed in.",
)


@dataclass(frozen=True)
class Said:
    """A message."""

    id: str
    speaker: str
    text: str


@dataclass(frozen=True)
class Talk:
    """A conversation, and whose."""

    name: str
    speakers: tuple[str, ...]
    messages: tuple[Said, ...]

    def part(self, length: int | None) -> Talk:
        """Its first messages."""
        return Talk(self.name, self.speakers, self.messages[:length])

    def naming(self) -> list[tuple[str, Said]]:
        """Each participant with each message that names them as a word, in any case."""
        words = {name: re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE) for name in self.speakers}
        return [(name, said) for name, word in words.items() for said in self.messages if word.search(said.text)]


def locomo(path: Path) -> list[Talk]:
    """The talks of a file in LoCoMo's format, with the captions of their pictures. The data is not ours to pass on."""
    return [_talk(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _talk(entry: dict[str, Any]) -> Talk:
    parts: dict[str, Any] = entry["conversation"]
    numbers = sorted(int(found[1]) for key in parts if (found := SESSION.fullmatch(key)))
    said = [
        Said(f"{turn['dia_id']}", turn["speaker"], text)
        for number in numbers
        for turn in parts[f"session_{number}"]
        if (text := _text(turn))
    ]
    return Talk(entry["sample_id"], tuple(dict.fromkeys(one.speaker for one in said)), tuple(said))


def _text(turn: dict[str, Any]) -> str:
    caption = turn.get("blip_caption")
    return f"{turn.get('text') or ''}{f' [shared a photo: {caption}]' if caption else ''}".strip()


def own_talk(length: int = 600) -> Talk:
    """Small talk from templates, the same each time: names, places, dates and numbers, with typos and without care."""
    chance = random.Random(11)
    said = []
    for i in range(length):
        me, you = SPEAKERS[i % 2], SPEAKERS[1 - i % 2]
        forms = chance.choices(OTHERS, k=2)
        if chance.random() < 0.45:
            forms[0] = chance.choice(NAMING)
        sentences = [form.format(me=me, you=you, **_words(chance)) for form in forms]
        text = " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
        said.append(Said(f"own-{i}", me, _careless(text, chance)))
    return Talk("own", SPEAKERS, tuple(said))


def _words(chance: random.Random) -> dict[str, str]:
    return {slot: chance.choice(choices) for slot, choices in FILL.items()}


def _careless(text: str, chance: random.Random) -> str:
    """Some messages in small letters, some in capitals, some with two letters swapped."""
    how = chance.random()
    if how < 0.08:
        return text.lower()
    if how < 0.1:
        return text.upper()
    long_words = list(re.finditer(r"[^\W\d_]{5,}", text))
    if how < 0.2 and long_words:
        at = chance.choice(long_words).start() + chance.randint(1, 3)
        return f"{text[:at]}{text[at + 1]}{text[at]}{text[at + 2 :]}"
    return text
