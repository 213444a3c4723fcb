"""Communication between ranks: from the host, inside graphs, and through shared memory."""
