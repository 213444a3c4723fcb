"""Start the workers of a run on this machine, watch them, and name the first failure."""
