"""Where in a response its answer stands, and whether two answers are the same. Pure Python, linear in the text."""
