"""Preprocessors, from messages to messages: trim and summarize, so that a conversation of any length fits.

`trim` cuts to a token budget, which `budget` computes; `loading` keeps a turn from reading more history than that.
`summarize` summarizes: `rules` decide when, `conversation` what, `summarizer` (with `prompt`) calls the model,
`records` stores the summaries (by default in `memory_store`), and `background` runs it in parallel with the turns.
`report` describes the outcome of a turn.
"""

from langchain_memkit.preprocessors.summarize import create_history_preprocessor
from langchain_memkit.preprocessors.trim import create_trim_preprocessor

__all__ = ["create_history_preprocessor", "create_trim_preprocessor"]
