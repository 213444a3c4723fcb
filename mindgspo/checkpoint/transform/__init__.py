"""Checkpoints from any plan to any plan, file by file in bounded memory. Door: `transform`, `verify`, `listing`."""
