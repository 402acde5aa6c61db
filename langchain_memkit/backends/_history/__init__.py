"""The shared half of our chat histories: `verbs` over `reading` over `rows`, and `factory`. Not a public interface.

A backend of your own implements LangChain's chat history and runs the contract in `langchain_memkit.testing`.
"""
