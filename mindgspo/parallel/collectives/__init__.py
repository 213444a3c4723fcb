"""What ranks send each other: from the host, inside graphs, and through memory that they share."""
