"""The manifest of a checkpoint: its files with their sizes and digests, written last.

Format 2 has XXH3 digests of 128 bits, which cost next to nothing compared with the disk; format 1 had SHA-256, and can
still be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from mindgspo.errors import CheckpointError
from mindgspo.io import read_json, write_json
from mindgspo.metrics.files import LOGS, FileRecord
from mindgspo.tensor_files.tensors import TensorInfo

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 2
_HASH_OF_VERSION = {1: "sha256", 2: "xxh3_128"}
_HASH_NAME = _HASH_OF_VERSION[FORMAT_VERSION]
_CHUNK_BYTES = 1 << 22
_REMEDY = "restore the file from a copy, or move this checkpoint away to continue from an older one"


class NewerFormatError(CheckpointError):
    """A checkpoint that appears whole, but has a format that this version does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`."""

    step: int
    """Training steps done when the checkpoint was taken."""
    hash_name: str
    """sha256 or xxh3_128."""
    files: dict[str, FileRecord]
    """By plain file name."""
    logs: dict[str, FileRecord] | None
    """Content of the run's logs at that time, by file name; None if that was not recorded."""


def new_digest(hash_name: str = _HASH_NAME) -> hashlib._Hash | xxhash.xxh3_128:
    """The digest of a file, or of a tensor, before its first byte."""
    return hashlib.sha256() if hash_name == "sha256" else xxhash.xxh3_128()


def write_manifest(
    folder: Path,
    *,
    step: int,
    digests: Mapping[str, str] | None = None,
    logs: Mapping[str, FileRecord] | None = None,
) -> None:
    """Record every file of `folder`. digests: {name: digest} of files that need not be read again. logs: as in
    `Manifest`."""
    known = digests or {}
    records = {
        path.name: FileRecord(size=path.stat().st_size, digest=known.get(path.name) or content_digest(path))
        for path in sorted(folder.iterdir())
    }
    content = {"format_version": FORMAT_VERSION, "step": step, "files": records_as_json(records)}
    write_json(folder / MANIFEST_FILE, content | ({} if logs is None else {"logs": records_as_json(logs)}))


def records_as_json(records: Mapping[str, FileRecord]) -> dict[str, dict[str, int | str]]:
    """{name: {"size", digest}} as manifests hold it."""
    return {name: {"size": record.size, _HASH_NAME: record.digest} for name, record in records.items()}


def records_from_json(
    content: Mapping[str, Mapping[str, object]], hash_name: str = _HASH_NAME
) -> dict[str, FileRecord]:
    """Read what `records_as_json` wrote. Raises LookupError, TypeError, ValueError, AttributeError for others."""
    return {
        str(name): FileRecord(size=int(str(record["size"])), digest=str(record[hash_name]))
        for name, record in content.items()
    }


def verify(folder: Path, *, required: tuple[str, ...], hashes: bool = True) -> Manifest:
    """The manifest of a complete checkpoint.

    hashes: also compare the content, not only the sizes (reads every file once).
    Raises CheckpointError that names the first file that is absent, truncated or changed; NewerFormatError.
    """
    manifest = _read_manifest(folder, required)
    for name, record in manifest.files.items():
        path = folder / name
        check_size(path, record, MANIFEST_FILE, _REMEDY)
        if hashes and content_digest(path, manifest.hash_name) != record.digest:
            raise CheckpointError(
                f"{path}: its content changed after it was saved ({manifest.hash_name} differs); {_REMEDY}"
            )
    return manifest


def check_size(path: Path, record: FileRecord, named_by: str, remedy: str) -> None:
    """Raises CheckpointError if a recorded file is missing or has another size. named_by: what records it."""
    if not path.is_file():
        raise CheckpointError(f"{path}: missing, though {named_by} names it; {remedy}")
    size = path.stat().st_size
    if size != record.size:
        what = "truncated" if size < record.size else "too long"
        raise CheckpointError(f"{path}: {what}, {size:,} bytes instead of {record.size:,}; {remedy}")


def _read_manifest(folder: Path, required: tuple[str, ...]) -> Manifest:
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {MANIFEST_FILE}, so this is no complete checkpoint; {_REMEDY}")
    try:
        content = read_json(path)
        version = content["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise NewerFormatError(
                f"{path}: format version {version}, this mindgspo reads {FORMAT_VERSION} and older; use the mindgspo "
                "version that wrote it, or move this checkpoint away to continue from an older one"
            )
        hash_name = _HASH_OF_VERSION[version]
        files = records_from_json(content["files"], hash_name)
        logs = records_from_json(content["logs"], hash_name) if "logs" in content else None
        manifest = Manifest(step=int(content["step"]), hash_name=hash_name, files=files, logs=logs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error}); {_REMEDY}") from error
    absent = [name for name in required if name not in files]
    outside = [name for name in files if Path(name).name != name] + [name for name in logs or () if name not in LOGS]
    if absent or outside:
        raise CheckpointError(f"{path}: damaged (lacks {absent}, strange names {outside}); {_REMEDY}")
    return manifest


def content_digest(path: Path, hash_name: str = _HASH_NAME) -> str:
    """The digest of a file's content."""
    digest = new_digest(hash_name)
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def file_digest(infos: Mapping[str, TensorInfo], digests: Mapping[str, str]) -> str:
    """Digest of a file of tensors, from their order: names, dtypes, shapes and the digests of its tensors."""
    lines = [f"{name}\0{info.dtype}\0{info.shape}\0{digests[name]}" for name, info in infos.items()]
    return xxhash.xxh3_128("\n".join(lines).encode()).hexdigest()
