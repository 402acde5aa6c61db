"""Conversations whose evidence is known: of a LoCoMo file that the user has, the recall set, or made here.

LoCoMo is no part of this project: its licence is CC BY-NC 4.0. Part of it is the recall set (texts/recall.json), which
holds what the tests keep up. The conversation that is made here shows that a benchmark works, and is no evidence of
quality: its questions were written beside its answers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from benchmarks.common import TEXTS
from langchain_memkit.messages.tokens import OpenAITokenCounter

RECALL_SET = TEXTS / "recall.json"
LANGUAGES = TEXTS / "languages.json"
ADVERSARIAL = 5  # LoCoMo's questions that the conversation does not answer: nothing there is to be found
SESSION = re.compile(r"session_(\d+)")
TURN_ID = re.compile(r"D:?(\d+):0*(\d+)")
LOCOMO_DATE = "%I:%M %p on %d %B, %Y"
RANKS = (5, 10, 20)
BUDGETS = (512, 1_024, 2_048)  # tokens
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)  # of a turn whose date cannot be read


@dataclass(frozen=True)
class Turn:
    """A message, as one of the speakers wrote it."""

    id: str
    speaker: str
    text: str
    session: str
    at: datetime

    @property
    def line(self) -> str:
        """What every system is given that does not take the speaker apart."""
        return f"{self.speaker}: {self.text}"


@dataclass(frozen=True)
class Question:
    """What is asked after the conversation, and the ids of the turns that answer it.

    With a `quote`, a part of such a turn answers it only if it holds these words. `kind` is the recall set's name for
    what makes the question hard.
    """

    text: str
    evidence: frozenset[str]
    category: int
    quote: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Dialogue:
    """A conversation over many sessions. Its first speaker has the user's part, the other the assistant's."""

    name: str
    user: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]
    unanswerable: tuple[str, ...] = ()  # questions about what is not spoken of
    near_misses: tuple[str, ...] = ()  # questions about the speakers that nothing in it answers

    @property
    def speakers(self) -> list[str]:
        return list(dict.fromkeys(turn.speaker for turn in self.turns))

    def rounds(self) -> list[list[Turn]]:
        """A message of the user and all that follows it, inside a session; who answers first begins one, too."""
        made: list[list[Turn]] = []
        for turn in self.turns:
            if not made or turn.speaker == self.user or turn.session != made[-1][0].session:
                made.append([])
            made[-1].append(turn)
        return made

    def messages(self, turns: Iterable[Turn]) -> list[BaseMessage]:
        """Some of its turns as a chat would pass them on, with speakers and ids."""
        kinds = {True: HumanMessage, False: AIMessage}
        return [kinds[turn.speaker == self.user](turn.text, name=turn.speaker, id=turn.id) for turn in turns]

    def part(self, turns: int, questions: int = 0) -> Dialogue:
        """Its first turns, and the first questions that these answer."""
        kept = self.turns[:turns]
        ids = {turn.id for turn in kept}
        asked = [question for question in self.questions if question.evidence <= ids]
        return replace(self, turns=kept, questions=tuple(asked[:questions]))

    def naming(self) -> list[tuple[str, Turn]]:
        """Each speaker with each message that names them as a word, in any case."""
        words = {name: re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE) for name in self.speakers}
        return [(name, turn) for name, word in words.items() for turn in self.turns if word.search(turn.text)]


# -- the recall set


@dataclass(frozen=True)
class RecallSet:
    """The conversations of this project's own, written by hand, and prompts that none of them helps with.

    Two friends; a user and an assistant with long answers; four people over a year. Kinds of questions: `exact` has the
    words of what answers it, `paraphrase` others; `name` is of one of many people in the same role; `speaker` asks for
    what one person said of what all talk about, `role` for what the user said, or the assistant; `date` for one of many
    times; `neighbour` for a message beside the one that the question describes; `session` for a detail whose subject is
    named elsewhere in its session; several messages answer `multi`; `long` is answered by a sentence of a long message;
    `repeated` has words of a request that is made every week.

    Two lists hold what the conversation does not answer. The subject of an `unanswerable` question is not spoken of at
    all: a memory has nothing to say. A near miss asks for one unknown thing of a speaker ("What is the name of Nora's
    yacht?"), in words that could as well be a paraphrase of something said; records about Nora are no wrong answer.
    """

    dialogues: tuple[Dialogue, ...]
    everyday: tuple[str, ...]
    small_talk: tuple[str, ...]


def recall_set() -> RecallSet:
    """The recall set, from its file."""
    read = json.loads(RECALL_SET.read_text(encoding="utf-8"))
    return RecallSet(_written(read), tuple(read["prompts"]["everyday"]), tuple(read["prompts"]["small talk"]))


def language_slices() -> tuple[Dialogue, ...]:
    """A conversation in German, Spanish and Chinese each, with 40 questions; written by hand, as the recall set."""
    return _written(json.loads(LANGUAGES.read_text(encoding="utf-8")))


def _written(read: Mapping[str, Any]) -> tuple[Dialogue, ...]:
    dialogues = []
    for entry in read["conversations"]:
        turns = tuple(
            Turn(name, speaker, text, f"session-{name[1:].partition(':')[0]}", datetime.fromisoformat(at + "+00:00"))
            for name, speaker, at, text in entry["turns"]
        )
        questions = tuple(
            Question(each["text"], frozenset(each["evidence"]), 4, each.get("quote", ""), each["kind"])
            for each in entry["questions"]
        )
        without = (tuple(entry[name]) for name in ("unanswerable", "near misses"))
        dialogues.append(Dialogue(entry["name"], entry["user"], turns, questions, *without))
    return tuple(dialogues)


# -- what a search found


class Found(NamedTuple):
    """A record, as it was found."""

    ids: tuple[str, ...]
    text: str


@cache
def tokens(text: str) -> int:
    """Of o200k_base, without the frame of a message."""
    counter = OpenAITokenCounter("o200k_base")
    return counter([HumanMessage(text)]) - counter([HumanMessage("")])


def score(found: Sequence[Found], question: Question) -> dict[str, float]:
    """The share of the evidence in the first records, and in those that fit; and where the first of it stands.

    Args:
        found: Records, best first.
        question: With its evidence.

    Returns:
        A value for each of the metrics. Records are packed in their order; the first that does not fit ends it.
    """
    shares: list[float] = []
    sizes: list[int] = []
    seen: set[str] = set()
    first = 0
    for rank, record in enumerate(found, 1):
        hit = question.evidence.intersection(record.ids if question.quote in record.text else ())
        first = first or (rank if hit else 0)
        seen |= hit
        shares.append(len(seen) / len(question.evidence))
        sizes.append((sizes[-1] if sizes else 0) + tokens(record.text))

    def at(records: int) -> float:
        return shares[min(records, len(shares)) - 1] if shares and records else 0.0

    return {
        **{f"recall@{k}": at(k) for k in RANKS},
        **{f"recall within {budget:,}": at(sum(size <= budget for size in sizes)) for budget in BUDGETS},
        "MRR": 1 / first if first else 0.0,
        "tokens of 10": float(sizes[min(10, len(sizes)) - 1]) if sizes else 0.0,
    }


# -- LoCoMo


def locomo_dialogues(path: Path) -> list[Dialogue]:
    """The conversations of a file in LoCoMo's format, with the captions of their pictures."""
    return [_locomo(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _locomo(entry: Mapping[str, Any]) -> Dialogue:
    parts: Mapping[str, Any] = entry["conversation"]
    numbers = sorted(int(found[1]) for key in parts if (found := SESSION.fullmatch(key)))
    turns: list[Turn] = []
    at = LONG_AGO
    for number in numbers:
        written = str(parts.get(f"session_{number}_date_time")).strip()
        with suppress(ValueError):  # one that cannot be read is that of the session before
            at = datetime.strptime(written, LOCOMO_DATE).replace(tzinfo=UTC)
        for said in parts[f"session_{number}"]:
            caption = said.get("blip_caption")
            text = f"{said.get('text') or ''}{f' [shared a photo: {caption}]' if caption else ''}".strip()
            (turn_id,) = _ids([said["dia_id"]])
            turns.append(Turn(turn_id, said["speaker"].strip(), text or "[media]", f"session-{number}", at))
    there = frozenset(turn.id for turn in turns)
    questions = [
        Question(str(asked["question"]), evidence, int(asked["category"]))
        for asked in entry["qa"]
        if int(asked["category"]) != ADVERSARIAL and (evidence := there.intersection(_ids(asked.get("evidence") or ())))
    ]
    return Dialogue(entry["sample_id"], parts["speaker_a"], tuple(turns), tuple(questions))


def _ids(written: Iterable[Any]) -> Iterator[str]:
    """Ids of turns in one spelling: people wrote them as `D8:6; D9:17`, `D30:05` and `D:11:26`, too."""
    for text in written:
        for match in TURN_ID.finditer(str(text)):
            yield f"D{int(match[1])}:{int(match[2])}"


# -- made here

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
OWN_TURNS, OWN_SESSION = 600, 40
FACTS = (
    (0, "I adopted a greyhound called Biscuit from the shelter.", "What pet does Harrison have?"),
    (1, "My sister Anjali is a vet in Pune.", "Where does Priya's sister work?"),
    (0, "I passed the driving test, at the third attempt.", "Has Harrison got a licence to drive?"),
    (1, "I am allergic to walnuts, so no brownies for me.", "Which nuts must Priya not eat?"),
    (0, "The boiler broke, so we had cold showers all week.", "What went wrong in Harrison's house?"),
    (1, "I signed up for a welding course at the evening school.", "What is Priya learning at evening classes?"),
    (0, "My grandmother taught me to play the accordion.", "Which instrument does Harrison play, and who taught him?"),
    (1, "We painted the kitchen turquoise.", "What colour is Priya's kitchen?"),
    (0, "I handed in my notice; from autumn I will bake bread for a living.", "What does Harrison want to work as?"),
    (1, "I lost my passport on the night train to Vienna.", "What did Priya lose, and where?"),
    (0, "The doctor says I have to stop running because of my heel.", "Why did Harrison give up running?"),
    (1, "I finally finished the quilt that I began when Asha was born.", "What has Priya sewn?"),
    (0, "My brother is going to marry a beekeeper.", "Whom does Harrison's brother marry?"),
    (1, "I swim in the reservoir each morning before work.", "What exercise does Priya take in the morning?"),
    (0, "I bought a second-hand telescope and saw the rings of Saturn.", "What did Harrison look at in the sky?"),
    (1, "Our landlord wants to sell the house, so we have to move.", "Why does Priya have to leave her flat?"),
)


def own_dialogue(length: int = OWN_TURNS) -> Dialogue:
    """Small talk from templates with sixteen facts in it, the same each time: names, places, dates, numbers, typos."""
    chance = random.Random(11)
    facts = {30 * i + 14 + speaker: fact for i, (speaker, fact, _) in enumerate(FACTS)}
    begin = datetime(2024, 1, 10, 18, 30, tzinfo=UTC)
    turns = []
    for i in range(length):
        me, you = SPEAKERS[i % 2], SPEAKERS[1 - i % 2]
        forms = chance.choices(OTHERS, k=2)
        if chance.random() < 0.45:
            forms[0] = chance.choice(NAMING)
        words = [{slot: chance.choice(choices) for slot, choices in FILL.items()} for _ in forms]
        sentences = [form.format(me=me, you=you, **each) for form, each in zip(forms, words, strict=True)]
        text = _careless(" ".join(sentence[0].upper() + sentence[1:] for sentence in sentences), chance)
        session, place = divmod(i, OWN_SESSION)
        at = begin + timedelta(days=9 * session, minutes=2 * place)
        said = f"{facts[i]} {text}" if i in facts else text
        turns.append(Turn(f"D{session + 1}:{place + 1}", me, said, f"session-{session + 1}", at))
    questions = [
        Question(question, frozenset({turns[place].id}), 4)
        for place, (_, _, question) in zip(facts, FACTS, strict=True)
        if place < length
    ]
    return Dialogue("own", SPEAKERS[0], tuple(turns), tuple(questions))


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
