"""The reward functions. Verifiers compare with the gold answer, shapers do not."""
