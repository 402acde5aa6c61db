"""From messages to facts: find the names in each message and the sentences that they stand in. Pure."""

from __future__ import annotations

import hashlib
import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage

from langchain_memkit.matching.fuzzy import NameMatch
from langchain_memkit.matching.names import PERSON, is_common_word, kind_of
from langchain_memkit.memories.entity.registry import EntityRegistry
from langchain_memkit.memories.entity.rows import FactRow, fact_id
from langchain_memkit.memories.rebuildable import UNDATED, Segment, clean
from langchain_memkit.messages.text import MESSAGE, limit_words, sentence_spans, without_records
from langchain_memkit.messages.trimming import is_user_message

logger = logging.getLogger("langchain_memkit")

KIND = "a message that the entity memory is to save"
MOST = 300  # characters of a fact
NAMED = 500  # names used per message
POSSESSIVE = ("'s", "\u2019s")
GREETED = re.compile(r"\b(?:Hey|Hi|Hello|Dear|Thanks|Thank you),? ([A-Z][\w\u2019'-]*[\w])(?= ?[,.!?\n]|$)")


class NameSpan(NamedTuple):
    """A name in a text: its key, the surface form, the type and the place in characters."""

    key: str
    surface: str
    label: str
    start: int
    end: int


def message_facts(session_id: str, segment: Segment) -> list[FactRow]:
    """Return a fact about nobody yet for each human and AI message: its text is the whole text of the message.

    Tool results, system lines and empty messages are left out. Message `i` is dated `i` microseconds after the turn,
    which keeps the order.
    """
    found: list[FactRow] = []
    seen: Counter[str] = Counter()
    for i, message in enumerate(segment.messages):
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
        given, at = bool(message.id) and segment.has_ids, (segment.at or UNDATED) + timedelta(microseconds=i)
        found.append(FactRow(text, role, speaker, session_id, known, given, at, segment.epoch, segment.expires_at))
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
        spots += [NameSpan("", text[i:j], kind, i, j) for i, j in places if 0 <= i < j <= len(text)]
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


def find_names(text: str, mentions: Sequence[NameSpan], book: EntityRegistry, *, asked: bool = False) -> list[NameSpan]:
    """Find the names in a text: known names, names from the extractor, and people who are greeted by name.

    Of overlapping names the longest counts; of equally long ones the known one, with the extractor's type. A known name
    within a longer one that the extractor took for something other than a person ("Melanie's Pottery"), or that may
    have words before it ("Bravo Melanie"), counts as well. In a question (`asked`) names that may be mere words count
    however they are written.
    """
    seen = book.forms.find(text)
    greeted = [NameSpan("", match[1], PERSON, *match.span(1)) for match in GREETED.finditer(text)]
    if not (seen or mentions or greeted):
        return []
    # Where sentences begin: a capital letter there tells nothing about whether a word is a name.
    firsts = {next((i for i in range(*span) if text[i].isalnum()), span[0]) for span in sentence_spans(text)}
    labels = {(spot.start, spot.end): spot.label for spot in mentions}
    known: list[NameSpan] = []
    for match in seen:
        if _is_word(match, text, firsts, weak=not asked and book.is_weak(match.key)):
            continue
        # the extractor's type of the same place, with or without a possessive 's
        ends = [match.end, *(match.end + len(s) for s in POSSESSIVE if text.startswith(s, match.end))]
        label = book.kind(match.key) or next((labels[match.start, e] for e in ends if (match.start, e) in labels), "")
        known.append(NameSpan(match.key, text[match.start : match.end], label, match.start, match.end))
    new: list[NameSpan] = []
    for i, spot in enumerate((*mentions, *greeted)):
        key = book.key_of(spot.surface)
        if key is None or (is_common_word(key) and (i >= len(mentions) or spot.surface == spot.surface.lower())):
            continue
        new.append(spot._replace(key=key, label=book.kind(key) or spot.label))
    return sorted(_apart([*known, *new], len(known), firsts), key=lambda spot: (spot.start, spot.key))


def _is_word(found: NameMatch, text: str, firsts: Container[int], *, weak: bool) -> bool:
    """Return whether a known name is probably used as the common word that it also is."""
    if not (weak or is_common_word(found.key)):
        return False
    first = text[found.start]
    if first.isupper() and found.start in firsts:
        return not text.startswith(POSSESSIVE, found.end)
    return first.islower()


def _apart(spots: Sequence[NameSpan], known: int, firsts: Container[int]) -> Iterator[NameSpan]:
    """Yield the spots that no longer spot hides; the first `known` of them are known names."""
    group: list[tuple[int, bool, NameSpan]] = []  # overlapping spots: negative length, whether it is new, the spot
    reach = 0
    for i in sorted(range(len(spots)), key=lambda i: spots[i].start):
        spot = spots[i]
        if spot.start >= reach:
            yield from _longest(group, firsts)
            group = []
        group.append((spot.start - spot.end, i >= known, spot))
        reach = max(reach, spot.end)
    yield from _longest(group, firsts)


def _longest(group: Sequence[tuple[int, bool, NameSpan]], firsts: Container[int]) -> list[NameSpan]:
    # A longer name always hides a new or equal name that it overlaps. It hides another known name only if it is a
    # person's or of unknown type, and is not that name with a word before it that begins the sentence.
    def hides(other: NameSpan, spot: NameSpan, is_new: bool) -> bool:
        if not (other.start < spot.end and spot.start < other.end):
            return False
        before_it = other.start in firsts and spot.end == other.end and other.start < spot.start
        return is_new or other.key == spot.key or (other.label in (PERSON, "") and not before_it)

    taken: list[NameSpan] = []
    for _, is_new, spot in sorted(group):
        if not any(hides(other, spot, is_new) for other in taken):
            taken.append(spot)
    return taken


def facts_of(messages: Iterable[tuple[FactRow, Sequence[NameSpan]]], book: EntityRegistry) -> list[FactRow]:
    """Return one fact per name and sentence of messages, each given with what the extractor found in it."""
    rows: dict[str, FactRow] = {}
    for message, mentions in messages:
        spots = find_names(message.text, mentions, book)[:NAMED]
        sentences = sentence_spans(message.text) if spots else []
        starts = [start for start, _ in sentences]
        seen: set[tuple[str, int]] = set()
        for spot in spots:
            i = bisect_right(starts, spot.start) - 1
            begin, end = sentences[i] if i >= 0 else (spot.start, spot.end)
            if (spot.key, begin) not in seen:
                seen.add((spot.key, begin))
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
