"""Saving: write a turn's rounds to the store.

Each text is embedded once and each round stored once. A save is refused if its session was cleared since the turn
began (the store compares the session's generation) and retried if another writer extended the same round.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from langchain_core.documents import Document

from langchain_memkit._progress import progress_bar
from langchain_memkit._sync import Step, call_user_function, cpu_bound
from langchain_memkit.base import describe_value
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, HistoryReadError, HistoryWriteError
from langchain_memkit.memories.rebuildable import UNDATED, Segment, check_writable, read_transcript
from langchain_memkit.memories.vector import rounds
from langchain_memkit.memories.vector.core import VectorMemoryConfig
from langchain_memkit.memories.vector.rounds import Draft, Place, documents_of, lines_of_document, stored_round_id
from langchain_memkit.ranking.bm25 import ROOM
from langchain_memkit.ranking.index import StoredSession, digest_of
from langchain_memkit.stores.vector_cache import ReadSession
from langchain_memkit.stores.vector_rows import Vector

logger = logging.getLogger("langchain_memkit")

SHORT = 2000  # characters that are processed on the event loop; longer turns go to a thread
TRIES = 10  # attempts of a turn that extends a round which other writers extend at the same time

Plan: TypeAlias = tuple[list[Document], Mapping[str, str]]
"""Records to write, and the digests by id of stored records that must not have changed since."""


async def save(core: VectorMemoryConfig, place: Place, stretch: Segment, looked: ReadSession | None = None) -> None:
    """Store the new messages of a turn; messages that continue a stored round are added to it.

    With `looked`, the session snapshot of the turn's load, the first attempt reads nothing, and the store rejects the
    write if the session has changed since.

    Raises:
        HistoryConflictError: Other writers kept changing the same round, `TRIES` times in a row.
        HistoryWriteError: Stored records could not be read, or the store failed.
    """
    if core.read_only:
        return

    def drafted() -> list[Draft]:
        found = map(core.expiring, rounds.rounds_of([stretch], core.now()))
        return [(round_, documents_of(round_, place, to_microseconds(round_.at), core.splitter)) for round_ in found]

    contents = [message.content for message in stretch.messages]
    long = not all(isinstance(content, str) for content in contents) or sum(map(len, contents)) > SHORT
    drafts = await cpu_bound(drafted, long=long)
    if not drafts:
        return
    # Every attempt carries the generation that the first one read. If each retry took the current generation instead, a
    # clear between two attempts would go unnoticed and the retry would bring erased text back.
    since: str | None = None if looked is None else looked.session.generation
    wanted = _wanted([document for _, documents in drafts for document in documents])
    # ids of the messages of a turn that starts a round; None if it may continue a stored round
    lines = [line for round_, _ in drafts for line in round_.lines]
    messages = [line.message for line in lines if line.message] if lines[0].role == "human" else None
    for left in reversed(range(TRIES)):
        try:
            begun = None if looked is None else looked.begun(*wanted)
            looked = None  # good for one attempt: after a conflict the snapshot is known to be stale
            if begun is None:
                begun = await core.records.begin(*place, *wanted, messages, since)
            since = since or begun.generation
            plan = await _planned(core, place, drafts, begun)
        except HistoryReadError as error:
            msg = f"nothing of the turn was stored, since what is stored cannot be read: {error}"
            raise HistoryWriteError(msg) from error
        try:
            alive = await write(core, place, plan, begun)
        except HistoryConflictError:
            # Another writer changed a record that this plan extends, or added records since the snapshot. Nothing was
            # stored, so read again and make a new plan against what is there now.
            if not left:
                raise
            continue
        if not alive:
            logger.warning("a session was cleared while a turn of it was saved: vector memory does not keep that turn")
        return


async def _planned(core: VectorMemoryConfig, place: Place, drafts: Sequence[Draft], begun: StoredSession) -> Plan:
    """Plan a save: a compare-and-set on the stored records that are replaced."""
    last, lines = begun.last, [line for round_, _ in drafts for line in round_.lines]
    # The common case, a plain new turn, is decided from `begun` alone. Only a turn that may continue or repeat stored
    # messages needs the whole index of the user.
    known = rounds.StoredRounds()
    for document in (*begun.records.values(), *([] if last is None else [last])):
        if told := lines_of_document(document):
            known.hold(stored_round_id(document), [line.message for line in told], told[-1].role)
    if rounds.needs_index(lines, begun, known):
        index = await core.records.index(place[0])
        with index.lock:
            known.look(index.entries, place[1])
    documents: list[Document] = []
    # A writer that was killed between two chunks of a long round left it incomplete. The plan below compares whole
    # messages and would count a message as stored if only its first chunks are: complete such rounds first.
    for round_, draft in drafts:
        if any(line.message for line in round_.lines) and (rest := rounds.missing_chunks(draft, begun.records)):
            known.hold(stored_round_id(draft[0]), [line.message for line in round_.lines], round_.lines[-1].role)
            documents += rest
    parts = rounds.plan_rounds(drafts, begun, known)
    expected: dict[str, str] = {}
    # Positions are microseconds since 1970, but always behind the last record: clocks of several writers may differ.
    position = max(to_microseconds(drafts[0][0].at), begun.position + ROOM)
    waiting = last if last is not None and last.metadata.get("open") else None
    for i, part in enumerate(parts):
        round_ = drafts[0][0]._replace(lines=tuple(part.lines), closed=i + 1 < len(parts))
        end = None if part.round_id is None else await _end_of(core, place, part, last)
        if end is not None:
            # The last record of the round is rewritten under its own id. The digest makes the write fail if another
            # writer has extended the record since: without it, the later write would drop the earlier one's messages.
            documents += documents_of(round_, place, position, core.splitter, last=end)
            expected[end.id or ""] = digest_of(end.page_content)
            continue
        if part.round_id is None and i == 0 and waiting is not None:
            # The conversation went on without answering the last round. Close it, which also gets it embedded.
            metadata = {name: value for name, value in waiting.metadata.items() if name != "open"}
            documents.append(Document(id=waiting.id, page_content=waiting.page_content, metadata=metadata))
            expected[waiting.id or ""] = digest_of(waiting.page_content)
        if not part.again and len(parts) == len(drafts) and round_.lines == drafts[i][0].lines:
            # The whole round is new: reuse the draft instead of splitting the text again.
            for place_in, document in enumerate(drafts[i][1], position):
                document.metadata["position"] = place_in
            documents += drafts[i][1]
        else:
            # A round without message ids that repeats an older one word for word would get the older one's id.
            salt = str(position) if part.again else ""
            documents += documents_of(round_, place, position, core.splitter, salt=salt)
        position = documents[-1].metadata["position"] + ROOM
    return documents, expected


async def _end_of(
    core: VectorMemoryConfig, place: Place, part: rounds.PlannedLines, last: Document | None
) -> Document | None:
    """Read the last record of the round that a part continues; None if the part is new or the round was deleted."""
    if last is not None and part.round_id == stored_round_id(last):
        return last
    index = await core.records.index(place[0])
    with index.lock:
        mine = [(entry.position, entry.id) for entry in index.entries if entry.round_id == part.round_id]
    found = await core.records.get_by_ids(place[0], [max(mine)[1]]) if mine else []
    return found[0] if found else None


def _wanted(documents: Sequence[Document]) -> tuple[list[str], list[str]]:
    """Return the digests and the ids of records that may be written, as `begin` takes them."""
    digests = dict.fromkeys(digest_of(document.page_content) for document in documents)
    return list(digests), [document.id for document in documents if document.id]


async def write(core: VectorMemoryConfig, place: Place, plan: Plan, begun: StoredSession) -> bool:
    """Embed and store records; False if the session was cleared since `begun`, and nothing is stored.

    Call it even without documents: the records may be stored already by a writer that was killed before it announced
    them to other readers, and the write announces them again.
    """
    documents, expected = plan
    worth = [not d.metadata.get("open") and not rounds.is_small_talk(lines_of_document(d)) for d in documents]
    vectors: list[Vector | None] = [
        begun.vectors.get(digest_of(d.page_content)) if needed and begun.vectors else None
        for d, needed in zip(documents, worth, strict=True)
    ]
    # `begun.vectors` holds vectors of equal texts that this user already has: only the others are embedded.
    new = [i for i, needed in enumerate(worth) if needed and vectors[i] is None]
    if new:
        texts = [documents[i].page_content for i in new]
        for i, vector in zip(new, await core.records.embed(texts), strict=True):
            vectors[i] = vector
    finished = [document for document in documents if not document.metadata.get("open")]
    if core.importance is not None and finished:
        texts = [document.page_content for document in finished]
        batch: Any = getattr(core.importance, "batch", None)
        if batch is not None:  # all in one call
            values = await Step(lambda: batch(texts), lambda: core.importance.abatch(texts))
        else:
            values = [await call_user_function(core.importance, text, name="importance") for text in texts]
        for document, value in zip(finished, values, strict=True):
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                msg = f"importance must return a number from 1 to 10; got {describe_value(value)}. Nothing was stored."
                raise ConfigurationError(msg)
            document.metadata["importance"] = float(value)
    # The state is set when the plan comes from the load's snapshot: the store then refuses the write if any other
    # record was added since.
    alive = await core.records.write(*place, begun.generation, documents, vectors, (), expected, begun.state)
    if alive and core.max_records is not None:
        await core.records.evict(place[0], core.max_records, [document.id for document in documents if document.id])
    return alive


def to_microseconds(at: datetime) -> int:
    """Convert a time to a record position: microseconds since 1970, so that later records sort behind."""
    return int(at.timestamp() * 1_000_000)


BATCH = 256  # records that are embedded and written together


async def rebuild(
    core: VectorMemoryConfig, user_id: str, sessions: Mapping[str, Any], *, progress: bool
) -> Mapping[str, int]:
    """Synchronize the records of these sessions with their transcripts, given by id; None is `get_session_history`'s.

    Returns:
        `{"messages": n, "added": n, "removed": n}`.
    """
    check_writable(core)
    # List the stored records before reading any transcript: a record that is stored from now on may belong to a turn
    # that the transcript read below does not contain yet, and must not be removed.
    index = await core.records.index(user_id)
    with index.lock:
        before = [(entry.session, entry.id) for entry in index.entries if entry.session in sessions]
    counts = {"messages": 0, "added": 0, "removed": 0}
    wanted: dict[str, list[Document]] = {}
    generations: dict[str, str] = {}
    for session, history in sessions.items():
        # Take the generation before the transcript is read: if the session is cleared from now on, the write is
        # refused, and erased text does not come back.
        generations[session] = (await core.records.begin(user_id, session)).generation
        stretches = await read_transcript(history, core.get_session_history, session, user_id)
        wanted[session] = await cpu_bound(partial(_records, core, (user_id, session), stretches))
        counts["messages"] += sum(len(d.metadata["said"]) for d in wanted[session] if not d.metadata.get("chunk"))
    with progress_bar(progress, "remembering", sum(map(len, wanted.values()))) as advance:
        for session, documents in wanted.items():
            for i in range(0, len(documents), BATCH):
                some = documents[i : i + BATCH]
                begun = await core.records.begin(user_id, session, *_wanted(some), None, generations[session])
                stored = {name: _content(document) for name, document in begun.records.items()}
                missing = [document for document in some if stored.get(document.id or "") != _content(document)]
                if not await write(core, (user_id, session), (missing, {}), begun):
                    logger.warning("a session was cleared while it was rebuilt: what was read of it is not kept")
                    break
                counts["added"] += len(missing)
                advance(len(some))
    # Remove last: until then the old records are still found, and a failure above loses nothing.
    ids = {document.id for documents in wanted.values() for document in documents}
    gone = [record for _, record in before if record not in ids]
    if gone:
        await core.records.delete(user_id, gone)
    counts["removed"] = len(gone)
    return counts


def _records(core: VectorMemoryConfig, place: Place, stretches: Sequence[Segment]) -> list[Document]:
    """Build the records of a conversation, in order, with strictly increasing positions."""
    documents: list[Document] = []
    for round_ in rounds.rounds_of(stretches, UNDATED):
        position = to_microseconds(round_.at)
        if documents:
            position = max(position, int(documents[-1].metadata["position"]) + ROOM)
        documents += documents_of(core.expiring(round_), place, position, core.splitter)
    return documents


def _content(document: Document) -> tuple[str, bool]:
    """Return what makes a record differ from the stored one: its text, and whether it waits for an answer."""
    return document.page_content, bool(document.metadata.get("open"))
