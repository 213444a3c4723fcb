"""The manifest of a checkpoint: which files belong to it, and how to tell that they are whole.

What enters: a folder with files. What leaves: `manifest.json`, or the assurance that a folder agrees with
its own. Called by the store. It is written last, so a folder with a manifest was once complete.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from mindgspo.checkpoint.durable import write_json
from mindgspo.errors import CheckpointError

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file: its size in bytes and the hexadecimal SHA-256 of its content."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """step: training steps done when the checkpoint was taken. files: by plain file name."""

    step: int
    files: dict[str, FileRecord]


def write_manifest(folder: Path, *, step: int) -> None:
    """Record every file of `folder`."""
    write_json(
        folder / MANIFEST_FILE,
        {
            "format_version": FORMAT_VERSION,
            "step": step,
            "files": {
                path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())
            },
        },
    )


def verify(folder: Path, *, required: tuple[str, ...], hashes: bool = True) -> Manifest:
    """The manifest of a complete checkpoint.

    hashes: also compare the content, not only the sizes (reads every file once).
    Raises CheckpointError that names the first file that is absent, truncated or changed.
    """
    manifest = _read_manifest(folder, required)
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing, though {MANIFEST_FILE} names it; {_REMEDY}")
        size = path.stat().st_size
        if size != record.size:
            what = "truncated" if size < record.size else "too long"
            raise CheckpointError(f"{path}: {what}, {size:,} bytes instead of {record.size:,}; {_REMEDY}")
        if hashes and _sha256(path) != record.sha256:
            raise CheckpointError(f"{path}: its content changed after it was saved (sha256 differs); {_REMEDY}")
    return manifest


_REMEDY = "restore the file from a copy, or move this checkpoint away to continue from an older one"


def _read_manifest(folder: Path, required: tuple[str, ...]) -> Manifest:
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {MANIFEST_FILE}, so this is no complete checkpoint; {_REMEDY}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format_version"]
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{path}: format version {version}, this mindgspo reads {FORMAT_VERSION}; "
                "use the mindgspo version that wrote it"
            )
        files = {
            str(name): FileRecord(size=int(record["size"]), sha256=str(record["sha256"]))
            for name, record in content["files"].items()
        }
        manifest = Manifest(step=int(content["step"]), files=files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error}); {_REMEDY}") from error
    absent = [name for name in required if name not in files]
    outside = [name for name in files if Path(name).name != name]
    if absent or outside:
        raise CheckpointError(f"{path}: damaged (lacks {absent}, strange names {outside}); {_REMEDY}")
    return manifest


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
