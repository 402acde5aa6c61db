"""Files as older versions wrote them."""

WITHOUT_CHANGES = (
    "DROP TRIGGER turns_inserted; DROP TRIGGER turns_changed; DROP TRIGGER turns_rewritten; DROP TRIGGER turns_gone;"
    "DROP TABLE turn_indexes; DROP TABLE turn_changes; DROP TABLE last_change;"
)
"""SQL that takes away what only the newest files have."""
