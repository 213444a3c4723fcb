"""Samples laid out in rows of tokens: packing, micro-batches, shares of replicas, recorded routing. No MindSpore."""
