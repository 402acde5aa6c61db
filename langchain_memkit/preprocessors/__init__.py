"""Messages in, messages out: trimming and summarizing, so that a conversation of any length fits."""

from langchain_memkit.preprocessors.trim import create_trim_preprocessor

__all__ = ["create_trim_preprocessor"]
