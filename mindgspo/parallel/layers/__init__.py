"""Layers of which each rank holds a slice."""
