"""What a move says when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["MigrationReport"]


@dataclass
class MigrationReport:
    """What a migration, an export or an import did, or would do.

    Attributes:
        sessions: Conversations looked at.
        turns: Turns written (or, in a dry run, that would be written); those already there are not counted apart.
        messages: Messages in them.
        skipped: What could not be moved and why, a line each.
        dry_run: Whether nothing was written.

    Example:
        >>> print(MigrationReport(sessions=1, turns=2, messages=4, skipped=["line 7: cut off"]))
        moved 4 messages in 2 turns of 1 sessions; 1 skipped
        - line 7: cut off
    """

    sessions: int = 0
    turns: int = 0
    messages: int = 0
    skipped: list[str] = field(default_factory=list)
    dry_run: bool = False

    def __str__(self) -> str:
        """Return one line, then the skipped ones."""
        verb = "would move" if self.dry_run else "moved"
        head = f"{verb} {self.messages} messages in {self.turns} turns of {self.sessions} sessions"
        return "\n".join([f"{head}; {len(self.skipped)} skipped", *(f"- {line}" for line in self.skipped)])
