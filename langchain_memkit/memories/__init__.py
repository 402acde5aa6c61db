"""What is remembered besides the history of a session: each module is a memory."""
