"""Messages in, messages out: trimming and summarizing, so that a conversation of any length fits.

`trim` cuts, `budget` says how much fits, `loading` keeps a turn from reading more than that. `summarize` is the other
public one: `rules` say when, `conversation` says what, `summarizer` asks the model, `records` keeps the result, and
`background` does it beside the turns.
"""

from langchain_memkit.preprocessors.summarize import create_history_preprocessor
from langchain_memkit.preprocessors.trim import create_trim_preprocessor

__all__ = ["create_history_preprocessor", "create_trim_preprocessor"]
