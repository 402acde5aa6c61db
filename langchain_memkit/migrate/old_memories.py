"""Move what entity and preference memories of versions 0.1 and 0.2 kept in a key-value store into histories."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import unquote

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit.base import Turn, check_id, user_prefix
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, logger
from langchain_memkit.memories.derived_log import pack
from langchain_memkit.memories.preferences import LINES
from langchain_memkit.migrate.sources import Conversation, ConversationSource, in_thread
from langchain_memkit.migrate.transfer import migrate
from langchain_memkit.stores.history import HistoryFactory
from langchain_memkit.stores.in_memory import DictStore

OP = "facts:"
"""Prefix of the turn ids of what is made of such records."""
KINDS = ("entities", "preferences")
BATCH = 1000  # keys that are read at once


@dataclass
class MovedMemories:
    """Counts of what `move_memories` did.

    Attributes:
        users: Users of whom something was found.
        decisions: Decisions about names, and preferences that the app had added.
        turns: Messages of which sentences were kept, and no transcript was there; each became a turn.
        known: Users whose transcripts are in the histories: what was derived from them is derived anew.
        left: Messages of sessions that are not in the histories, although others of the user are: they were cleared
            there, or never stored. Their records stay where they are.
        skipped: How many records could not be read; they stay where they are.
    """

    users: int = 0
    decisions: int = 0
    turns: int = 0
    known: int = 0
    left: int = 0
    skipped: int = 0


class OldSentence(NamedTuple):
    """A sentence of a message that an old memory kept."""

    session_id: str
    at: datetime
    message_id: str
    role: str
    name: str
    start: int
    text: str
    key: str = ""  # of the record


@dataclass
class OldUser:
    """What old memories kept of one user."""

    decisions: list[tuple[datetime, str, bytes]]  # with the name of the index
    sentences: list[OldSentence]
    keys: list[str]
    unreadable: int = 0


def move_memories(
    store: DictStore, histories: HistoryFactory[Any], *, user_id: str | None = None, dry_run: bool = False
) -> MovedMemories:
    """Move what `EntityMemory` and `PreferenceMemory` of memkit 0.1 and 0.2 kept in a key-value store.

    Decisions about names (merge, split, rename) and preferences that the app had added become decisions in the
    histories. Sentences were derived from transcripts: if the user's are in these histories, the memories derive them
    anew. If none of them is, each message of which sentences were kept becomes a turn with its date and id, so that
    nothing is lost that only the memory knew. Then the user's records are deleted, so that what is erased later cannot
    come back with another run. Where there are transcripts of some sessions, the sentences of others stay in the store:
    they may have been cleared. Stop all processes of 0.1 and 0.2 before.

    Args:
        store: The key-value store that the memories had.
        histories: The factory of histories that the memories have now.
        user_id: Move the records of this user only; None for all users.
        dry_run: Count, but change nothing.

    Returns:
        What was moved. Running it again changes nothing.

    Raises:
        ConfigurationError: The histories keep nothing that is derived from turns.
        HistoryReadError, HistoryWriteError: A store failed; calling again finishes the work.

    Example:
        >>> from langchain_core.stores import InMemoryByteStore
        >>> from langchain_memkit import SQLiteChatMessageHistory, SQLiteKeyValueStore
        >>> with SQLiteKeyValueStore(":memory:") as store:
        ...     move_memories(store, SQLiteChatMessageHistory.factory(":memory:"))
        MovedMemories(users=0, decisions=0, turns=0, known=0, left=0, skipped=0)
    """
    given: object = histories
    if not isinstance(given, HistoryFactory) or not given.turn_store.keeps_index:
        raise ConfigurationError(f"{histories!r} keeps nothing that is derived from turns; give a factory that does")
    report, turns = MovedMemories(), histories.turn_store
    for user, keys in _keys_of_users(store, user_id).items():
        found = _read(store, user, keys)
        known = _known_sessions(histories, user, found.sentences)
        unknown = [one for one in found.sentences if one.session_id not in known]
        messages = [[*group] for _, group in groupby(sorted(unknown), key=lambda one: one[:3])]
        report.users += 1
        report.skipped += found.unreadable
        report.decisions += len(found.decisions)
        report.known += bool(known)
        if known:
            report.left += len(messages)
        else:
            report.turns += len(messages)
        if dry_run:
            continue
        if not known:
            moved = migrate(_source_of(user, messages), histories, progress=False)
            if moved.skipped:
                raise HistoryWriteError(f"not all of a user's sentences could be moved: {moved.skipped[0]}")
        for at, name, data in sorted(found.decisions):
            op = f"{OP}{hashlib.sha256(name.encode() + data + str(at).encode()).hexdigest()[:32]}"
            turns.run(turns.decide(user, name, data, at=at, op=op))
        left = {one.key for one in unknown} if known else set()
        store.mdelete([key for key in found.keys if key not in left])
    if report.left:
        logger.warning("%d messages of sessions without a transcript stay in the store of old memories", report.left)
    if report.skipped:
        logger.warning("%d records of old memories cannot be read, and stay where they are", report.skipped)
    return report


amove_memories = in_thread(move_memories)
"""Run `move_memories` in a worker thread."""


def _keys_of_users(store: DictStore, user_id: str | None) -> dict[str, list[str]]:
    """Return the keys of old memories by user."""
    prefix = "" if user_id is None else user_prefix(check_id(user_id, "user_id"))
    users: dict[str, list[str]] = {}
    for key in sorted(store.yield_keys(prefix=prefix)):
        user, _, rest = key.partition("/")
        if user and rest.startswith(tuple(f"{kind}/" for kind in KINDS)):
            users.setdefault(unquote(user), []).append(key)
    return users


def _read(store: DictStore, user_id: str, keys: Sequence[str]) -> OldUser:
    """Read what was kept of a user, without what had been cleared."""
    begin = len(user_prefix(user_id))
    places = {key: [unquote(part) for part in key[begin:].split("/")] for key in keys}
    generations = {tuple(parts[2:4]) for parts in places.values() if parts[:2] == ["entities", "session"]}
    found = OldUser([], [], [])
    for i in range(0, len(keys), BATCH):
        batch = keys[i : i + BATCH]
        for key, value in zip(batch, store.mget(batch), strict=True):
            kind = "/".join(places[key][:2])
            if kind == "entities/fact" and tuple(places[key][2:4]) not in generations:
                kind = "dead"
            try:
                _take(found, kind, value or {}, places[key], key)
                found.keys.append(key)
            except (AttributeError, KeyError, TypeError, ValueError):
                found.unreadable += 1
    return found


def _take(found: OldUser, kind: str, value: Mapping[str, Any], place: Sequence[str], key: str) -> None:
    """Take in a record; raise what Python raises if it cannot be read."""
    if kind == "entities/rule":
        # What finds names in texts is an extra, which those who move something else need not have.
        from langchain_memkit.memories.entity.entity_log import ENTITIES
        from langchain_memkit.memories.entity.rows import ResolutionRule, encode_rule

        rule = ResolutionRule(*(str(value[name]) for name in ResolutionRule._fields))
        at = datetime.strptime(place[2].partition("-")[0], "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
        found.decisions.append((at, ENTITIES, encode_rule(rule)))
    elif kind == "entities/fact":
        texts = (value["role"], value["speaker"], int(value["start"]), value["text"])
        found.sentences.append(OldSentence(value["session"], _date(value["at"]), value["message"], *texts, key))
    elif kind == "preferences/line":
        text, session_id, at, message = value["text"], value["session_id"], _date(value["at"]), value["message_id"]
        if message:
            found.sentences.append(OldSentence(session_id, at, message, "human", "", 0, text, key))
        else:
            found.decisions.append((at, LINES, pack(["add", text, session_id])))


def _date(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _known_sessions(histories: HistoryFactory[Any], user_id: str, sentences: Iterable[OldSentence]) -> set[str]:
    """Return the sessions of which the histories hold some of the messages, but not by an earlier run of this move."""
    sessions: dict[str, set[str]] = {}
    for one in sentences:
        sessions.setdefault(one.session_id, set()).add(one.message_id)
    found: set[str] = set()
    for session_id, ids in sessions.items():
        history = histories(session_id, user_id)
        if stored := history.stored_ids([*ids]):
            moved = {m.id for turn in history.iter_turns() if turn.op.startswith(OP) for m in turn.messages}
            if stored - moved:
                found.add(session_id)
    return found


def _source_of(user_id: str, messages: Sequence[Sequence[OldSentence]]) -> ConversationSource:
    """Return a source in which each message of which sentences were kept is a turn."""

    def conversations() -> Generator[Conversation, None, None]:
        ordered = sorted(messages, key=lambda said: said[0].session_id)
        for session_id, group in groupby(ordered, key=lambda said: said[0].session_id):
            yield Conversation(session_id, user_id, partial(iter, [_turn_of(said) for said in group]))

    return ConversationSource(conversations)


def _turn_of(said: Sequence[OldSentence]) -> Turn:
    """Return a message of which sentences were kept as a turn."""
    first = said[0]
    kind = AIMessage if first.role == "ai" else HumanMessage
    text = "\n".join(dict.fromkeys(one.text for one in said))
    message: BaseMessage = kind(text, id=first.message_id, name=first.name or None)
    return Turn(0, 0, f"{OP}{first.message_id}", first.at, [message], tokens=[])
