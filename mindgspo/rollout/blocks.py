"""Blocks of the key/value cache and who holds them: pure Python.

A block holds the keys and values of `BLOCK` consecutive tokens of a sequence. Siblings of a group share the blocks
that only their prompt fills, so a block may have several holders; it is free again when the last one lets it go.
"""

from __future__ import annotations

from collections.abc import Sequence

SCRATCH = 0
"""The block that belongs to nobody: padding and idle rows write into it, and no sequence reads it."""


def num_blocks_for(columns: int, block: int) -> int:
    """Blocks that hold so many columns."""
    return -(-columns // block)


def num_shared_blocks(prompt_length: int, block: int) -> int:
    """Blocks of a prompt that its siblings share: the full ones in front of its last token, which each sibling feeds
    again and so writes into a block of its own."""
    return (prompt_length - 1) // block


class BlockAllocator:
    """num_blocks: in all, numbered from 0; `SCRATCH` is never handed out."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 1, num_blocks
        self._free = list(range(num_blocks - 1, SCRATCH, -1))
        self._holders = [0] * num_blocks
        self.capacity = num_blocks - 1
        self.most_in_use = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_in_use(self) -> int:
        """Blocks that somebody holds."""
        return self.capacity - len(self._free)

    def take(self, count: int) -> list[int]:
        """So many free blocks, each with one holder. There must be as many (`num_free`)."""
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} are free"
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        self.most_in_use = max(self.most_in_use, self.num_in_use)
        return taken

    def share(self, blocks: Sequence[int]) -> list[int]:
        """The same blocks, with one holder more each."""
        for block in blocks:
            assert self._holders[block] > 0, f"block {block} is free"
            self._holders[block] += 1
        return list(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """One holder of each of these blocks lets go."""
        for block in blocks:
            assert self._holders[block] > 0, f"block {block} is free"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free.append(block)

    def holders(self, block: int) -> int:
        """How many hold this block."""
        return self._holders[block]
