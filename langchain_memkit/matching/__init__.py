"""Names and titles in a text: exactly, in other spellings, with typos. Pure; home of rapidfuzz and ahocorasick_rs."""
