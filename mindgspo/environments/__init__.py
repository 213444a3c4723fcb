"""Tools for episodes of several turns. MindSpore is not imported."""
