"""Hashes that tell damage, at the speed of memory.

What enters: tensors in pieces. What leaves: XXH3 digests of 128 bits of a tensor, and of a file by its tensors. Called
by the writer of checkpoints and by whoever compares them. SHA-256 takes longer than copying; XXH3 does not, and against
accidents (no forger works on one's own checkpoints) 128 bits are as good.
"""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from mindgspo.tensor_files.tensors import TensorInfo


class TensorDigest:
    """The digest of one tensor whose bytes come in order."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def update(self, content: memoryview) -> None:
        """The next bytes."""
        self._hash.update(content)

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        return self._hash.hexdigest()


def file_digest(infos: Mapping[str, TensorInfo], digests: Mapping[str, str]) -> str:
    """What a file holds, in its order: names, dtypes, shapes and the digests of its tensors."""
    lines = [f"{name}\0{info.dtype}\0{info.shape}\0{digests[name]}" for name, info in infos.items()]
    return xxhash.xxh3_128("\n".join(lines).encode()).hexdigest()
