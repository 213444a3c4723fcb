"""Worker processes for code that may hang, crash or exhaust memory: symbolic comparison and users' own functions."""
