"""Strategy files as a user names them: one file, a folder of ranks' files, or a folder of such folders.

What enters: a path. What leaves: records, those of all stages merged. Called by the commands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from mindgspo.errors import CheckpointError
from mindgspo.parallel.strategy.file import merge_strategies, read_strategy
from mindgspo.parallel.strategy.record import Strategy

SINGLE = ""
"""The name of what has none: a file, or a folder that holds files itself."""
_SUFFIXES = (".ckpt", ".json")


def read_source(path: Path) -> Mapping[str, Strategy]:
    """{name: record}: under SINGLE for a file or a folder of files, by subfolder for a folder of folders.

    Raises CheckpointError for what is not there or is no strategy.
    """
    if not path.is_dir():
        return {SINGLE: read_strategy(path)}
    if strategy_files(path):
        return {SINGLE: read_folder(path)}
    below = {folder.name: read_folder(folder) for folder in sorted(path.iterdir()) if strategy_files(folder)}
    if not below:
        raise CheckpointError(
            f"{path}: holds no strategy files ({', '.join(f'*{suffix}' for suffix in _SUFFIXES)}), nor does a folder "
            "in it; tools/generate_strategy.py writes them"
        )
    return below


def read_folder(folder: Path) -> Strategy:
    """The record of all files of a folder. Ranks of a stage have equal files, of which one is read."""
    paths = strategy_files(folder)
    if not paths:
        raise CheckpointError(f"{folder}: holds no strategy files; give the folder that does, e.g. {folder / 'train'}")
    distinct: dict[bytes, Path] = {}
    for path in paths:
        distinct.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    return merge_strategies(list(distinct.values()))


def strategy_files(folder: Path) -> list[Path]:
    """The files of a folder that end as strategy files do; [] for what is no folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
