"""Chat message history in a SQLite file: turns read, appended, cleared."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Self, TypeAlias, TypeVar, Unpack
from uuid import uuid4

from langchain_memkit import base
from langchain_memkit.backends.sqlite.database import (
    OLD_RECORDS,
    OWNER_ALONE,
    REPAIR,
    Database,
    Transactions,
    shared_database,
)
from langchain_memkit.base import ListPosition, SessionHead, SessionInfo, Turn, same_conversation, utc_now
from langchain_memkit.errors import HistoryReadError, MessageTooLargeError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.messages.tokens import counter_name, resolve_counter
from langchain_memkit.stores import history_rows, sessions
from langchain_memkit.stores.changes import ChangedRow, Changes, Place, RowKind
from langchain_memkit.stores.history import HistoryFactory, HistoryOptions, TurnHistory, TurnStore, check_options
from langchain_memkit.stores.history_rows import (
    EMPTY,
    MOST,
    Edit,
    Page,
    PageLimit,
    SessionScope,
    StoredSummary,
    TurnPage,
    TurnRow,
)
from langchain_memkit.stores.sessions import FoundPage, Places, SessionDetails, SessionQuery

T = TypeVar("T")

UNREPLACED = (  # the rows that were replaced are found once, range by range, and then looked up
    "rowid NOT IN (SELECT replaced.rowid FROM json_each(:ranges) AS range"
    " CROSS JOIN turns AS replaced WHERE replaced.user_id = :user"
    " AND replaced.session_id = json_extract(range.value, '$[0]')"
    " AND replaced.seq >= json_extract(range.value, '$[1]') AND replaced.seq < json_extract(range.value, '$[2]'))"
)
HERE = "user_id = :user AND session_id = :session"
LIVE = "(expires_at IS NULL OR expires_at > :now)"
COPIED = (  # the turns that a fork copies
    f"{HERE} AND {LIVE} AND kind = 'turn' AND NOT is_deleted AND seq > :base AND seq <= :end AND {UNREPLACED}"
)
SOUND = (  # a condition on rows that tell where the session ends; damaged ones are skipped
    f"typeof(seq) = 'integer' AND seq BETWEEN 1 AND {MOST} AND typeof(epoch) = 'integer'"
    " AND typeof(base) = 'integer' AND base BETWEEN 0 AND seq"
)
SOUND_TURNS = re.sub(r"\bseq\b", "turns.seq", SOUND)
CHANGED = (  # the rows of a user that changed after some number, each once for every index of it that is asked for
    "SELECT change, turns.session_id, turns.seq, op, kind, epoch, base, is_deleted, replaces, created_at, expires_at,"
    f" name, made, {SOUND_TURNS} AS sound FROM (SELECT * FROM turn_changes WHERE user_id = :user AND change > :since"
    " ORDER BY change LIMIT :limit) AS changes JOIN turns USING (user_id, session_id, seq)"
    " LEFT JOIN turn_indexes AS made ON (made.user_id, made.session_id, made.seq)"
    " = (turns.user_id, turns.session_id, turns.seq) AND name IN (SELECT value FROM json_each(:names))"
    " ORDER BY change"
)
LOST = (  # the newest position between two others that has message ids but no row
    f"SELECT seq FROM (SELECT seq FROM message_ids WHERE {HERE} AND seq > :above AND seq < :below"
    " ORDER BY seq DESC LIMIT 1) AS known"
    f" WHERE NOT EXISTS (SELECT 1 FROM turns WHERE {HERE} AND turns.seq = known.seq)"
)

DATED = "created_at GLOB '[0-9][0-9][0-9][0-9]-*' AND julianday(created_at) IS NOT NULL"
START = {"after": "", "seq": 0}
LATER = (  # a condition on turns that come after a place in a list by time, newest first
    "(created_at < :at OR session_id > :after OR (session_id = :after AND seq < :seq))"
)


def _at(place: ListPosition | None) -> str:
    """Return the time of a place as it is stored; of no place, one after all others."""
    return place.at.isoformat() if place and place.at else "" if place else ":"


def check_owner(rows: Iterable[sqlite3.Row], scope: SessionScope) -> list[sqlite3.Row]:
    """Return the rows as a list, checked to be of this session: a damaged index may lead to rows of others."""
    found = list(rows)
    if any((row["user_id"], row["session_id"]) != scope for row in found):
        raise sqlite3.DatabaseError(f"its index is damaged: {REPAIR}")
    return found


def lost_turns(connection: sqlite3.Connection, scope: SessionScope, seqs: Sequence[int], end: int) -> list[Turn]:
    """Report positions that have message ids but no row, as turns with a problem, at most one in each gap."""
    # A damaged index hides rows without an error. Deleting a row deletes its message ids too, so a deleted turn is not
    # taken for lost. The gaps are those between `seqs`, in descending order, down to `end`.
    lost: list[Turn] = []
    for below, above in pairwise([*(seq for seq in seqs if seq > end), end]):
        given = {"user": scope.user_id, "session": scope.session_id, "above": above, "below": below}
        if below - above > 1 and (row := connection.execute(LOST, given).fetchone()):
            problem = f"turn {row[0]}: its row is not found, the file is damaged: {REPAIR}"
            lost.append(Turn(row[0], 0, "", None, [], [], problems=[problem]))
    return lost


def checksum_of(text: str | bytes) -> int:
    """Return the checksum of a turn's messages, stored beside them: a flipped bit in a text still leaves a text."""
    return zlib.crc32(text.encode("utf-8", "replace") if isinstance(text, str) else text)


def parse_cell(parse: Callable[[Any], T], value: Any) -> T | None:
    """Parse a cell, which may hold anything if it is damaged; None then, and for NULL."""
    try:
        return parse(value)
    except (TypeError, ValueError, OverflowError, OSError, RecursionError):
        return None


parse_json = partial(parse_cell, json.loads)
date_of: Callable[[Any], datetime | None] = partial(parse_cell, partial(datetime.fromtimestamp, tz=UTC))
iso_date_of: Callable[[Any], datetime | None] = partial(parse_cell, datetime.fromisoformat)

Kind: TypeAlias = Literal["turn", "undo", "decision", "clear", "purge"]
ROW_KINDS: dict[object, RowKind] = {"turn": "turn", "undo": "undo", "decision": "decision"}

EDITABLE = 8  # the version of a file from which on its rows may replace others
SUMMARIZED = 9  # and from which on it has a table of summaries
ORDERED = 10  # and from which on it knows the order in which its rows changed


def _changed(row: sqlite3.Row) -> ChangedRow:
    """Return a row of `CHANGED` without its indexes."""
    return ChangedRow(
        row["session_id"],
        row["seq"],
        str(row["op"]),
        ROW_KINDS.get(row["kind"], "tombstone"),
        row["epoch"],
        row["base"],
        is_deleted=row["is_deleted"] == 1,
        replaces=row["replaces"] if isinstance(row["replaces"], int) else None,
        created_at=iso_date_of(row["created_at"]),
        expires_at=date_of(row["expires_at"]),
        index={},
        revision=row["change"],
    )


def is_turn(row: sqlite3.Row, hidden: bool = False) -> bool:
    """Return whether a row is a turn, neither an undo nor a decision, and (unless `hidden`) not soft-deleted."""
    return row["kind"] not in ("undo", "decision") and (hidden or row["is_deleted"] != 1)


MAX_TURN = 16 * 2**20  # bytes, the limit of a MongoDB document, so that every turn stored here can be migrated there


class SQLiteTurnStore(Transactions, TurnStore):
    """The turn store on SQLite, as flows of a step or two each."""

    def __init__(
        self, database: Database, ttl: float | None, token_counter: base.TokenCounter | None, now: base.Now
    ) -> None:
        base.check_seconds(ttl, "ttl", none="to keep turns", most=math.inf)
        super().__init__(database, now)
        self._ttl = ttl
        self._counter = token_counter

    def is_same(self, other: object) -> bool:
        """Return whether another store is on the same file."""
        return other is self or (isinstance(other, SQLiteTurnStore) and other.place == self.place)

    @property
    def ttl(self) -> float | None:
        """Seconds after which a turn expires; None if it stays."""
        return self._ttl

    async def page_back(self, scope: SessionScope, older: Any, limit: int, enough: PageLimit, floor: int = 0) -> Page:
        """Return a page of turns before `older` = (seq, base), newest first, down to position `floor`."""
        with self._reading() as connection:
            before, base = older or (MOST + 1, 0)
            # `base` is the position of the last tombstone: rows up to it are void, even if their deletion is not
            # finished.
            base = max(base, floor - 1)
            # The page is for a model, who needs no traces: the first column of that name hides the second.
            columns = f"NULL AS trace, *, {SOUND} AS sound"
            query = f"SELECT {columns} FROM turns WHERE {HERE} AND {LIVE} AND seq < :before AND seq > :base"
            given = self._parameters(scope, before=before, base=base, limit=limit)
            rows = check_owner(connection.execute(f"{query} ORDER BY seq DESC LIMIT :limit", given), scope)
            # A damaged row cannot tell where the session ends: one with a wild position would hide all others.
            head = next((SessionHead(row["seq"], row["epoch"], row["base"]) for row in rows if row["sound"]), EMPTY)
            if older is None:
                base = max(base, head.base) if rows else 0
            # An empty session has no epoch. Its turns are given that of the user's last purge instead, by which a
            # later append notices a purge of a session that held nothing.
            epoch = head.epoch or self._purged(connection, scope.user_id)
            valid = [row for row in rows if row["seq"] > base]
            # an older file that cannot be written to has no such column
            replaced = history_rows.ReplacedTurns(Edit(row["seq"], dict(row).get("replaces")) for row in valid)
            shown = (row for row in valid if is_turn(row) and row["seq"] not in replaced)
            # The rows are decoded lazily: the rest of the page is not, once it holds enough.
            turns, stopped = history_rows.until_limit((self._turn(row, enough.messages) for row in shown), enough)
            last = turns[-1].seq if stopped else rows[-1]["seq"] if len(rows) == limit else 0
            # Gaps are looked for among all rows, hidden ones included: a soft-deleted turn is not lost.
            seqs = [before, *(row["seq"] for row in valid)]
            lost = [turn for turn in lost_turns(connection, scope, seqs, last or base) if turn.seq not in replaced]
            # The next page begins below what the rows of this one replace, as far as they were read.
            last = (turns[-1].replaces or last) if stopped else min(last, replaced.first)
            turns = sorted([*turns, *lost], key=lambda turn: turn.seq, reverse=True)
            following = (last, base) if last > base + 1 else None
            return Page(turns, head.seq, epoch, self._now(), following, None if head is EMPTY else head)

    @property
    def keeps_summaries(self) -> bool:
        """True: they have a table of their own."""
        return True

    async def page_with_summary(
        self, scope: SessionScope, limit: int, enough: PageLimit
    ) -> tuple[Page, StoredSummary | None]:
        """Return the newest page of turns, down to that at which the summary ends, and the summary."""
        summary = await self.summary(scope)
        floor = summary.position.seq if summary else 0
        return await self.page_back(scope, None, limit, enough, floor), summary

    async def summary(self, scope: SessionScope, *, unfinished: bool = False) -> StoredSummary | None:
        """Return a summary of the session."""
        with self._reading() as connection:
            return self._summary(connection, scope, unfinished)

    async def put_summary(
        self,
        scope: SessionScope,
        summary: StoredSummary,
        *,
        previous: str | None,
        turns: Sequence[int],
        unfinished: bool = False,
        moved: str | None = None,
    ) -> bool:
        """Store a summary in one transaction, unless something came between."""
        expires_at = summary.expires_at and summary.expires_at.timestamp()
        value = json.dumps(summary.value, ensure_ascii=False)
        row = [*scope, int(unfinished), summary.id, *summary.position, expires_at, value, FORMAT_VERSION]

        def write(connection: sqlite3.Connection) -> bool:
            there = self._summary(connection, scope, unfinished)
            if (there and there.id) != previous or not self._are_shown(connection, scope, turns):
                return False
            if moved is not None:
                given = self._parameters(scope, moved=moved)
                gone = connection.execute(f"DELETE FROM summaries WHERE {HERE} AND id = :moved", given)
                if not gone.rowcount:
                    return False
            connection.execute(f"REPLACE INTO summaries VALUES ({', '.join('?' * len(row))})", row)
            return True

        return await self._write(write)

    async def drop_summaries(self, scope: SessionScope, ids: Sequence[str] | None = None) -> int:
        """Delete summaries of the session."""
        which = HERE if ids is None else f"{HERE} AND id IN (SELECT value FROM json_each(:ids))"
        given = self._parameters(scope, ids=json.dumps(ids))
        count = await self._change(f"DELETE FROM summaries WHERE {which}", deleting=True, **given)
        if count:
            await self._erase()
        return count

    async def page_forward(self, scope: SessionScope, after: Any, limit: int, *, hidden: bool = False) -> TurnPage:
        """Return a page of turns after a position, oldest first, and the position to continue from (None: the end)."""
        with self._one_look() as connection:
            # All pages show the session as it was at the first one: an edit that comes later hides nothing of it.
            after, end = after if isinstance(after, tuple) else (after or 0, self._end(connection, scope))
            begin = max(after, (self._head(connection, scope) or EMPTY).base)
            query = f"SELECT * FROM turns WHERE {HERE} AND {LIVE} AND seq > :after AND seq <= :end"
            given = self._parameters(scope, after=begin, limit=limit, end=end)
            rows = check_owner(connection.execute(f"{query} ORDER BY seq LIMIT :limit", given), scope)
            replaced = history_rows.ReplacedTurns(edit for edit in self._edits(connection, scope) if edit.seq <= end)
            is_full = len(rows) == limit
            # On the last page the gap behind the last row counts as well.
            seqs = [*([] if is_full else [MOST + 1]), *(row["seq"] for row in reversed(rows))]
            lost = [turn for turn in lost_turns(connection, scope, seqs, begin) if turn.seq not in replaced]
        shown = [row for row in rows if is_turn(row, hidden) and (hidden or row["seq"] not in replaced)]
        turns = [self._turn(row, replaced=replaced) for row in shown]
        turns = sorted([*turns, *lost], key=lambda turn: turn.seq)
        return turns, (rows[-1]["seq"], end) if is_full else None

    async def stored_ids(self, scope: SessionScope, ids: Sequence[str]) -> set[str]:
        """Return those of the ids that belong to live messages of the session."""
        query = (
            "SELECT DISTINCT message_id, seq FROM message_ids JOIN turns USING (user_id, session_id, seq)"
            f" WHERE {HERE} AND message_id IN (SELECT value FROM json_each(:ids)) AND {LIVE} AND NOT is_deleted"
        )
        with self._one_look() as connection:
            found = connection.execute(query, self._parameters(scope, ids=json.dumps(list(ids)))).fetchall()
            replaced = history_rows.ReplacedTurns(self._edits(connection, scope)) if found else ()
        return {name for name, seq in found if seq not in replaced} & set(ids)

    async def edits(self, scope: SessionScope) -> list[Edit]:
        """Return the rows that replace others, newest first."""
        with self._reading() as connection:
            return self._edits(connection, scope)

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """Return the user's sessions, most recently used first; `hidden` counts soft-deleted turns as well."""
        return await self.session_page(SessionQuery(user_id, hidden=hidden))

    async def session_page(self, asked: SessionQuery) -> list[SessionInfo]:
        """Return a page of the user's sessions with titles and previews, most recently used first."""
        return await sessions.page_by_time(asked, partial(self._walk, asked.user_id), partial(self._described, asked))

    async def _walk(self, user_id: str, place: ListPosition | None, done: list[str], count: int) -> Places:
        query = (
            f"SELECT created_at, session_id FROM turns WHERE user_id = :user AND {DATED} AND created_at <= :at"
            " AND session_id NOT IN (SELECT value FROM json_each(:done))"
            " ORDER BY created_at DESC, session_id LIMIT :count"
        )
        rows = await self._select(query, user=user_id, done=json.dumps(done), count=count, at=_at(place))
        return [(at, name) for text, name in rows if (at := iso_date_of(text))]

    async def _described(self, asked: SessionQuery, names: list[str] | None) -> list[SessionInfo]:
        these = "" if names is None else "AND session_id IN (SELECT value FROM json_each(:names))"
        if asked.where:
            kept = "SELECT session_id FROM session_details WHERE user_id = :user AND instr(metadata, :item)"
            these = f"AND session_id IN ({kept})"
        shown = f"kind = 'turn' {'' if asked.hidden else 'AND NOT is_deleted'} AND {LIVE} AND {UNREPLACED}"
        # Of a session's turns only two are read: the first with a question, or else the first, and the last.
        row = f"SELECT rowid FROM turns AS t WHERE t.user_id = :user AND t.session_id = turns.session_id AND {shown}"
        question = f"""{row} AND instr(messages, '"role": "human"') ORDER BY t.seq LIMIT 1"""
        query = (
            "SELECT session_id, COUNT(*), MIN(created_at), MAX(created_at) FILTER (WHERE {DATED}),"
            f" COALESCE(({question}), ({row} ORDER BY t.seq LIMIT 1)), ({row} ORDER BY t.seq DESC LIMIT 1)"
            f" FROM turns WHERE user_id = :user {these} AND {shown} GROUP BY session_id"
        ).replace("{DATED}", DATED)
        given = {"user": asked.user_id, "names": json.dumps(names), "item": asked.item, "now": self._now().timestamp()}
        with self._reading() as connection:
            given["ranges"] = self._ranges(connection, asked.user_id)
            found = connection.execute(query, given).fetchall()
            ends = json.dumps([place for row in found for place in row[4:]])
            # the plus sign keeps SQLite from walking all turns of the user
            query = "SELECT rowid, * FROM turns WHERE +user_id = :user AND rowid IN (SELECT value FROM json_each(:at))"
            turns = {row["rowid"]: self._turn(row) for row in connection.execute(query, {**given, "at": ends})}
            query = f"SELECT session_id, title, metadata, epoch FROM session_details WHERE user_id = :user {these}"
            details = {name: SessionDetails(*kept) for name, *kept in connection.execute(query, given)}
        listed: list[SessionInfo] = []
        for name, count, begun, used, first, last in found:
            info = SessionInfo(name, count, iso_date_of(begun), iso_date_of(used))
            opening = [turns[first]] if first in turns else []
            listed.append(sessions.describe_session(info, opening, turns.get(last), details.get(name)))
        return listed

    async def update_session(
        self, scope: SessionScope, title: str | None, metadata: str | None, epoch: int | None = None
    ) -> bool:
        """Store title and metadata of a session in one transaction; return False if it holds no turns."""
        last = f"SELECT epoch, expires_at FROM turns WHERE {HERE} AND {LIVE} AND kind = 'turn' ORDER BY seq DESC"
        query = "SELECT * FROM session_details WHERE user_id = ? AND session_id = ?"

        def write(connection: sqlite3.Connection) -> bool:
            turn = connection.execute(last, self._parameters(scope)).fetchone()
            if turn is None or not same_conversation(epoch or 0, turn["epoch"]):
                return False
            old = connection.execute(query, scope).fetchone()
            kept = old if old and same_conversation(old["epoch"], turn["epoch"]) else {"title": "", "metadata": "{}"}
            new = [kept["title"] if title is None else title, kept["metadata"] if metadata is None else metadata]
            connection.execute("REPLACE INTO session_details VALUES (?, ?, ?, ?, ?, ?)", [*scope, *turn, *new])
            return True

        return await self._write(write)

    async def find_turns(self, user_id: str, words: Sequence[str], after: ListPosition | None, limit: int) -> FoundPage:
        """Return turns that may hold the words, newest first, and where to continue; None at the end."""
        query = (
            f"SELECT * FROM turns WHERE user_id = :user AND created_at <= :at AND {LATER} AND {DATED}"
            f" AND kind = 'turn' AND NOT is_deleted AND {LIVE} AND {UNREPLACED}"
            " ORDER BY created_at DESC, session_id, seq DESC"
        )
        given: dict[str, object] = {"user": user_id, "now": self._now().timestamp(), "at": _at(after)}
        # a turn whose first message was not returned yet is read again
        given |= {"after": after.session_id, "seq": after.seq + min(after.message, 1)} if after else START
        folded = [word.casefold() for word in words]
        found: list[tuple[str, Turn]] = []
        with self._reading() as connection:
            given["ranges"] = self._ranges(connection, user_id)
            for row in connection.execute(query, given):
                text = str(row["messages"]).casefold()  # not decoded: most rows do not hold the words
                if all(word in text for word in folded):
                    scope = SessionScope(user_id, row["session_id"])
                    check_owner([row], scope)
                    found.append((scope.session_id, self._turn(row)))
                    if len(found) == limit:
                        turn = found[-1][1]
                        return found, ListPosition(turn.created_at, scope.session_id, turn.seq)
        return found, None

    async def owners(self) -> list[str]:
        """Return every user id that has turns or decisions."""
        kinds = "kind IN ('turn', 'decision')"
        rows = await self._select(f"SELECT DISTINCT user_id FROM turns WHERE {kinds} ORDER BY 1")
        return [row[0] for row in rows]

    async def has_users(self) -> bool:
        """Return whether anybody has turns."""
        return bool(await self._select("SELECT 1 FROM turns WHERE kind = 'turn' AND user_id > '' LIMIT 1"))

    async def append(
        self, scope: SessionScope, batch: history_rows.Batch, expected_seq: int | None, origin: history_rows.ReadVersion
    ) -> int:
        """Store a batch in one transaction, and return the position of its last row."""

        def write(connection: sqlite3.Connection) -> int:
            self._expire(connection, scope)
            head = self._head(connection, scope)
            query = f"SELECT * FROM turns WHERE {HERE} AND op IN (SELECT value FROM json_each(:ops))"
            given = self._parameters(scope, ops=json.dumps([row.op for row in batch.rows]))
            stored = {row["op"]: self._turn(row) for row in check_owner(connection.execute(query, given), scope)}
            last = self._last(connection, scope, head)  # damaged rows count: their positions are still taken
            now, purged = self._now(), self._purged(connection, scope.user_id)
            # `BEGIN IMMEDIATE` holds the write lock, so no clear can come between this decision and the inserts.
            inserts, seq = history_rows.plan_append(
                scope, batch, stored, head, purged=purged, now=now, origin=origin, expected_seq=expected_seq, last=last
            )
            for place, row in inserts:
                self._insert(connection, scope, place, row.kind, row)
                if row.replaces:
                    self._forget_summaries(connection, scope, row.replaces)
            return seq

        return await self._write(write, **batch.error_context)

    async def flag(self, scope: SessionScope, turn: int | str, *, deleted: bool) -> bool:
        """Set or remove the soft-delete flag of a turn, and return whether there is such a turn."""
        column = "op" if isinstance(turn, str) else "seq"
        update = f"UPDATE turns SET is_deleted = :deleted WHERE {HERE} AND {column} = :turn AND kind = 'turn'"
        given = self._parameters(scope, turn=turn, deleted=int(deleted))

        def write(connection: sqlite3.Connection) -> bool:
            found = connection.execute(f"{update} RETURNING seq", given).fetchall()
            for (seq,) in found:
                self._forget_summaries(connection, scope, seq)
            return bool(found)

        return await self._write(write)

    async def fork(self, scope: SessionScope, session_id: str, at: int | None) -> bool:
        """Copy the turns that are shown into another session, in one transaction."""
        target = SessionScope(scope.user_id, session_id)

        def write(connection: sqlite3.Connection) -> bool:
            self._expire(connection, target)
            base, ranges = (self._head(connection, scope) or EMPTY).base, self._ranges(connection, scope.user_id)
            given = self._parameters(scope, base=base, end=MOST if at is None else at, ranges=ranges)
            found = connection.execute(f"SELECT seq, op FROM turns WHERE {COPIED} ORDER BY seq", given).fetchall()
            if at is not None and at not in [row["seq"] for row in found[-1:]]:
                raise history_rows.not_shown(scope.session_id, at)
            copied = [row["op"] for row in found]
            query = f"SELECT op FROM turns WHERE {HERE} AND kind IN ('turn', 'undo') ORDER BY seq"
            there = [row["op"] for row in connection.execute(query, self._parameters(target))]
            if there or not copied:
                return there == copied
            head = self._head(connection, target) or SessionHead(0, history_rows.new_epoch(), 0)
            last = self._last(connection, target, head)
            given |= {"target": session_id, "last": last, "epoch": head.epoch, "above": head.base}
            connection.execute(
                "INSERT INTO turns SELECT user_id, :target, :last + row_number() OVER (ORDER BY seq), op, kind, v,"
                " :epoch, :above, created_at, expires_at, is_deleted, messages, tokens, token_counter, checksum,"
                " NULL, trace"
                f" FROM turns WHERE {COPIED}",
                given,
            )
            connection.execute(
                "INSERT INTO message_ids SELECT new.user_id, new.session_id, message_id, new.seq FROM turns AS new"
                " JOIN turns AS old ON old.user_id = :user AND old.session_id = :session AND old.op = new.op"
                " JOIN message_ids AS ids ON (ids.user_id, ids.session_id, ids.seq) = (:user, :session, old.seq)"
                " WHERE new.user_id = :user AND new.session_id = :target",
                given,
            )
            connection.execute(
                "INSERT INTO turn_indexes SELECT new.user_id, new.session_id, new.seq, name, made FROM turns AS new"
                " JOIN turns AS old ON old.user_id = :user AND old.session_id = :session AND old.op = new.op"
                " JOIN turn_indexes AS made ON (made.user_id, made.session_id, made.seq) = (:user, :session, old.seq)"
                " WHERE new.user_id = :user AND new.session_id = :target",
                given,
            )
            return True

        return await self._write(write)

    @property
    def keeps_index(self) -> bool:
        """True: what is derived from turns has a table of its own."""
        return True

    async def changes(self, user_id: str, since: Any, names: Sequence[str], limit: int, slack: float = 0) -> Changes:
        """Return a page of the rows that changed; the mark is file and number of the last change, which is exact."""
        before, number = since or ("", 0)
        with self._one_look() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] < ORDERED:
                msg = f"{self._database.path} is of an older memkit and cannot be written to: open it once where it can"
                raise HistoryReadError(msg)
            last, file = connection.execute("SELECT change, file FROM last_change").fetchone()
            is_other = since is not None and (before != file or number > last)
            number = 0 if is_other else number
            given = {"user": user_id, "since": number, "limit": limit, "names": json.dumps(list(names))}
            found = connection.execute(CHANGED, given).fetchall()
        rows: dict[int, ChangedRow] = {}
        for row in found:
            if row["change"] not in rows:
                rows[row["change"]] = _changed(row)
            if row["name"] is not None:
                rows[row["change"]].index[row["name"]] = row["made"]
        sound = {row["change"] for row in found if row["sound"]}
        kept = [row for change, row in rows.items() if change in sound]
        return Changes(kept, (file, max(rows, default=number)), len(rows) == limit, anew=is_other)

    async def turns_at(self, user_id: str, places: Sequence[Place]) -> list[tuple[str, Turn]]:
        """Return the turns at some places."""
        query = f"SELECT * FROM turns WHERE {HERE} AND seq = :seq AND kind = 'turn' AND {LIVE}"
        found: list[tuple[str, Turn]] = []
        with self._reading() as connection:
            for session_id, seq in places:
                given = self._parameters(SessionScope(user_id, session_id), seq=seq)
                found += [(session_id, self._turn(row)) for row in connection.execute(query, given)]
        return found

    async def keep_index(self, user_id: str, name: str, made: Sequence[tuple[Place, str, bytes]]) -> None:
        """Store what was derived from turns that are still there, or decided, in one transaction."""
        statement = (
            "INSERT OR REPLACE INTO turn_indexes SELECT user_id, session_id, seq, :name, :made FROM turns"
            f" WHERE {HERE} AND seq = :seq AND op = :op AND kind IN ('turn', 'decision')"
        )
        given = [
            {"user": user_id, "session": session_id, "seq": seq, "op": op, "name": name, "made": data}
            for (session_id, seq), op, data in made
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(statement, given)

        await self._write(write)

    async def clear(self, scope: SessionScope) -> None:
        """Insert a tombstone into the session and delete everything older."""
        await self._write(lambda connection: self._void(connection, scope, "clear"), deleting=True)
        await self._erase(moved=True)

    async def purge(self, user_id: str) -> dict[str, int]:
        """Insert a tombstone into every session of the user, delete everything else, and return counts."""
        query = "SELECT DISTINCT session_id FROM turns WHERE user_id = ? AND session_id <> '' ORDER BY 1"

        def write(connection: sqlite3.Connection) -> list[int]:
            # First the tombstone of the user: it refuses turns of sessions that hold no rows yet, which get none of
            # their own.
            self._void(connection, SessionScope(user_id, ""), "purge")
            names = [name for (name,) in connection.execute(query, (user_id,)).fetchall()]
            self._forget_old_records(connection, "user_id = :user", {"user": user_id})
            return [self._void(connection, SessionScope(user_id, name), "clear") for name in names]

        deleted = await self._write(write, deleting=True)
        await self._erase(moved=True)
        return {"sessions": sum(1 for n in deleted if n), "turns": sum(deleted)}

    # -- operations within a transaction

    def _parameters(self, scope: SessionScope, **more: object) -> dict[str, object]:
        return {"user": scope.user_id, "session": scope.session_id, "now": self._now().timestamp(), **more}

    def _head(self, connection: sqlite3.Connection, scope: SessionScope) -> SessionHead | None:
        query = f"SELECT seq, epoch, base FROM turns WHERE {HERE} AND {LIVE} AND {SOUND} ORDER BY seq DESC LIMIT 1"
        row = connection.execute(query, self._parameters(scope)).fetchone()
        return SessionHead(*row) if row else None

    def _summary(self, connection: sqlite3.Connection, scope: SessionScope, unfinished: bool) -> StoredSummary | None:
        if connection.execute("PRAGMA user_version").fetchone()[0] < SUMMARIZED:
            return None  # an older file that cannot be written to
        query = f"SELECT * FROM summaries WHERE {HERE} AND unfinished = :unfinished"
        found = connection.execute(query, self._parameters(scope, unfinished=int(unfinished))).fetchone()
        if found is None:
            return None
        row = {"id": found["id"], "v": found["v"], "value": parse_json(found["value"])}
        row["position"] = {name: found[name] for name in base.Position._fields}
        row["expiresAt"] = date_of(found["expires_at"])
        return history_rows.read_summary(row, self._now())

    def _are_shown(self, connection: sqlite3.Connection, scope: SessionScope, turns: Sequence[int]) -> bool:
        """Return whether all turns at some positions are neither hidden, replaced, expired nor erased."""
        query = f"SELECT seq FROM turns WHERE {HERE} AND {LIVE} AND kind = 'turn' AND NOT is_deleted AND seq > :base"
        query += " AND seq IN (SELECT value FROM json_each(:turns))"
        head = self._head(connection, scope) or EMPTY
        given = self._parameters(scope, base=head.base, turns=json.dumps(list(turns)))
        replaced = history_rows.ReplacedTurns(self._edits(connection, scope))
        shown = {seq for (seq,) in connection.execute(query, given) if seq not in replaced}
        return shown == set(turns)

    def _forget_summaries(self, connection: sqlite3.Connection, scope: SessionScope, seq: int) -> None:
        """Delete the summaries that cover a position, whose turn is changed."""
        connection.execute(f"DELETE FROM summaries WHERE {HERE} AND seq >= :seq", self._parameters(scope, seq=seq))

    def _edits(self, connection: sqlite3.Connection, scope: SessionScope) -> list[Edit]:
        return [edit for _, edit in self._edits_of(connection, HERE, self._parameters(scope))]

    def _edits_of(self, connection: sqlite3.Connection, where: str, given: dict[str, object]) -> list[tuple[str, Edit]]:
        """Return the rows that replace others, newest first, each with its session."""
        if connection.execute("PRAGMA user_version").fetchone()[0] < EDITABLE:
            return []  # an older file that cannot be written to
        query = f"SELECT session_id, seq, replaces, kind = 'undo' FROM turns INDEXED BY turns_replaces WHERE {where}"
        query += f" AND {LIVE} AND replaces IS NOT NULL AND seq <= {MOST} ORDER BY seq DESC"
        return [(name, Edit(*edit)) for name, *edit in connection.execute(query, given)]

    def _ranges(self, connection: sqlite3.Connection, user_id: str) -> str:
        """Return the ranges of positions that were replaced in the sessions of a user, for `UNREPLACED`."""
        given: dict[str, object] = {"user": user_id, "now": self._now().timestamp()}
        return json.dumps(history_rows.replaced_in(self._edits_of(connection, "user_id = :user", given)))

    def _end(self, connection: sqlite3.Connection, scope: SessionScope) -> int:
        query = f"SELECT MAX(seq) FROM turns WHERE {HERE} AND seq <= {MOST}"
        return connection.execute(query, self._parameters(scope)).fetchone()[0] or 0

    def _purged(self, connection: sqlite3.Connection, user_id: str) -> int:
        """Return the epoch of the user's last purge (0: none), kept under a session id that no caller can pass."""
        head = self._head(connection, SessionScope(user_id, "")) if user_id else None
        return head.epoch if head else 0

    def _last(self, connection: sqlite3.Connection, scope: SessionScope, head: SessionHead | None) -> int:
        """Return the last position ever taken in this session, including turns whose row is damaged."""
        query = f"SELECT MAX(seq) FROM message_ids WHERE {HERE} AND seq <= {MOST}"
        (known,) = connection.execute(query, self._parameters(scope)).fetchone()
        return max((head or EMPTY).seq, known or 0)

    def _turn(self, row: sqlite3.Row, newest: int | None = None, replaced: Container[int] = ()) -> Turn:
        data = dict(row)
        known, messages = data.get("checksum"), data["messages"]  # rows of memkit 0.1.0 have no checksum
        is_damaged = known is not None and not (isinstance(messages, (str, bytes)) and known == checksum_of(messages))
        data["messages"] = None if is_damaged else parse_json(messages)
        data |= {"tokens": parse_json(row["tokens"]), "isDeleted": row["is_deleted"] == 1}
        data |= {"createdAt": iso_date_of(row["created_at"]), "expiresAt": date_of(row["expires_at"])}
        trace = parse_json(data.get("trace"))
        data["trace"] = data.get("trace") if trace is None else trace  # text is no trace, and so a damaged one
        turn = history_rows.read_turn(data, self._counter, newest, replaced)
        if is_damaged:
            turn.problems[:] = [f"turn {turn.seq}: damaged, its messages do not fit their checksum"]
        return turn

    def _insert(
        self, connection: sqlite3.Connection, scope: SessionScope, head: SessionHead, kind: Kind, row: TurnRow
    ) -> None:
        now = row.created_at or self._now()
        expires = None if row.expires_at is None else row.expires_at.timestamp()
        if kind in ("clear", "purge"):
            expires = (now + history_rows.MARKER_TTL).timestamp()
        elif self._ttl is not None and kind != "decision":
            expires = now.timestamp() + self._ttl
        messages = json.dumps(row.messages, ensure_ascii=False)
        # the number of characters first, which is free: it is at most the number of bytes
        if len(messages) > MAX_TURN or len(messages.encode()) > MAX_TURN:
            raise MessageTooLargeError(
                f"a turn is larger than {MAX_TURN >> 20} MB, the most of every store. Nothing was stored. Keep large "
                "content elsewhere, and what leads to it in the message"
            )
        values = [
            *scope, head.seq, row.op, kind, FORMAT_VERSION, head.epoch, head.base, now.isoformat(), expires,
            int(row.is_deleted), messages, json.dumps(row.tokens), counter_name(self._counter), checksum_of(messages),
            row.replaces, json.dumps(row.trace) if row.trace else None,
        ]  # fmt: skip
        connection.execute(f"INSERT INTO turns VALUES ({', '.join('?' * len(values))})", values)
        indexes = [(*scope, head.seq, name, made) for name, made in row.index.items()]
        connection.executemany("INSERT OR REPLACE INTO turn_indexes VALUES (?, ?, ?, ?, ?)", indexes)
        # An id with a lone surrogate is encoded as a tagged value, not as text, so it cannot be looked up.
        ids = {i for data in row.messages if isinstance(i := data.get("id"), str)}
        connection.executemany("INSERT INTO message_ids VALUES (?, ?, ?, ?)", [(*scope, i, head.seq) for i in ids])

    def _expire(self, connection: sqlite3.Connection, scope: SessionScope) -> None:
        """Delete expired rows: all of this session, to free their positions and turn ids, and up to 100 others."""
        parameters = self._parameters(scope)
        # the plus signs keep SQLite from walking the whole session: few rows expire, and they have an index
        here = "+user_id = :user AND +session_id = :session"
        connection.execute(f"DELETE FROM turns WHERE expires_at <= :now AND {here}", parameters)
        some = "SELECT rowid FROM turns WHERE expires_at <= :now LIMIT 100"
        connection.execute(f"DELETE FROM turns WHERE rowid IN ({some})", parameters)
        connection.execute("DELETE FROM session_details WHERE expires_at <= :now", parameters)
        connection.execute("DELETE FROM summaries WHERE expires_at <= :now", parameters)

    def _void(self, connection: sqlite3.Connection, scope: SessionScope, kind: Kind) -> int:
        """Insert a tombstone at the end of the session, delete everything older, and return how many turns that was."""
        self._expire(connection, scope)
        seq = self._last(connection, scope, self._head(connection, scope)) + 1
        # The tombstone carries a new epoch, and its own position as base: readers stop at it, and a turn that began
        # in the old epoch is refused, so that the text it was based on does not come back. It stays for two hours
        # (see `may_append`).
        self._insert(connection, scope, history_rows.tombstone(seq), kind, TurnRow(f"{kind}:{uuid4()}", [], []))
        connection.execute(f"DELETE FROM session_details WHERE {HERE}", self._parameters(scope))
        connection.execute(f"DELETE FROM summaries WHERE {HERE}", self._parameters(scope))
        others = f"FROM turns WHERE {HERE} AND seq <> :seq"
        parameters = self._parameters(scope, seq=seq)
        (turns,) = connection.execute(f"SELECT COUNT(*) {others} AND kind = 'turn'", parameters).fetchone()
        connection.execute(f"DELETE {others}", parameters)
        self._forget_old_records(connection, HERE, parameters)
        return int(turns)

    def _forget_old_records(self, connection: sqlite3.Connection, where: str, given: dict[str, object]) -> None:
        """Erase what a vector memory of version 0.1 or 0.2 kept: else a migration would bring it back."""
        if connection.execute(OLD_RECORDS).fetchone()[0]:
            connection.execute(f"DELETE FROM vectors WHERE {where}", given)
            connection.execute(f"DELETE FROM vector_generations WHERE {where}", given)


class SQLiteOptions(HistoryOptions, total=False):
    """The keyword arguments of `SQLiteChatMessageHistory`, which documents them; `factory` takes the same."""

    file_mode: int


class SQLiteChatMessageHistory(TurnHistory):
    """A chat history in one SQLite file: durable, atomic turns, no server. The default for one machine.

    It is a LangChain chat history: use it wherever one is accepted. Safe with threads and with several processes on one
    file (not on a network drive). No I/O happens before the first use.

    Args:
        path: The file; created at first use, its folder must exist. `":memory:"` keeps the data in this object (or
            factory).
        session_id: The conversation, 1 to 512 bytes.
        user_id: The owner. Histories of the same session id and different users share nothing.
        history_size: The greatest number of messages in `messages`, cut at a turn. None returns all.
        ttl: Seconds after which a turn expires. None keeps it.
        token_counter: Counts tokens of messages when they are stored: None or `"approximate"` (fast), an OpenAI
            encoding or model (`"o200k_base"`, `"gpt-4o"`: exact, extra `tokens`), a function of messages, or a model.
            Stored counts are reused by every reader whose counter has the same name.
        on_corrupt: `"report"` leaves damaged messages out and logs them, `"raise"` raises `MessageDecodeError`.
        timeout: Seconds to wait for another process that is writing.
        file_mode: The permissions of the file, its -wal and its -shm if they are created here: 0o600 by default, for
            the owner alone; 0o660 shares it with a group. An existing file keeps its own.
        now: The clock, for tests.

    Raises:
        TypeError: An id is not a string.
        ValueError: An id is empty or malformed, or another argument is wrong.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> history = SQLiteChatMessageHistory(":memory:", "s1")
        >>> history.add_messages([HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")])
        >>> [m.content for m in history.messages]
        ['My name is Nemo.', 'Hello Nemo.']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        session_id: str,
        *,
        user_id: str | None = None,
        history_size: int | None = None,
        ttl: float | None = None,
        token_counter: base.TokenCounterLike = None,
        on_corrupt: Literal["report", "raise"] = "report",
        timeout: float = 30.0,
        file_mode: int = OWNER_ALONE,
        now: base.Now = utc_now,
    ) -> None:
        counter = resolve_counter(token_counter)
        store = SQLiteTurnStore(shared_database(path, timeout, file_mode), ttl, counter, now)
        super().__init__(
            store, session_id, user_id, history_size=history_size, token_counter=counter, on_corrupt=on_corrupt
        )

    @classmethod
    def factory(cls, path: str | os.PathLike[str], **options: Unpack[SQLiteOptions]) -> HistoryFactory[Self]:
        """Return a `get_session_history(session_id, user_id=None)` for this file.

        Args:
            path: The file, as in the class.
            **options: The class's further arguments, by the same names, and those of your subclass.

        Returns:
            A callable that creates histories of this class, with `list_sessions`, `purge`, `setup` and `close`.

        Raises:
            ConfigurationError: There is no such argument, or the constructor of your subclass takes others.

        Example:
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> histories("s1", user_id="u1").add_user_message("hello")
            >>> len(histories("s1", user_id="u1").messages), len(histories("s1", user_id="u2").messages)
            (1, 0)
        """
        check_options(cls, options)
        make = partial(cls, path, **options)
        return HistoryFactory(make("-"), None if cls.__init__ is SQLiteChatMessageHistory.__init__ else make)
