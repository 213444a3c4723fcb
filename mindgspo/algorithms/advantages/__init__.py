"""Advantages: how good each response, or each of its tokens, is beside what was to be expected. numpy only."""
