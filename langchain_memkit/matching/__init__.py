"""Find names and titles in a text: exact, in other spellings, and with typos. Pure; uses rapidfuzz and ahocorasick_rs.

`finder` is the entry point: it finds names exactly, and with typos by `pieces`. Both work on normalized text
(`folding`) between word boundaries (`borders`). `names` compares spellings of names, `nearest` picks the most likely of
many names.
"""
