"""The reward functions that have a name, one file each. Judges compare with the gold answer, shapers do not."""
