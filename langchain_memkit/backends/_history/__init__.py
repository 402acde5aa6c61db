"""What our chat histories share: `verbs` over `reading` over `rows`; `factory`. Not an interface to build on.

A backend of your own implements LangChain's chat history and runs the contract in `langchain_memkit.testing`.
"""
