"""What every store of turns with lists of sessions and a search must do."""

from __future__ import annotations

import time
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_memkit.base import SessionInfo
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.stores.history import HistoryFactory
from langchain_memkit.testing._styles import BothStyles, Call, call_sync
from langchain_memkit.testing.fakes import FakeChatModel
from langchain_memkit.testing.langchain_histories import MakeHistory, exchange

__all__ = ["SessionListContract"]


def ids_of(listed: list[SessionInfo]) -> list[str]:
    """Return the ids of sessions."""
    return [session.session_id for session in listed]


class SessionListContract(BothStyles):
    """Contract for pages of sessions, titles, metadata and the search; `make_history` is that of the histories."""

    @pytest.fixture
    def histories(self, make_history: MakeHistory) -> Any:
        """Return a factory on the store of the histories."""
        given: Any = make_history
        return given if isinstance(given, HistoryFactory) else HistoryFactory(given("-"))

    def fill(self, histories: Any, call: Call, *names: str, user: str = "u1") -> None:
        """Store a turn in each session, in this order; their times differ by more than the clocks' resolution."""
        for name in names:
            time.sleep(0.002)
            call(histories(name, user), "append_turn", exchange(f"about {name}"))

    def pages(self, histories: Any, call: Call, verb: str, *args: object, **options: Any) -> list[Any]:
        """Return all items, page by page, with the cursor as a web page would send it."""
        found: list[Any] = []
        while page := call(histories, verb, *args, **options):
            assert len(page) <= options["limit"]
            found += page
            options["before"] = page[-1].cursor
        return found

    @pytest.mark.parametrize("limit", [1, 2, 3, 10])
    def test_pages_are_the_whole_list(self, histories: Any, call: Call, limit: int) -> None:
        """Pages hold each session once, where its newest turn stands, and other users' sessions never."""
        self.fill(histories, call, *"abcdeabaca")
        self.fill(histories, call, "a", "z", user="u2")
        whole = call(histories, "list_sessions", "u1")
        assert ids_of(whole) == ["a", "c", "b", "e", "d"]
        assert self.pages(histories, call, "list_sessions", "u1", limit=limit) == whole
        assert [s.turns for s in whole] == [4, 2, 2, 1, 1]

    def test_titles_and_previews(self, histories: Any, call: Call) -> None:
        """A title is the beginning of the first question that is shown, a preview that of the last message."""
        history = histories("s1", "u1")
        call(history, "append_turn", [AIMessage("Welcome!")])
        call(history, "append_turn", [HumanMessage("  How deep\n\x00is the  sea? " + "x" * 80), AIMessage("Very.")])
        call(history, "append_turn", [HumanMessage("And?"), AIMessage("Cold\nand dark.")])
        (session,) = call(histories, "list_sessions", "u1", limit=5)
        assert (session.title[:22], session.title[-1], len(session.title)) == ("How deep is the sea? x", "…", 60)
        assert (session.preview, session.metadata) == ("Cold and dark.", {})
        call(history, "delete_turn", 2)
        call(history, "delete_turn", 3)
        assert call(histories, "list_sessions", "u1", limit=5)[0].title == "Welcome!"

    def test_hidden_turns_move_a_session_back(self, histories: Any, call: Call) -> None:
        """A session whose newest turn is hidden stands where the one before it does."""
        self.fill(histories, call, *"aba")
        call(histories("a", "u1"), "delete_turn", 2)
        for limit in (None, 1):
            assert ids_of(call(histories, "list_sessions", "u1", limit=limit))[:1] == ["b"]
            assert ids_of(call(histories, "list_sessions", "u1", limit=limit, hidden=True))[:1] == ["a"]
        call(histories("b", "u1"), "delete_turn", 1)
        assert ids_of(self.pages(histories, call, "list_sessions", "u1", limit=1)) == ["a"]

    def test_details(self, histories: Any, call: Call) -> None:
        """Title and metadata are stored apart or together, of one user's session, and taken back."""
        self.fill(histories, call, "a", "b")
        self.fill(histories, call, "a", user="u2")
        call(histories, "update_session", "a", "u1", title="A\n trip", metadata={"folder": "work", "$gt": [1]})
        call(histories, "update_session", "a", "u1", title="Journey")
        for limit in (None, 5):
            listed = {s.session_id: s for s in call(histories, "list_sessions", "u1", limit=limit)}
            assert (listed["a"].title, listed["a"].metadata) == ("Journey", {"folder": "work", "$gt": [1]})
            assert (listed["b"].title, listed["b"].metadata) == ("about b", {})
        assert call(histories, "list_sessions", "u2")[0].title == "about a"
        call(histories, "update_session", "a", "u1", title="", metadata={})
        (a,) = [s for s in call(histories, "list_sessions", "u1", limit=5) if s.session_id == "a"]
        assert (a.title, a.metadata) == ("about a", {})
        with pytest.raises(ConfigurationError, match="no turns"):
            call(histories, "update_session", "new", "u1", title="t")
        assert len(call(histories("a", "u1"), "messages")) == 2

    def test_where(self, histories: Any, call: Call) -> None:
        """Only sessions with these very values are listed, and nothing in them is an operator."""
        self.fill(histories, call, *"abcd")
        kept = {"a": {"f": "x", "n": 1}, "b": {"f": "x", "n": True}, "c": {"f": "y", "in": {"f": "x"}}}
        for name, metadata in kept.items():
            call(histories, "update_session", name, "u1", metadata=metadata)
        cases: Any = [({"f": "x"}, ["b", "a"]), ({"f": "x", "n": 1}, ["a"]), ({"n": True}, ["b"]), ({"$ne": "x"}, [])]
        for where, names in cases:
            assert ids_of(call(histories, "list_sessions", "u1", where=where)) == names
            assert ids_of(self.pages(histories, call, "list_sessions", "u1", where=where, limit=1)) == names
        for bad in ({"f": {"$ne": 1}}, {1: "x"}, {"f": ["x"]}, "f"):
            with pytest.raises(ConfigurationError):
                call(histories, "list_sessions", "u1", where=bad)

    def test_erased_with_their_session(self, histories: Any, call: Call) -> None:
        """After a clear or a purge neither title nor text is listed or found, and a new session begins without."""
        for erase in ("clear", "purge"):
            self.fill(histories, call, "a")
            call(histories, "update_session", "a", "u1", title="Secret", metadata={"f": 1})
            assert call(histories, "search_messages", "u1", "about")
            call(*((histories("a", "u1"), "clear") if erase == "clear" else (histories, "purge", "u1")))
            assert call(histories, "list_sessions", "u1", limit=5) == call(histories, "list_sessions", "u1") == []
            assert call(histories, "search_messages", "u1", "about") == []
            self.fill(histories, call, "a")
            (session,) = call(histories, "list_sessions", "u1", limit=5)
            assert (session.title, session.metadata, session.turns) == ("about a", {}, 1)

    def test_title_by_a_model(self, histories: Any, call: Call) -> None:
        """A model's answer becomes the title, on one line without quotation marks."""
        self.fill(histories, call, "a")
        model = FakeChatModel(responses=['"The deep\x1b sea"\nAs you asked.', ""])
        assert call(histories, "generate_title", "a", model, "u1") == "The deep sea"
        assert call(histories, "list_sessions", "u1", limit=1)[0].title == "The deep sea"
        assert call(histories, "generate_title", "a", model, "u1") == "about a"
        with pytest.raises(ConfigurationError, match="no turns"):
            call(histories, "generate_title", "new", model, "u1")

    def test_title_of_a_session_that_is_cleared(self, histories: Any, call: Call) -> None:
        """A title of turns that are cleared while the model writes it is not stored for those that follow."""
        self.fill(histories, call, "a")

        def answer(prompt: object) -> str:
            histories("a", "u1").clear()
            self.fill(histories, call_sync, "a")
            return "Of the past"

        with pytest.raises(ConfigurationError, match="cleared meanwhile"):
            call(histories, "generate_title", "a", RunnableLambda(answer), "u1")
        assert call(histories, "list_sessions", "u1", limit=1)[0].title == "about a"

    def test_search(self, histories: Any, call: Call) -> None:
        """All words must begin words of one message, in upper or lower case; the newest comes first."""
        self.fill(histories, call, *"abc")
        self.fill(histories, call, "a", user="u2")
        said = [HumanMessage("ÄPFEL\nund Straße"), AIMessage([{"type": "text", "text": "Bitte: Äpfel"}])]
        call(histories("a", "u1"), "append_turn", said)
        found = self.pages(histories, call, "search_messages", "u1", "äpf", limit=1)
        told = [("a", 2, 1, "Bitte: Äpfel"), ("a", 2, 0, "ÄPFEL und Straße")]
        assert [(f.session_id, f.seq, f.index, f.excerpt) for f in found] == told
        counts = {"about": 6, "ABOUT re": 3, "bout": 0, "about äpfel": 0, "und äpfel": 1, "$ne .*": 0}
        for text, count in counts.items():
            assert len(self.pages(histories, call, "search_messages", "u1", text, limit=4)) == count, text
        call(histories("a", "u1"), "delete_turn", 2)
        assert call(histories, "search_messages", "u1", "äpfel") == []
        with pytest.raises(ConfigurationError, match="word"):
            call(histories, "search_messages", "u1", "?!")
