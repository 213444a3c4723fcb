"""Worker processes for whatever may hang, crash or eat memory: symbolic comparison and users' own functions."""
