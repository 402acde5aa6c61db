"""From messages to facts: find the names in each message and the sentences that they stand in. Pure."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from types import MappingProxyType
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from langchain_memkit.matching.fuzzy import KeyFinder, NameMatch
from langchain_memkit.matching.names import PERSON, is_common_word, kind_of, without_amount
from langchain_memkit.memories.entity.registry import EntityRegistry, forms_of, speaker_names
from langchain_memkit.memories.entity.rows import FactRow, fact_id
from langchain_memkit.memories.entity.statements import NameSpan, statements
from langchain_memkit.memories.over_histories import clean
from langchain_memkit.messages.text import MESSAGE, limit_words, sentence_spans, without_records
from langchain_memkit.messages.trimming import is_user_message

logger = logging.getLogger("langchain_memkit")

KIND = "a message that the entity memory is to save"
MOST = 300  # characters of a fact
NAMED = 500  # names used per message
POSSESSIVE = ("'s", "\u2019s")


def message_facts(session_id: str, messages: Sequence[BaseMessage], at: datetime) -> list[FactRow]:
    """Return a fact about nobody yet for each human and AI message: its text is the whole text of the message.

    Tool results, system lines and empty messages are left out. Message `i` is dated `i` microseconds after the turn,
    which keeps the order.
    """
    found: list[FactRow] = []
    seen: Counter[str] = Counter()
    for i, message in enumerate(messages):
        if not (isinstance(message, AIMessage) or is_user_message(message)):
            continue
        role = "ai" if isinstance(message, AIMessage) else "human"
        text = limit_words(str(message.text), MESSAGE, KIND)
        if role == "ai":
            text = without_records(text)
        if not text.strip():
            continue
        # A message without an id gets one from its role and text, and from how often both occurred before in the turn:
        # saving the same turn again then yields the same ids, and thus no new facts.
        digest = hashlib.sha256(f"{role}\n{seen[role + text]}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
        seen[role + text] += 1
        speaker, known = clean(message.name or "")[:MOST], clean(message.id or f"text-{digest[:24]}")
        found.append(
            FactRow(text, role, speaker, session_id, known, bool(message.id), at + timedelta(microseconds=i), i)
        )
    return found


def read_mentions(found: Iterable[object] | None, text: str) -> list[NameSpan]:
    """Validate what an extractor returned, and locate the names in the text; the keys are not decided yet.

    Args:
        found: An iterable of `Mention`s, of tuples or dicts like them, of pairs of text and type, or of texts.
            Malformed items are logged and skipped.
        text: The text that was read.
    """
    spots: list[NameSpan] = []
    placed: dict[str, list[tuple[int, int]]] = {}  # places of names that came without (correct) offsets
    for mention in found or ():
        try:
            said, label, start, end = _parts_of(mention)
            kind = kind_of(label) if label else ""
        except (AttributeError, KeyError, TypeError, ValueError):
            logger.warning("the extractor returned a %s that is no mention; it is left out", type(mention).__name__)
            continue
        if kind is None:
            continue
        if said and text[start:end] != said:  # no offsets, or wrong ones: search the text for all occurrences
            if said in placed or len(placed) == NAMED:
                continue
            places = placed[said] = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(said)}(?!\w)", text)][:NAMED]
        else:
            places = [(start, end)]
        for i, j in places:
            if 0 <= i < j <= len(text):
                end = without_amount(text, i, j, kind)
                spots.append(NameSpan("", text[i:end], kind, i, end))
    return spots


def _parts_of(mention: Any) -> tuple[str, str, int, int]:
    """Return the text, type, start and end of a mention; empty and 0 for what is missing."""
    if isinstance(mention, str):
        return mention, "", 0, 0
    if isinstance(mention, Mapping):
        label = mention["label"] if "label" in mention else mention["entity_group"]
        mention = mention.get("text", mention.get("word", "")), label, mention.get("start", 0), mention.get("end", 0)
    said, label, start, end = [*mention, 0, 0][:4]
    return str(said), str(label), int(start), int(end)


def find_names(
    text: str,
    mentions: Sequence[NameSpan],
    book: EntityRegistry,
    *,
    asked: bool = False,
    speakers: Mapping[str, str] = MappingProxyType({}),
) -> list[NameSpan]:
    """Find the names in a text, in order: names from the extractor, and known names, wherever they occur.

    Of overlapping names the longest counts; of equally long ones the extractor's, which has a type. A known name within
    a longer one that the extractor took for something other than a person ("Melanie's Pottery") counts as well. In a
    question (`asked`), and in a text without capitals, names that may be mere words count in lower case, too.
    `speakers` are known names as well, with their keys.
    """
    new: list[NameSpan] = []
    for spot in mentions:
        key = book.key_of(spot.surface)
        if key and not (is_common_word(key) and spot.surface.islower()):
            new.append(spot._replace(key=key, label=book.kind(key) or spot.label))
    seen = book.forms.find(text)
    forms = dict(speakers)
    for spot in new:
        forms.update(forms_of(spot.surface, spot.key, spot.label))
    if forms:
        seen += KeyFinder(forms).find(text)
    if not (new or seen):
        return []
    # Where sentences begin: a capital letter there tells nothing about whether a word is a name.
    firsts = {next((i for i in range(*span) if text[i].isalnum()), span[0]) for span in sentence_spans(text)}
    has_capitals = not asked and text != text.lower()
    labels = {spot.key: spot.label for spot in new}
    places = {(spot.start, spot.end) for spot in new}
    known: list[NameSpan] = []
    for match in seen:
        is_speaker = match.key in speakers.values()
        is_weak = has_capitals and not is_speaker and book.is_weak(match.key)
        if (match.start, match.end) not in places and not _is_word(match, text, firsts, weak=is_weak):
            surface, label = text[match.start : match.end], book.kind(match.key) or labels.get(match.key, "")
            known.append(NameSpan(match.key, surface, label, match.start, match.end))
    # where any name stands, and where one of a person or of unknown type does
    taken, people = bytearray(len(text)), bytearray(len(text))
    kept: list[NameSpan] = []
    pairs = [*((spot, taken) for spot in new), *((spot, people) for spot in known)]
    for spot, hiding in sorted(pairs, key=lambda pair: pair[0].start - pair[0].end):
        place = slice(spot.start, spot.end)
        if 1 not in hiding[place]:
            kept.append(spot)
            for marks in (taken, people) if spot.label in (PERSON, "") else (taken,):
                marks[place] = b"\x01" * (spot.end - spot.start)
    return sorted(kept, key=lambda spot: (spot.start, spot.key))


def _is_word(found: NameMatch, text: str, firsts: Container[int], *, weak: bool) -> bool:
    """Return whether a known name is probably used as the common word that it also is."""
    is_common = is_common_word(found.key)
    if text[found.start].islower():
        return weak or is_common
    return is_common and found.start in firsts and not text.startswith(POSSESSIVE, found.end)


def facts_of(messages: Iterable[tuple[FactRow, Sequence[NameSpan]]], book: EntityRegistry) -> list[FactRow]:
    """Return one fact per name and statement of messages, each given with what the extractor found in it.

    A message with a speaker in which nobody is named is returned as well, as a fact about nobody without a text: who
    spoke is known by it.
    """
    messages = [*messages]
    speakers = speaker_names(message for message, _ in messages)
    rows: dict[str, FactRow] = {}
    for message, mentions in messages:
        spots = [
            spot._replace(label=book.usual_kind(spot.key) or spot.label)
            for spot in find_names(message.text, mentions, book, speakers=speakers)[:NAMED]
        ]
        told = statements(message.text, spots) if spots else ()
        facts = ((begin, end, spot) for begin, end, about in told for spot in about)
        if message.speaker in speakers and not spots:
            nobody = message._replace(text="")
            rows[fact_id(nobody)] = nobody
        for begin, end, spot in islice(facts, NAMED):
            text = clean(_around(message.text, begin, max(end, spot.end), spot))
            named = spot._replace(surface=clean(spot.surface))
            row = message._replace(**named._asdict(), text=text)
            rows.setdefault(fact_id(row), row)
    return list(rows.values())


def _around(text: str, begin: int, end: int, spot: NameSpan) -> str:
    """Return the sentence; of one over 300 characters the part around the name, cut between words."""
    if end - begin > MOST:
        room = max(MOST - (spot.end - spot.start), 0)
        first = max(begin, min(spot.start - room // 2, end - MOST))
        last = min(end, first + MOST)
        if first > begin:
            first = min(text.find(" ", first, spot.start) + 1 or first, spot.start)
        if last < end:
            last = max(text.rfind(" ", spot.end, last), spot.end) if " " in text[spot.end : last] else last
        begin, end = first, max(last, spot.end)
    return text[begin:end].strip()
