"""The result of a migration, an export or an import."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["MigrationReport"]


@dataclass
class MigrationReport:
    """Counts of what a migration, an export or an import did, or in a dry run would do.

    Attributes:
        sessions: Conversations read.
        turns: Turns written (in a dry run: that would be written); turns the target had are not counted separately.
        messages: Messages in these turns.
        skipped: A line for each item that could not be moved, with the reason.
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
        """Format the counts in one line, followed by the skipped items."""
        verb = "would move" if self.dry_run else "moved"
        head = f"{verb} {self.messages} messages in {self.turns} turns of {self.sessions} sessions"
        return "\n".join([f"{head}; {len(self.skipped)} skipped", *(f"- {line}" for line in self.skipped)])
