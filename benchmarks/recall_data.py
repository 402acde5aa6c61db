"""Conversations with questions whose evidence is known: from LoCoMo or REALTALK, if the user has them, or made here.

Neither data set is part of this project: LoCoMo's licence is CC BY-NC 4.0. Part of it is the recall set (recall_set.py
makes its file), which holds what the tests keep up. The conversation that is made here shows that the benchmark works,
and is no evidence of quality: its questions were written beside its answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.talks import SESSION, SPEAKERS, own_talk

__all__ = [
    "Dialogue",
    "Question",
    "RecallSet",
    "Turn",
    "locomo_dialogues",
    "own_dialogue",
    "realtalk_dialogues",
    "recall_set",
]

RECALL_SET = Path(__file__).parent / "texts" / "recall.json"
ADVERSARIAL = 5  # LoCoMo's questions that the conversation does not answer: nothing there is to be found
TURN_ID = re.compile(r"D:?(\d+):0*(\d+)")
LOCOMO_DATE, REALTALK_DATE = "%I:%M %p on %d %B, %Y", "%d.%m.%Y, %H:%M:%S"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)  # of a turn whose date cannot be read


@dataclass(frozen=True)
class Turn:
    """A message, as one of two people wrote it."""

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
    unanswerable: tuple[str, ...] = ()  # questions that nothing in it answers

    def rounds(self) -> list[list[Turn]]:
        """A message of the user and all that follows it, inside a session; who answers first begins one, too."""
        made: list[list[Turn]] = []
        for turn in self.turns:
            if not made or turn.speaker == self.user or turn.session != made[-1][0].session:
                made.append([])
            made[-1].append(turn)
        return made

    def part(self, turns: int, questions: int) -> Dialogue:
        """Its first turns, and the first questions that these answer."""
        kept = self.turns[:turns]
        ids = {turn.id for turn in kept}
        asked = [question for question in self.questions if question.evidence <= ids]
        return replace(self, turns=kept, questions=tuple(asked[:questions]))


@dataclass(frozen=True)
class RecallSet:
    """The conversations of this project's own, and prompts that none of them helps with."""

    dialogues: tuple[Dialogue, ...]
    everyday: tuple[str, ...]
    small_talk: tuple[str, ...]


def recall_set() -> RecallSet:
    """The recall set, from the file that recall_set.py has made."""
    read = json.loads(RECALL_SET.read_text(encoding="utf-8"))
    dialogues = tuple(_own(entry) for entry in read["conversations"])
    return RecallSet(dialogues, tuple(read["prompts"]["everyday"]), tuple(read["prompts"]["small talk"]))


def _own(entry: Mapping[str, Any]) -> Dialogue:
    turns = tuple(
        Turn(id_, speaker, text, f"session-{id_[1:].partition(':')[0]}", datetime.fromisoformat(at).replace(tzinfo=UTC))
        for id_, speaker, at, text in entry["turns"]
    )
    questions = tuple(
        Question(one["text"], frozenset(one["evidence"]), 4, one.get("quote", ""), one["kind"])
        for one in entry["questions"]
    )
    return Dialogue(entry["name"], entry["user"], turns, questions, tuple(entry["unanswerable"]))


def locomo_dialogues(path: Path) -> list[Dialogue]:
    """The conversations of a file in LoCoMo's format, with the captions of their pictures."""
    return [_locomo(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def realtalk_dialogues(folder: Path) -> list[Dialogue]:
    """The conversations of REALTALK's folder: its files `Chat_*.json`."""
    files = sorted(folder.glob("Chat_*.json"))
    if not files:
        msg = f"no files Chat_*.json in {folder}"
        raise FileNotFoundError(msg)
    return [_realtalk(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in files]


def _locomo(entry: Mapping[str, Any]) -> Dialogue:
    parts: Mapping[str, Any] = entry["conversation"]
    turns: list[Turn] = []
    for number in _sessions(parts):
        at = _date(parts.get(f"session_{number}_date_time"), LOCOMO_DATE, turns)
        turns += [_turn(said, number, at, "text") for said in parts[f"session_{number}"]]
    return _dialogue(entry["sample_id"], parts["speaker_a"], turns, entry["qa"])


def _realtalk(name: str, parts: Mapping[str, Any]) -> Dialogue:
    turns: list[Turn] = []
    for number in _sessions(parts):
        for said in parts[f"session_{number}"]:
            at = _date(said.get("date_time"), REALTALK_DATE, turns)
            named = {**said, "speaker": said["speaker"].title()}  # one person's name is written in more than one case
            turns.append(_turn(named, number, at, "clean_text"))
    return _dialogue(name, turns[0].speaker, turns, parts["qa"])


def _sessions(parts: Mapping[str, Any]) -> list[int]:
    found = (SESSION.fullmatch(key) for key, value in parts.items() if isinstance(value, list))
    return sorted(int(match[1]) for match in found if match)


def _turn(said: Mapping[str, Any], session: int, at: datetime, key: str) -> Turn:
    caption = said.get("blip_caption")
    text = f"{said.get(key) or ''}{f' [shared a photo: {caption}]' if caption else ''}".strip()
    (turn_id,) = _ids([said["dia_id"]])
    return Turn(turn_id, said["speaker"].strip(), text or "[media]", f"session-{session}", at)


def _date(written: Any, form: str, before: list[Turn]) -> datetime:
    """Its date; where it cannot be read, that of the turn before."""
    try:
        return datetime.strptime(str(written).strip(), form).replace(tzinfo=UTC)
    except ValueError:
        return before[-1].at if before else LONG_AGO


def _ids(written: Iterable[Any]) -> Iterator[str]:
    """Ids of turns in one spelling: people wrote them as `D8:6; D9:17`, `D30:05` and `D:11:26`, too."""
    for text in written:
        for match in TURN_ID.finditer(str(text)):
            yield f"D{int(match[1])}:{int(match[2])}"


def _dialogue(name: str, user: str, turns: list[Turn], asked: Iterable[Mapping[str, Any]]) -> Dialogue:
    there = frozenset(turn.id for turn in turns)
    questions = [
        Question(str(one["question"]), evidence, int(one["category"]))
        for one in asked
        if int(one["category"]) != ADVERSARIAL and (evidence := there.intersection(_ids(one.get("evidence") or ())))
    ]
    return Dialogue(name, user, tuple(turns), tuple(questions))


# -- made here

OWN_TURNS, OWN_SESSION = 480, 40
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


def own_dialogue() -> Dialogue:
    """Small talk from templates with sixteen facts in it, the same each time: no evidence of quality."""
    said = own_talk(OWN_TURNS).messages
    facts = {30 * i + 14 + speaker: fact for i, (speaker, fact, _) in enumerate(FACTS)}
    begin = datetime(2024, 1, 10, 18, 30, tzinfo=UTC)
    turns = []
    for i, one in enumerate(said):
        session = i // OWN_SESSION
        at = begin + timedelta(days=9 * session, minutes=2 * (i % OWN_SESSION))
        text = f"{facts[i]} {one.text}" if i in facts else one.text
        turns.append(Turn(f"D{session + 1}:{i % OWN_SESSION + 1}", one.speaker, text, f"session-{session + 1}", at))
    questions = [
        Question(question, frozenset({turns[place].id}), 4)
        for place, (_, _, question) in zip(facts, FACTS, strict=True)
    ]
    return Dialogue("own", SPEAKERS[0], tuple(turns), tuple(questions))
