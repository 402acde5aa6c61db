"""The spellings of names that are looked for in a text. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_memkit.matching.finder import Found, KeyFinder

__all__ = ["Forms"]

RECENT = 64  # names in the small index, which is made anew for each new name


class Forms:
    """Spellings with the keys of their names, in a large index, and a small one for what was just learned."""

    def __init__(self) -> None:
        self._forms: dict[str, str] = {}
        self._recent: dict[str, str] = {}
        self._finders: tuple[KeyFinder | None, KeyFinder | None] = (None, None)

    def find(self, text: str) -> list[Found]:
        """Known names in a text."""
        big, small = self._finders
        if small is None or big is None:
            big = big or KeyFinder(self._forms)
            small = KeyFinder(self._recent)
            self._finders = (big, small)
        return big.find(text) + (small.find(text) if self._recent else [])

    def learn(self, form: str, key: str) -> None:
        """Take a name that is to be looked for from now on."""
        for name in (form, key):
            if name and name not in self._forms and name not in self._recent:
                self._recent[name] = key
                self._finders = (self._finders[0], None)
        if len(self._recent) > RECENT:
            self._forms.update(self._recent)
            self._recent, self._finders = {}, (None, None)

    def start_over(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Look for these alone from now on."""
        self._forms = {name: key for form, key in pairs for name in (form, key) if name}
        self._recent, self._finders = {}, (None, None)
