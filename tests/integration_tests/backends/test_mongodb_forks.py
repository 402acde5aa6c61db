"""Forks, titles and ids on MongoDB: others clear, purge and write at each command, and some are killed there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient, monitoring

from langchain_memkit import MongoDBChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, MemkitError
from testkit.examples import is_tried

MOST_COMMANDS = 40  # that a fork or a purge of these sessions sends, which the tests prove
BASE = ["secret 0", "noted", "secret 1", "noted", "secret 2", "noted"]


class Killed(BaseException):
    """The process ends here, as far as the server can see: what is no `Exception` passes a listener."""


def kill() -> None:
    """End it."""
    raise Killed


class Meddler(monitoring.CommandListener):
    """Does things before the n-th command of a client, counted from when it is told."""

    def __init__(self) -> None:
        self.actions: dict[int, Callable[[], Any]] = {}
        self._left = count()

    def at(self, actions: dict[int, Callable[[], Any]]) -> None:
        """Begin to count."""
        self.actions, self._left = actions, count()

    def started(self, event: Any) -> None:
        """Act, if it is time."""
        if event.command_name != "endSessions":
            self.actions.pop(next(self._left), int)()

    def succeeded(self, event: Any) -> None:
        """Nothing to do."""

    def failed(self, event: Any) -> None:
        """Nothing to do."""


class AtInsert(Meddler):
    """Does one thing before the next insert of a client."""

    action: Callable[[], Any] | None = None

    def started(self, event: Any) -> None:
        """Act, if it is time."""
        if event.command_name == "insert" and self.action is not None:
            action, self.action = self.action, None
            action()


class Place:
    """A collection: histories with which somebody meddles, those of the others, and what lies there."""

    def __init__(self, uri: str, database: str, client: MongoClient[Any], meddler: Meddler) -> None:
        self.meddler = meddler
        options: dict[str, Any] = {"save_timeout": 2.0, "create_index": True}
        self.disturbed = MongoDBChatMessageHistory.factory(None, database, client=client, **options)
        self.others = MongoDBChatMessageHistory.factory(uri, database, **options)
        self.documents = client[database]["message_store"]
        for histories in (self.disturbed, self.others):
            histories("warm", "warm").add_user_message("warm")

    def filled(self, user: str | None) -> Any:
        """A session of three turns, with which somebody meddles."""
        history = self.disturbed("source", user)
        for n in range(3):
            history.append_turn([HumanMessage(f"secret {n}", id=f"q{n}"), AIMessage("noted", id=f"a{n}")])
        return history

    def meddling(self, work: Callable[[], Any], actions: dict[int, Callable[[], Any]]) -> BaseException | None:
        """Do some work while somebody meddles; return the error of memkit's, or the kill, that ended it."""
        self.meddler.at(dict(actions))
        try:
            work()
        except (MemkitError, Killed) as error:
            return error
        finally:
            self.reached = min(actions) not in self.meddler.actions
            self.meddler.at({})
        return None

    def left(self, user: str | None, session: str | None = None) -> list[str]:
        """What was said and lies in documents of a user, shown or not."""
        query = {"user_id": user or "", **({"session_id": session} if session else {})}
        found = self.documents.find(query).sort([("session_id", 1), ("seq", 1)])
        return [message["content"] for document in found for message in document.get("messages", ())]


def each_command(place: Place, try_at: Callable[[int], object]) -> dict[int, object]:
    """What was wrong when somebody meddled with the first command, with the second, and so on; they come to an end."""
    wrong = {}
    for n in range(MOST_COMMANDS):
        found = try_at(n)
        if found:
            wrong[n] = found
        if not place.reached:
            return wrong
    raise AssertionError(f"more than {MOST_COMMANDS} commands")


@pytest.fixture
def place(standalone: Any, database: str) -> Iterator[Place]:
    """A collection of the test's own."""
    meddler = Meddler()
    client: MongoClient[Any]
    with MongoClient(standalone.uri, event_listeners=[meddler]) as client:
        yield Place(standalone.uri, database, client, meddler)


def texts(history: Any) -> list[str]:
    """The text of each message; both ways of reading agree."""
    said = [message.text for message in history.messages]
    assert said == [message.text for message in history.iter_messages()]
    return said


def test_a_purge_during_a_fork(place: Place) -> None:
    """Whenever the user is purged while a session is copied, nothing of the user is shown, listed or stored."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source = place.filled(user)
        place.meddling(lambda: source.fork("copy"), {n: lambda: place.others.purge(user)})
        if not place.reached:
            return None
        shown = [texts(place.others(name, user)) for name in ("source", "copy")]
        listed = [info.session_id for info in place.others.list_sessions(user)]
        return [shown, listed, place.left(user)] if shown != [[], []] or listed or place.left(user) else None

    assert each_command(place, try_at) == {}


@pytest.mark.parametrize("is_in_use", [False, True], ids=["cleared", "in use"])
@pytest.mark.parametrize("copy", ["a copy", "z copy"])
def test_a_fork_during_a_purge(copy: str, is_in_use: bool, place: Place) -> None:
    """Whenever a session is copied while its user is purged, nothing is left, whichever session comes first."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        place.filled(user)
        target = place.others(copy, user)
        target.add_user_message("before")
        if not is_in_use:
            target.clear()

        def fork() -> None:
            with suppress(MemkitError):
                place.others("source", user).fork(copy)

        assert place.meddling(lambda: place.disturbed.purge(user), {n: fork}) is None
        return place.left(user) if place.reached else None

    assert each_command(place, try_at) == {}


@pytest.mark.parametrize("copy_is", ["new", "in use", "cleared meanwhile"])
def test_a_fork_goes_on_amid_a_purge(copy_is: str, place: Place, standalone: Any) -> None:
    """A fork stands at any of its commands, a purge begins and stands at any of its own, then both go on."""
    meddler, ends = Meddler(), [0]
    client: MongoClient[Any]
    with MongoClient(standalone.uri, event_listeners=[meddler]) as client:
        purging = MongoDBChatMessageHistory.factory(None, place.documents.database.name, client=client)
        purging("warm", "warm").add_user_message("warm")

        def try_at(n: int, k: int) -> object:
            if not is_tried(n + k, one_in=3):
                place.reached = True
                return None
            user = f"u{n}-{k}"
            source, stands, goes_on = place.filled(user), threading.Event(), threading.Event()
            if copy_is == "in use":
                place.others("a copy", user).add_user_message("secret of the copy")

            def wait() -> None:
                stands.set()
                assert goes_on.wait(60)

            def purge() -> None:
                meddler.at({k: wait})
                purging.purge(user)
                stands.set()
                ends[0] += bool(meddler.actions)

            thread = threading.Thread(target=purge)

            def begin() -> None:
                thread.start()
                assert stands.wait(60)
                if copy_is == "cleared meanwhile":
                    place.others("a copy", user).clear()

            try:
                place.meddling(lambda: source.fork("a copy"), {n: begin})
            finally:
                goes_on.set()
            if not place.reached:
                return None
            thread.join()
            return place.left(user)

        wrong: dict[tuple[int, int], object] = {}
        for k in range(MOST_COMMANDS):
            wrong |= {(n, k): found for n, found in each_command(place, partial(try_at, k=k)).items()}
            if ends[0]:
                break
    assert ends[0], f"a purge sends more than {MOST_COMMANDS} commands"
    assert wrong == {}


def test_a_copy_is_copied_amid_a_purge(place: Place, standalone: Any) -> None:
    """Amid a purge a fork lists its turns; later, still amid it, they come into the copy, which is copied at once."""
    at_insert, name = AtInsert(), place.documents.database.name
    client: MongoClient[Any]
    with MongoClient(standalone.uri, event_listeners=[at_insert]) as client:
        forking = MongoDBChatMessageHistory.factory(None, name, client=client)
        forking("warm", "warm").add_user_message("warm")

        def try_at(later: int, n: int) -> object:
            if not is_tried(n + later, one_in=2):
                place.reached = True
                return None
            user, stands, goes_on = f"u{n}-{later}", threading.Event(), threading.Event()
            place.filled(user)
            place.others("a copy", user).add_user_message("before")
            place.others("a copy", user).clear()

            def wait() -> None:
                stands.set()
                assert goes_on.wait(60)

            def fork() -> None:
                with suppress(MemkitError):
                    forking("source", user).fork("a copy")
                stands.set()

            thread = threading.Thread(target=fork)

            def begin() -> None:
                at_insert.action = wait
                thread.start()
                assert stands.wait(60)

            def go_on() -> None:
                goes_on.set()
                thread.join()
                with suppress(MemkitError):
                    place.others("a copy", user).fork("a copy of it")

            actions = {n: begin, n + later: go_on}
            assert place.meddling(lambda: place.disturbed.purge(user), actions) is None
            goes_on.set()
            if not place.reached:
                return None
            thread.join()
            at_insert.action = None
            return place.left(user)

        found = {later: each_command(place, partial(try_at, later)) for later in range(1, 6)}
        assert {later: wrong for later, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("user", ["u1", None])
def test_a_clear_of_the_source_during_a_fork(user: str | None, place: Place) -> None:
    """The copy is whole, or there is nothing of it, in the store neither."""

    def try_at(n: int) -> object:
        source, copy = place.filled(user), place.others("copy", user)
        error = place.meddling(lambda: source.fork("copy"), {n: place.others("source", user).clear})
        shown = texts(copy)
        is_whole = shown == BASE and error is None
        found = None if is_whole or (shown == [] == place.left(user, "copy")) else [error, shown, place.left(user)]
        source.clear()
        copy.clear()
        return found

    assert each_command(place, try_at) == {}


@pytest.mark.parametrize("user", ["u1", None])
def test_a_clear_of_the_copy_during_a_fork(user: str | None, place: Place) -> None:
    """The copy is whole, or there is nothing of it; another fork, after another clear too, works."""

    def try_at(n: int) -> object:
        source, copy = place.filled(user), place.others("copy", user)
        error = place.meddling(lambda: source.fork("copy"), {n: copy.clear})
        shown = [texts(copy)]
        found = place.left(user, "copy")
        good = shown == [found] and found in ([], BASE)
        for _ in range(2):
            shown.append(texts(source.fork("copy")))
            copy.clear()
        source.clear()
        return None if good and shown[1:] == [BASE, BASE] else [error, found, shown]

    assert each_command(place, try_at) == {}


def test_a_copy_that_broke_off_is_cleared(place: Place) -> None:
    """A fork is killed at any command; a clear takes what it left, and the next one works."""

    def try_at(n: int) -> object:
        source, copy = place.filled("u1"), place.others("copy", "u1")
        error = place.meddling(lambda: source.fork("copy"), {n: kill})
        assert isinstance(error, Killed) == place.reached
        copy.clear()
        found = [place.left("u1", "copy"), texts(copy), texts(source.fork("copy"))]
        source.clear()
        copy.clear()
        return None if found == [[], [], BASE] else found

    assert each_command(place, try_at) == {}


TOLD = (HistoryConflictError, HistoryWriteError)


def judged(place: Place, user: str, fork: BaseException | None, append: list[Any]) -> object:
    """What is wrong with the copy after a fork, and an append into it that ended like this."""
    [error] = append
    shown, copy = texts(place.others("copy", user)), place.others("copy", user)
    wanted = ([] if fork else BASE) + ([] if error else ["new", "re: new"])
    is_told = error is None or (isinstance(error, TOLD) and error.maybe_stored is False)
    if shown != wanted or place.left(user, "copy") != shown or not is_told:
        return [fork, error, shown, place.left(user, "copy")]
    copy.append_turn([HumanMessage("and on"), AIMessage("noted")])
    return None if texts(copy) == [*wanted, "and on", "noted"] else texts(copy)


def test_a_turn_in_the_copy_during_a_fork(place: Place) -> None:
    """A turn that somebody writes into the new session meanwhile waits, or is told; what is stored is shown."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source, outcome = place.filled(user), list[Any]()

        def write() -> None:
            try:
                place.others("copy", user).append_turn([HumanMessage("new"), AIMessage("re: new")])
            except MemkitError as error:
                outcome.append(error)
            else:
                outcome.append(None)

        thread = threading.Thread(target=write)

        def begin() -> None:
            thread.start()
            thread.join(0.2)  # it may wait for the fork, which goes on

        error = place.meddling(lambda: source.fork("copy"), {n: begin})
        if not place.reached:
            return None
        thread.join()
        return judged(place, user, error, outcome)

    assert each_command(place, try_at) == {}


def test_a_turn_in_a_copy_that_broke_off(place: Place) -> None:
    """A turn is stored and shown, or told why not: then the fork is called again, which shows the copy."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source, copy = place.filled(user), place.others("copy", user)
        place.meddling(lambda: source.fork("copy"), {n: kill})
        if not place.reached or texts(copy):
            return None
        try:
            copy.append_turn([HumanMessage("new"), AIMessage("re: new")])
        except TOLD as error:
            told = error.maybe_stored is False and "fork" in str(error)
            shown = texts(source.fork("copy"))
            return None if told and shown == BASE == place.left(user, "copy") else [error, shown]
        shown, left = texts(copy), place.left(user, "copy")
        return None if shown == ["new", "re: new"] == left else [shown, left]

    assert each_command(place, try_at) == {}


def test_forks_of_one_session_at_once(place: Place) -> None:
    """A fork into the same session at any command of another one: both succeed, and the copy is there once."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source = place.filled(user)
        error = place.meddling(lambda: source.fork("copy"), {n: lambda: place.others("source", user).fork("copy")})
        found = [error, texts(place.others("copy", user)), place.left(user, "copy")]
        return None if found == [None, BASE, BASE] else found

    assert each_command(place, try_at) == {}


def test_a_longer_copy_during_a_fork_of_a_part(place: Place) -> None:
    """Of two forks into the same session, of a part and of all, one succeeds, and its copy is there; one is told."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source, told = place.filled(user), list[HistoryConflictError]()

        def fork_all() -> None:
            try:
                place.others("source", user).fork("copy")
            except HistoryConflictError as error:
                told.append(error)

        error = place.meddling(lambda: source.fork("copy", at=2), {n: fork_all})
        shown = texts(place.others("copy", user))
        is_longer = isinstance(error, HistoryConflictError) and not told and shown == BASE
        is_part = error is None and (told or not place.reached) and shown == BASE[:4]
        return None if is_longer or is_part else [error, told, shown]

    assert each_command(place, try_at) == {}


def test_others_finish_a_fork_and_go_on(place: Place) -> None:
    """A fork that has stored some turns succeeds, although others copy the rest, and append; else it is told."""
    said, user = [f"said {n}" for n in range(102)], "u1"  # more than one page
    for text in said:
        place.disturbed("source", user).add_user_message(text)

    def try_at(n: int) -> object:
        name, has_begun = f"copy {n}", False

        def go_on() -> None:
            nonlocal has_begun
            has_begun = bool(place.left(user, name))
            place.others("source", user).fork(name).add_user_message("new")

        error = place.meddling(lambda: place.disturbed("source", user).fork(name), {n: go_on})
        if not place.reached:
            return None
        is_right = error is None if has_begun else isinstance(error, HistoryConflictError)
        shown = texts(place.others(name, user))
        return None if is_right and shown == [*said, "new"] else [has_begun, error, shown]

    assert each_command(place, try_at) == {}


def test_an_edit_during_a_fork(place: Place) -> None:
    """The copy shows the source before the edit or after it."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source, edited = place.filled(user), [*BASE[:2], "new", "re: new"]

        def edit() -> None:
            place.others("source", user).edit(2, [HumanMessage("new"), AIMessage("re: new")])

        error = place.meddling(lambda: source.fork("copy"), {n: edit})
        shown = texts(place.others("copy", user))
        good = error is None and shown in (BASE, edited) and place.left(user, "copy") == shown
        return None if good else [error, shown, place.left(user, "copy")]

    assert each_command(place, try_at) == {}


def test_an_edit_during_a_fork_of_a_part(place: Place) -> None:
    """A fork up to a turn copies it, or says that it is not shown any more; it does not copy less."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source = place.filled(user)

        def edit() -> None:
            place.others("source", user).edit(1, [HumanMessage("new"), AIMessage("re: new")])

        error = place.meddling(lambda: source.fork("copy", at=2), {n: edit})
        shown, left = texts(place.others("copy", user)), place.left(user, "copy")
        wanted = [] if isinstance(error, HistoryConflictError) else BASE[:4]
        return None if shown == left == wanted else [error, shown, left]

    assert each_command(place, try_at) == {}


@pytest.mark.parametrize("erase", ["clear", "purge"])
@pytest.mark.parametrize("read", ["messages", "iter_messages", "stored_ids", "search_messages"])
def test_an_erase_during_a_read(read: str, erase: str, place: Place) -> None:
    """What is read was shown before or is shown after, or is a part of it; nothing that was replaced or taken back."""

    def read_by(histories: Any, user: str) -> list[str]:
        history = histories("source", user)
        if read == "stored_ids":
            return sorted(history.stored_ids(["q0", "q1", "q2", "q3", "q4"]))
        if read == "search_messages":
            return [found.excerpt for found in histories.search_messages(user, "secret")]
        return [m.text for m in (history.messages if read == "messages" else history.iter_messages())]

    def try_at(n: int) -> object:
        user = f"u{n}"
        source = place.filled(user)
        source.edit(2, [HumanMessage("secret 3", id="q3"), AIMessage("noted")])
        source.edit(4, [HumanMessage("secret 4", id="q4"), AIMessage("noted")])
        source.undo_edit()
        before = read_by(place.others, user)
        erases = {"clear": place.others("source", user).clear, "purge": lambda: place.others.purge(user)}
        found = list[str]()
        place.meddling(lambda: found.extend(read_by(place.disturbed, user)), {n: erases[erase]})
        return None if set(found) <= set(before) else found

    assert each_command(place, try_at) == {}


def test_a_clear_that_broke_off_forgets_ids(place: Place) -> None:
    """What is not shown any more is known by no id or position: a turn that is sent again is stored whole."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        source = place.filled(user)
        place.meddling(source.clear, {n: kill})
        if not place.reached:
            return None
        shown = texts(source)
        known = source.stored_ids(["q0", "a1", "q2"])
        hidden = source.delete_turn(1), source.restore_turn(1)
        chat = create_runnable_with_message_history(lambda _: AIMessage("noted again"), place.others)
        chat.invoke([HumanMessage("secret 2", id="q2")], {"configurable": {"session_id": "source", "user_id": user}})
        again = texts(source)
        erased = [[], set(), (False, False), ["secret 2", "noted again"]]
        kept = [BASE, {"q0", "a1", "q2"}, (True, True), [*BASE, "noted again"]]
        found = [shown, known, hidden, again]
        return None if found in (erased, kept) else found

    assert each_command(place, try_at) == {}


def test_a_clear_that_broke_off_leaves_no_edit(place: Place) -> None:
    """An edit that is not shown any more cannot be taken back."""

    def try_at(n: int) -> object:
        source = place.filled(f"u{n}")
        source.edit(2, [HumanMessage("new"), AIMessage("re: new")])
        place.meddling(source.clear, {n: kill})
        if not place.reached:
            return None
        shown = texts(source)
        is_undone = source.undo_edit()
        again = texts(source)
        return None if (is_undone, again) == ((True, BASE) if shown else (False, [])) else (is_undone, shown, again)

    assert each_command(place, try_at) == {}


TITLE = "a secret title"


def titles_left(place: Place, user: str) -> list[Any]:
    """Documents with the title, without a date on which they go."""
    found = place.documents.find({"user_id": user, "expiresAt": None})
    return [document for document in found if document.get("title") == TITLE]


@pytest.mark.parametrize("later", [None, 1, 2, 3, 4], ids=lambda later: f"killed {later} commands later")
@pytest.mark.parametrize("erase", ["purge", "clear"])
def test_a_title_beside_an_erase(erase: str, later: int | None, place: Place) -> None:
    """A title that is stored while its session is erased is shown to nobody, and stays no longer than a tombstone."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        place.filled(user)
        erases: dict[str, Callable[[], Any]] = {
            "clear": place.others("source", user).clear,
            "purge": lambda: place.others.purge(user),
        }
        dies: dict[int, Callable[[], Any]] = {} if later is None else {n + later: kill}
        place.meddling(lambda: place.disturbed.update_session("source", user, title=TITLE), {n: erases[erase], **dies})
        if not place.reached:
            return None
        place.filled(user)
        found = [info.title for info in place.others.list_sessions(user) if info.title == TITLE]
        return [*titles_left(place, user), *found]

    assert each_command(place, try_at) == {}


def test_a_title_that_is_killed_keeps_the_one_before(place: Place) -> None:
    """A title that was acknowledged stays, without an end, until another one takes its place."""

    def try_at(n: int) -> object:
        user = f"u{n}"
        place.filled(user)
        place.others.update_session("source", user, title="old")
        place.meddling(lambda: place.disturbed.update_session("source", user, title="new"), {n: kill})
        [info] = place.others.list_sessions(user)
        ends = [d.get("expiresAt") for d in place.documents.find({"user_id": user, "kind": "session"})]
        return None if info.title in ("old", "new") and ends == [None] else [info.title, ends]

    assert each_command(place, try_at) == {}
