"""Preprocessors, from messages to messages: trim and summarize, so that a conversation of any length fits.

`trim` cuts to a token budget, which `budget` computes. `summarize` summarizes: `summarizer` decides when, and calls the
model with a `prompt`; `summary_store` keeps the summaries and finds what they cover.
"""

from langchain_memkit.preprocessors.summarize import create_history_preprocessor
from langchain_memkit.preprocessors.trim import create_trim_preprocessor

__all__ = ["create_history_preprocessor", "create_trim_preprocessor"]
