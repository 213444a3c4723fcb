"""A file system in a file: one that can be full, read-only, or cut off from its power. Needs root and loop devices."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def loop_disk(image: Path, folder: Path, *, size_mb: int = 40) -> Iterator[Path]:
    """`folder`, with the ext4 of `image` mounted on it; made where there is no such file. Skips where that is refused.

    The kernel writes nothing back on its own within a test, so that a copy of `image` has what was flushed, and no
    more: what a power cut leaves.
    """
    if not image.exists():
        with image.open("wb") as file:
            file.truncate(size_mb << 20)
        _system("mkfs.ext4", "-q", "-m", "0", image)
    folder.mkdir(exist_ok=True)
    _system("mount", "-o", "loop,commit=600", image, folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def _system(*words: object) -> None:
    if shutil.which(str(words[0])) is None:
        pytest.skip(f"needs {words[0]}")
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs root and loop devices; {words[0]}: {done.stderr.strip()}")
