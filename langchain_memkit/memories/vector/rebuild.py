"""Records brought in line with the transcripts: so whole conversations are imported."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document

from langchain_memkit._progress import progress_bar
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.memories.derived import check_writable
from langchain_memkit.memories.transcripts import UNDATED, Stretch, read_transcript
from langchain_memkit.memories.vector.core import Core
from langchain_memkit.memories.vector.rounds import documents_of, rounds_of
from langchain_memkit.memories.vector.saving import begin, micros, same, write

__all__ = ["rebuild"]

logger = logging.getLogger("langchain_memkit")

BATCH = 256  # records that are embedded and written together


async def rebuild(core: Core, user_id: str, sessions: Mapping[str, Any], *, progress: bool) -> Mapping[str, int]:
    """Brings the records of these sessions in line with their transcripts.

    Args:
        core: The options.
        user_id: Whose.
        sessions: Their histories; None for that of `get_session_history`.
        progress: Whether a bar is shown.
    """
    check_writable(core)
    index = await Step(lambda: core.store.index(user_id), lambda: core.store.aindex(user_id))
    with index.lock:  # what is stored from now on may be of a turn that is not read below
        before = [(entry.session, entry.id) for entry in index.entries if entry.session in sessions]
    counts = {"messages": 0, "added": 0, "removed": 0}
    wanted: dict[str, list[Document]] = {}
    generations: dict[str, str] = {}
    for session, history in sessions.items():
        # before the transcript is read: what is cleared from now on must not come back
        generations[session] = (await begin(core, user_id, session, ())).generation
        stretches = await read_transcript(history, core.get_session_history, session, user_id)
        wanted[session] = await cpu_bound(partial(_records, core, user_id, session, stretches))
        counts["messages"] += sum(len(d.metadata["said"]) for d in wanted[session] if not d.metadata.get("chunk"))
    with progress_bar(progress, "remembering", sum(map(len, wanted.values()))) as advance:
        for session, documents in wanted.items():
            for i in range(0, len(documents), BATCH):
                added = await _add(core, user_id, session, generations[session], documents[i : i + BATCH])
                if added is None:
                    logger.warning("a session was cleared while it was rebuilt: what was read of it is not kept")
                    break
                counts["added"] += added
                advance(len(documents[i : i + BATCH]))
    ids = {document.id for documents in wanted.values() for document in documents}
    gone = [record for _, record in before if record not in ids]
    if gone:
        await core.delete(user_id, gone)
    counts["removed"] = len(gone)
    return counts


def _records(core: Core, user_id: str, session_id: str, stretches: Sequence[Stretch]) -> list[Document]:
    """The records of a conversation, in order."""
    documents: list[Document] = []
    for round_ in rounds_of(stretches, UNDATED):
        place = micros(round_.at)
        if documents:
            place = max(place, int(documents[-1].metadata["position"]) + 1)
        dated = round_._replace(expires_at=core.expiry(round_.at, round_.expires_at))
        documents += documents_of(dated, user_id, session_id, place, core.splitter)
    return documents


async def _add(core: Core, user_id: str, session_id: str, generation: str, documents: Sequence[Document]) -> int | None:
    """Stores records that are missing or say something else; how many, or None if the session was cleared meanwhile."""
    begun = (await begin(core, user_id, session_id, documents))._replace(generation=generation)
    missing = [d for d in documents if not same(begun.records.get(d.id or ""), d)]
    alive = await write(core, user_id, session_id, missing, begun, {})
    return len(missing) if alive else None
