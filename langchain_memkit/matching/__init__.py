"""Names and titles in a text: exactly, in other spellings, with typos. Pure; home of rapidfuzz and ahocorasick_rs.

`finder` is what others use: it finds names exactly, and with typos by `pieces`; both work on text without case
(`folding`) between word borders (`borders`). `names` compares spellings, `nearest` chooses the most likely of many.
"""
