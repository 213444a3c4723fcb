"""A dumped step run again, on the same or on another device, and compared number by number (`mindgspo replay`)."""
