"""Find names and titles in a text: exact, in other spellings, and with typos. Pure; uses rapidfuzz and ahocorasick_rs.

`fuzzy` finds names exactly and with typos, in normalized text (`normalize`) between word boundaries; `names` compares
spellings of names.
"""
