"""What a few sessions show that are edited, taken back, hidden and copied into each other: a model, and what breaks it.

The model is what docs/epochs.md says, in the fewest words: a session is a list of rows, an edit is a row that hides all
from a row on, a hidden row hides nothing, an undo hides the newest edit, a copy is a session of its own, an erase
empties a session. Every operation happens at one moment between its call and its return, a fork at two (it takes what
the source shows, then the copy shows it), a guarded append at two (it loads, then it is stored), a purge at one in each
session, at one more before that where a fork copied into it, and at one before all where it held nothing. `explain`
looks for an order of these moments in which every read shows what the model shows.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from gatekit.orders import Explanation, Step, explain

if TYPE_CHECKING:
    from gatekit.checker import Operation

CHANGED = ("edit", "undo", "restore", "fork")  # what makes a session one for this model
WRITES = ("append", "edit", "fork")  # what needs a position in a session
REFUSED = ("StaleTurnError", "HistoryConflictError", "IdempotencyConflictError")


class Row(NamedTuple):
    """A turn, or an undo (which says nothing)."""

    token: str
    hides_from: int | None = None  # the first row that it hides, with all up to itself
    is_deleted: bool = False


class Session(NamedTuple):
    """The rows since the last erase; and how often it was erased or edited, which a guarded append must not miss."""

    rows: tuple[Row, ...] = ()
    epoch: int = 0

    @property
    def shown(self) -> tuple[str, ...]:
        """What a reader sees."""
        return tuple(self.rows[i].token for i in self._unhidden() if self.rows[i].token and not self.rows[i].is_deleted)

    @property
    def tokens(self) -> set[str]:
        """What lies in the store."""
        return {row.token for row in self.rows if row.token}

    @property
    def newest_edit(self) -> int | None:
        """The row that an undo takes back."""
        edits = [i for i in self._unhidden() if self.rows[i].token and self.rows[i].hides_from is not None]
        return edits[-1] if edits else None

    def _unhidden(self) -> list[int]:
        found, hidden_from = list[int](), len(self.rows)
        for i in reversed(range(len(self.rows))):
            if i < hidden_from:
                found.append(i)
                first = self.rows[i].hides_from
                hidden_from = min(hidden_from, i if first is None else first)
        return found[::-1]

    def with_row(self, row: Row) -> Session:
        """With one more; an edit or an undo is a new epoch."""
        return Session((*self.rows, row), self.epoch + (row.hides_from is not None))

    def edited(self, token: str, turn: str) -> list[Session]:
        """With a turn replaced by another one, and all after it."""
        if turn not in self.shown:
            return []
        i = next(i for i, row in enumerate(self.rows) if row.token == turn)
        first = self.rows[i].hides_from  # what an edit hid must not be shown when that is edited
        return [self.with_row(Row(token, i if first is None else first))]

    def marked(self, token: str, *, is_deleted: bool) -> list[Session]:
        """With a turn hidden, or shown again."""
        rows = tuple(row._replace(is_deleted=is_deleted) if row.token == token else row for row in self.rows)
        return [Session(rows, self.epoch)] if token in self.tokens else []


class Moment(NamedTuple):
    """One moment of an operation."""

    operation: Operation
    session: str
    part: str = ""  # "load", of a guarded append; "take", of a fork; "early", of a purge
    is_excused: bool = False  # another operation at the same time, or one that was killed, explains a refusal
    flagged: frozenset[str] = frozenset()  # what was hidden or shown again while a read was under way


class State(NamedTuple):
    """Of all sessions, and of the operations that are under way.

    Attributes:
        sessions: By name.
        loaded: Guarded appends, each with the epoch that it has loaded.
        taken: Forks, each with the turns that it has taken, and the purges that had reached the source before.
        purged: Purges, each with a session that it has done with.
    """

    sessions: tuple[tuple[str, Session], ...] = ()
    loaded: frozenset[tuple[str, int]] = frozenset()
    taken: frozenset[tuple[str, tuple[str, ...], frozenset[str]]] = frozenset()
    purged: frozenset[tuple[str, str]] = frozenset()

    def at(self, name: str) -> Session:
        """A session."""
        return dict(self.sessions).get(name, Session())

    def with_session(self, name: str, session: Session) -> State:
        """With one changed."""
        return self._replace(sessions=tuple(sorted((dict(self.sessions) | {name: session}).items())))


def after(state: State, step: Step) -> list[State]:
    """What a state may be after one moment of an operation; nothing, if that cannot have ended so here."""
    moment: Moment = step.what
    operation, session = moment.operation, state.at(moment.session)
    if operation.kind == "fork":
        return _forked(state, moment)
    if operation.kind == "read":
        return [state] if _fits(tuple(token for token, _ in operation.seen), session, moment) else []
    if operation.kind == "purge":
        return _purged(state, moment)
    if moment.part == "load":
        return [state._replace(loaded=state.loaded | {(operation.id, session.epoch)})]
    if operation.guarded:
        if not _may_be_told(state, moment):
            return []
        state = state._replace(loaded=frozenset(each for each in state.loaded if each[0] != operation.id))
    if step.is_certain and operation.error:
        return [state] if _is_refused_rightly(session, moment) else []
    return [state.with_session(moment.session, each) for each in _changed(session, operation)]


def _purged(state: State, moment: Moment) -> list[State]:
    """What a state may be after one moment of a purge.

    On MongoDB a purge puts a second tombstone into each session that a fork has marked, after those of all sessions,
    since a fork that listed its turns before may come above the first one. So such a session may be erased twice, with
    all that was stored there in between, by whoever saw the first tombstone. That is right: the purge has not returned
    yet, and what is stored while it runs may go with the rest. Only the later moment ends it: from then on nothing that
    it was to erase may come there, and what is stored stays. A store with one tombstone leaves the early moment out.

    Before all that it puts a tombstone under the user, which refuses turns that were loaded where a session was empty.
    """
    purge, session = moment.operation, state.at(moment.session)
    reached = (purge.id, moment.session)
    is_first = moment.part in ("early", "empty")
    is_too_late = reached in state.purged
    changes_nothing = not session.rows and not state.loaded
    if is_first and (is_too_late or changes_nothing):
        return []
    if moment.part == "empty" and session.rows:  # the user's tombstone is asked for where a session holds nothing
        return []
    [erased] = _changed(session, purge)
    state = state.with_session(moment.session, erased)
    is_over = purge.done and not is_first
    return [state._replace(purged=state.purged | {reached}) if is_over else state]


def _may_be_told(state: State, moment: Moment) -> bool:
    """Whether a guarded append may have ended so here: if the epoch changed since it was loaded, it is refused."""
    error = moment.operation.error
    loaded = dict(state.loaded).get(moment.operation.id)
    if loaded is None:
        return False
    is_stale = loaded != state.at(moment.session).epoch
    return is_stale if error == "StaleTurnError" else bool(error) or not is_stale


def _changed(session: Session, operation: Operation) -> list[Session]:
    """What a session is after an operation that succeeds; nothing, if it cannot succeed."""
    kind, [token] = operation.kind, operation.tokens or [""]
    if kind in ("append", "edit") and token in session.tokens:  # a retry
        return [session]
    if kind == "append":
        return [session.with_row(Row(token))]
    if kind == "edit":
        return session.edited(token, operation.turn)
    if kind in ("delete", "restore"):
        return session.marked(token, is_deleted=kind == "delete")
    if kind == "undo":
        edit = session.newest_edit
        if (edit is not None) != (operation.answer is not False):
            return []
        return [session if edit is None else session.with_row(Row("", edit))]
    return [Session((), session.epoch + 1)]  # cleared, or purged


def _is_refused_rightly(session: Session, moment: Moment) -> bool:
    """Whether an operation may be refused where a session is so."""
    kind, error, [token] = moment.operation.kind, moment.operation.error, moment.operation.tokens or [""]
    if moment.is_excused:  # it was erased, and copied into the session again, to another position
        return True
    if kind == "edit" and error == "HistoryConflictError":
        return moment.operation.turn not in session.shown
    if kind == "edit":  # it was stored before, and taken back
        return token in session.tokens
    return kind not in ("delete", "restore") or token not in session.tokens


def _forked(state: State, moment: Moment) -> list[State]:
    """What a state may be after one moment of a fork."""
    fork, session = moment.operation, state.at(moment.session)
    if fork.error in REFUSED:
        is_taken = fork.error == "HistoryConflictError" and bool(session.rows)
        is_not_shown = bool(fork.turn) and fork.turn not in state.at(fork.session).shown
        return [state] if is_taken or is_not_shown or moment.is_excused else []
    if moment.part == "take":
        shown = session.shown
        if fork.turn:
            shown = shown[: shown.index(fork.turn) + 1] if fork.turn in shown else ()
            if not shown:
                return []
        purges = frozenset(purge for purge, reached in state.purged if reached == moment.session)
        return [state._replace(taken=state.taken | {(fork.id, shown, purges)})]
    found = next((each for each in state.taken if each[0] == fork.id), None)
    if found is None:
        return []
    _, taken, purges = found
    state = state._replace(taken=state.taken - {found})
    if session.rows:
        same = [row.token for row in session.rows] == [*taken]  # as after a call that broke off
        return [state] if same else []
    # What a purge was to erase in the source must not come into a copy that it has done with.
    leaks = any(reached == moment.session and purge not in purges for purge, reached in state.purged)
    if leaks and taken:
        return []
    return [state.with_session(moment.session, session._replace(rows=tuple(map(Row, taken))))]


def _fits(seen: tuple[str, ...], session: Session, moment: Moment) -> bool:
    """Whether a read may have seen this.

    One beside an erase may have seen a part of what was erased. One in several commands may see what is hidden, or
    shown again, meanwhile, and not what was appended before that.
    """
    seen, shown = (tuple(t for t in tokens if t not in moment.flagged) for tokens in (seen, session.shown))
    if moment.is_excused:
        rest = iter(shown)
        return all(token in rest for token in seen)
    return seen == shown


class Family:
    """Sessions that are edited, or copied into each other, with all that was done to them."""

    def __init__(self, user: str, names: Sequence[str], operations: Sequence[Operation]) -> None:
        self.user, self.names, self.operations = user, names, operations
        self.changes = [each for each in operations if each.kind != "read"]
        self.flags = [each for each in operations if each.kind in ("delete", "restore")]
        self.steps = self._by_position([step for each in operations for step in self._steps_of(each)])
        self.wrong: list[tuple[str, Operation, str]] = []

    def check(self, stored: Mapping[str, set[str]] | None = None) -> list[tuple[str, Operation, str]]:
        """What is wrong, where it was seen, and details.

        Args:
            stored: What lies in each session in the end, seen or not; None if nobody looked.
        """
        self._check_reads()
        self._check_positions()
        found = explain(self.steps, State(), after)
        if not found.is_decided:
            self.wrong.append(("too many orders to try", self.operations[-1], ""))
        elif not found.is_found:
            self._accuse(found)
        elif stored is not None:
            known = {t for each in self.operations if each.kind in ("append", "edit") for t in each.tokens}
            stored = {name: stored.get(name, set()) & known for name in self.names}
            end = explain(self.steps, State(), after, lambda state: self._is_stored(state, stored))
            if not end.is_found:
                differ = {name: sorted(found.state.at(name).tokens ^ stored[name]) for name in self.names}
                less = all(stored[name] < found.state.at(name).tokens for name in self.names if differ[name])
                self.wrong.append(("lost" if less else "content left", self.operations[-1], f"{differ}"))
        return self.wrong

    def _steps_of(self, each: Operation) -> list[Step]:
        """The moments of an operation; none, if it certainly did nothing that anybody can know of."""
        certain = each.done or each.error in REFUSED
        did_nothing = not certain and (each.kind == "read" or each.maybe_stored is False)
        if did_nothing or each.kind in ("title", "titles"):
            return []
        end = each.ended if certain and each.ended is not None else math.inf

        is_refused = certain and bool(each.error) and not each.guarded
        only_looks = each.kind == "read" or is_refused

        def step(session: str, part: str = "", began: float = each.began) -> Step:
            moment = Moment(each, session, part, self._is_excused(each), self._flagged(each))
            return Step(moment, began, end, certain, only_looks)

        if each.kind == "purge":
            twice = [name for name in self.names if self._is_erased_twice(name, each)]
            early = [replace(step(name, "early"), is_certain=False) for name in twice]
            told = [name for name in self.names if self._is_told_by_the_user(name, each)]
            early += [replace(step(name, "empty"), is_certain=False) for name in told]
            return early + [step(name) for name in self.names]
        if each.kind == "fork":
            took = Step(Moment(each, each.session, "take"), each.began, each.ended or math.inf, certain)
            return [step(each.into)] if each.error in REFUSED else [took, step(each.into)]
        if each.guarded and each.loaded is None:  # it never came to its append
            return []
        if each.guarded and each.loaded is not None:
            load = Step(Moment(each, each.session, "load"), each.began, each.loaded)
            return [load, step(each.session, began=each.loaded)]
        return [step(each.session)]

    def _by_position(self, steps: Sequence[Step]) -> list[Step]:
        """The steps, at times that fit the positions of what was stored, which leaves far fewer orders to try.

        Positions go up in the order in which a session's turns are stored, also after it was erased. So a turn was
        stored before all that have a higher one ended, and after all that have a lower one began. What was said twice
        is left out: it is told the position that it had already. Positions of what expires become free again.
        """
        times = Counter(token for each in self.operations if each.kind in WRITES for token in each.tokens)
        placed: dict[str, list[int]] = {}
        for i, step in enumerate(steps):
            one = step.what.operation
            is_placed = one.kind in ("append", "edit") and one.done and one.seq and one.ttl is None
            if is_placed and step.what.part != "load" and times[one.tokens[0]] == 1:
                placed.setdefault(one.session, []).append(i)
        found = [*steps]
        for those in placed.values():
            those.sort(key=lambda i: steps[i].what.operation.seq)
            began = [*accumulate((steps[i].began for i in those), max)]
            ended = [*accumulate((steps[i].ended for i in reversed(those)), min)][::-1]
            if all(map(operator.le, began, ended)):  # else the positions are wrong, which the search has to find
                for i, first, last in zip(those, began, ended, strict=True):
                    found[i] = replace(steps[i], began=first, ended=last)
        return found

    def _is_erased_twice(self, name: str, purge: Operation) -> bool:
        """Whether a purge may erase a session twice, and somebody may tell: a fork was there, and a writer between."""
        writers = [e for e in self.changes if e.kind in WRITES and (e.into or e.session) == name]
        writers = [e for e in writers if e.began <= purge.latest]
        is_marked = any(e.kind == "fork" for e in writers)
        return is_marked and any(e.latest >= purge.began for e in writers)

    def _is_told_by_the_user(self, name: str, purge: Operation) -> bool:
        """Whether a turn of a session was refused while a purge ran, and another was stored meanwhile."""
        writers = [e for e in self.changes if e.kind == "append" and e.session == name]
        during = [e for e in writers if e.began <= purge.latest and e.latest >= purge.began]
        refused = [e for e in during if e.guarded and e.error == "StaleTurnError"]
        return bool(refused) and any(e not in refused for e in during)

    def _is_excused(self, one: Operation) -> bool:
        """Whether something at the same time, or something killed before, explains a refusal, or half a read."""
        if one.kind != "read" and one.error not in REFUSED:
            return False
        since = min(one.began, one.known)
        during = [e for e in self.changes if e is not one and e.latest >= since and e.began <= one.latest]
        if any(e.kind == "purge" for e in during):
            return True
        if one.kind != "fork" or one.error == "StaleTurnError":
            return any(e.kind == "clear" and e.session in (one.session, one.into) for e in during)
        return any(one.into in (e.into, e.session) for e in during)

    def _flagged(self, read: Operation) -> frozenset[str]:
        """What was hidden, or shown again, in the session of a read while that was under way."""
        flags = [e for e in self.flags if e.session == read.session and read.kind == "read"]
        return frozenset(e.tokens[0] for e in flags if e.latest >= read.began and e.began <= read.latest)

    def _is_stored(self, state: State, stored: Mapping[str, set[str]]) -> bool:
        """Whether a state is what lies there; what a copy that was killed has left is erased by a clear of it."""
        broken = {each.into for each in self.operations if each.kind == "fork" and each.latest == math.inf}
        for name in self.names:
            tokens, lie = state.at(name).tokens, stored[name]
            if not tokens <= lie or (lie > tokens and name not in broken):
                return False
        return True

    def _check_reads(self) -> None:
        for read in (each for each in self.operations if each.kind == "read" and each.done):
            tokens = Counter(token for token, _ in read.seen)
            self.wrong += [("doubled", read, token) for token, count in tokens.items() if count > 1]
            self.wrong += [("half", read, text) for text in read.half]
            seqs = [seq for _, seq in read.seen if seq]
            if any(a >= b for a, b in pairwise(seqs)):
                self.wrong.append(("positions out of order", read, str(seqs)))

    def _check_positions(self) -> None:
        taken: dict[tuple[str, int], str] = {}
        for each in self.operations:
            if each.kind in ("append", "edit") and each.done and each.seq:
                [token] = each.tokens
                other = taken.setdefault((each.session, each.seq), token)
                if other != token:
                    self.wrong.append(("a position taken twice", each, f"{other} {token} {each.seq}"))

    def _accuse(self, found: Explanation[State]) -> None:
        """Names what nothing explains, by the longest order that explains what came before."""
        assert found.stuck_at is not None
        moment: Moment = found.stuck_at.what
        operation, session = moment.operation, found.state.at(moment.session)
        if operation.kind != "read":
            said = operation.error or (operation.answer if operation.kind == "undo" else "done")
            self.wrong.append((f"{operation.kind} unexplained", operation, f"{said}, where {session.shown} is shown"))
            return
        seen = [token for token, _ in operation.seen]
        extra, missing = [t for t in seen if t not in session.shown], [t for t in session.shown if t not in seen]
        known = {token for each in self.operations for token in each.tokens if each.began < (operation.ended or 0)}
        if not known.issuperset(extra):
            name = "from nowhere"
        elif session.tokens & {*extra}:
            name = "hidden, and shown"
        elif extra:
            name = "erased, and shown"
        else:
            name = "lost" if missing else "inverted"
        self.wrong.append((name, operation, f"{moment.session} shows {seen}, and not {list(session.shown)}"))


def families(operations: Sequence[Operation]) -> list[Family]:
    """The sessions with what this model is for, those together of which one was copied into the other."""
    group: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for each in operations:
        if each.kind in CHANGED:
            joined = {(each.user, name) for name in (each.session, each.into) if name}
            for key in list(joined):
                joined |= group.get(key, set())
            group.update(dict.fromkeys(joined, joined))
    found = []
    for together in {id(each): each for each in group.values()}.values():
        [user] = {user for user, _ in together}
        those = [e for e in operations if (e.user, e.session) in together or (e.kind == "purge" and e.user == user)]
        found.append(Family(user, sorted(name for _, name in together), those))
    return found
