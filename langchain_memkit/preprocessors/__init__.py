"""Messages in, messages out: trimming and summarizing, so that a conversation of any length fits."""

from langchain_memkit.preprocessors.summarize import create_history_preprocessor
from langchain_memkit.preprocessors.trim import create_trim_preprocessor

__all__ = ["create_history_preprocessor", "create_trim_preprocessor"]
