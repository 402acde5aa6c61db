"""What tests of several folders share; pyproject.toml puts it on the path."""
