"""Layers split over ranks."""
