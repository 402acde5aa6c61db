"""Names and titles in a text: exactly, in other spellings, with typos. The home of rapidfuzz and ahocorasick_rs. Pure."""
