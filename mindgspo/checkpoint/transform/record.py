"""What a sharded folder that was written here says of itself: `checkpoint.json`, beside rank_0, rank_1, ...

What enters: the files that were written, with their digests, and the order of the tensors before they were cut. What
leaves: the same, read back. Called by the writer, by `verify`, and where ranks are merged: that order, and a run's
step, come back with it. Folders from elsewhere have none, and need none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mindgspo.errors import CheckpointError
from mindgspo.io import write_json

RECORD_FILE = "checkpoint.json"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """size: in bytes. digest: `digests.file_digest` of its tensors."""

    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """order: names of all tensors as the whole checkpoint had them. step: of the training run, None for mere tensors.
    files: by path within the folder."""

    order: tuple[str, ...]
    step: int | None
    files: Mapping[str, RecordedFile]

    @property
    def kept(self) -> tuple[str, ...]:
        """Files with what the run keeps beside weights and optimizer: those that belong to no rank."""
        return tuple(name for name in self.files if "/" not in name)


def write_record(folder: Path, record: ShardRecord) -> None:
    """Write `checkpoint.json`."""
    write_json(
        folder / RECORD_FILE,
        {
            "format_version": _FORMAT_VERSION,
            "step": record.step,
            "files": {name: {"size": file.size, "xxh3_128": file.digest} for name, file in record.files.items()},
            "order": list(record.order),
        },
    )


def read_record(folder: Path) -> ShardRecord:
    """Read it. Raises CheckpointError where it is damaged or names files outside of its folder."""
    path = folder / RECORD_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format_version"] != _FORMAT_VERSION:
            raise ValueError(f"format version {content['format_version']}, this mindgspo reads {_FORMAT_VERSION}")
        files = {
            str(name): RecordedFile(size=int(file["size"]), digest=str(file["xxh3_128"]))
            for name, file in content["files"].items()
        }
        outside = [name for name in files if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
        if outside:
            raise ValueError(f"it names {outside[0]!r}")
        step = content["step"]
        return ShardRecord(
            order=tuple(str(name) for name in content["order"]), step=None if step is None else int(step), files=files
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: damaged ({type(error).__name__}: {error}); remove this file to go without it: tensors are then "
            "merged in the order of the ranks' files"
        ) from error
