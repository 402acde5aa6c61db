"""What mkdocstrings needs to know of our docstrings: they say `Example:`, where griffe looks for `Examples:`."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Lets griffe read the blocks below `Example:` as the doctests that they are."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Renames the heading."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
