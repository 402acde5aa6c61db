"""Index of the surface forms (spellings) of known names that are searched for in texts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_memkit.matching.finder import Found, KeyFinder

__all__ = ["Forms"]

RECENT = 64  # forms in the small index, which is rebuilt whenever one is added


class Forms:
    """Surface forms with the name keys that they stand for, searched in one pass over a text.

    Two automata are kept: a large one that is rebuilt rarely, and a small one for the forms added last. Adding a name
    therefore rebuilds at most 64 forms, not the whole index.
    """

    def __init__(self) -> None:
        self._forms: dict[str, str] = {}
        self._recent: dict[str, str] = {}
        self._finders: tuple[KeyFinder | None, KeyFinder | None] = (None, None)

    def find(self, text: str) -> list[Found]:
        """Find the known names in a text; overlapping ones from the two automata are all returned."""
        big, small = self._finders
        if small is None or big is None:
            big = big or KeyFinder(self._forms)
            small = KeyFinder(self._recent)
            self._finders = (big, small)
        return big.find(text) + (small.find(text) if self._recent else [])

    def learn(self, form: str, key: str) -> None:
        """Add a surface form and the key itself to the index."""
        for name in (form, key):
            if name and name not in self._forms and name not in self._recent:
                self._recent[name] = key
                self._finders = (self._finders[0], None)
        # The large automaton is rebuilt by the next search, once for every 64 new forms.
        if len(self._recent) > RECENT:
            self._forms.update(self._recent)
            self._recent, self._finders = {}, (None, None)

    def start_over(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Replace the whole index by these pairs of surface form and key."""
        self._forms = {name: key for form, key in pairs for name in (form, key) if name}
        self._recent, self._finders = {}, (None, None)
