"""Files of tensors, written in a stream: safetensors, or MindSpore's ckpt.

What enters: what the file will hold, then its bytes in order, in pieces of any size. What leaves: a complete file.
Called by `arrays`, conversions and checkpoint tools. The file is written aside, flushed to disk and renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mindgspo.io import atomic_file
from mindgspo.tensor_files.ckpt_format import PART_BYTES, part_header, text_record
from mindgspo.tensor_files.safetensors_format import header_bytes
from mindgspo.tensor_files.tensor_info import TensorInfo

# A piece of a tensor: bytes, or an array whose memory is taken in C order, little-endian.
Piece = bytes | bytearray | memoryview | np.ndarray


def write_tensors(
    path: Path,
    infos: Mapping[str, TensorInfo],
    parts: Iterable[tuple[str, Piece]],
    *,
    metadata: Mapping[str, str] | None = None,
    syncs: bool = True,
    seen: Callable[[memoryview], None] | None = None,
) -> None:
    """Write tensors in the order of `infos`; the suffix chooses the format, `.safetensors` or `.ckpt`.

    parts: (name, piece of that tensor), tensors in the order of `infos`, each in one piece or several; an empty
    tensor may have none. `path` is the old or the new file, never part of it. metadata: text pairs of the header; in
    a ckpt, the texts beside the tensors. syncs: see `atomic_file`. seen: is shown every byte of the file, in order.
    Raises OSError where the file system refuses.
    """
    assert path.suffix in (".safetensors", ".ckpt"), f"{path}: no suffix of a tensor file"
    with atomic_file(path, sync=syncs, on_write=seen) as file:
        if path.suffix == ".safetensors":
            file.write(header_bytes(infos, metadata))
            for _, piece in _checked(infos, parts):
                file.write(piece)
        else:
            write_records(file, infos, parts)
            for name, text in (metadata or {}).items():
                file.write(text_record(name, text))


def write_records(
    file: BinaryIO,
    infos: Mapping[str, TensorInfo],
    parts: Iterable[tuple[str, Piece]],
    *,
    part_bytes: int = PART_BYTES,
) -> None:
    """The records of a ckpt: each tensor as one, or as several of part_bytes at most."""
    room = 0  # bytes that the open record still takes
    left: dict[str, int] = {name: info.num_bytes for name, info in infos.items()}
    for name, piece in _checked(infos, parts, with_empty=True):
        while True:
            if room == 0:
                room = min(left[name], part_bytes)
                file.write(part_header(name, infos[name], room))
            file.write(piece[:room])
            count = min(room, piece.nbytes)
            piece, room, left[name] = piece[count:], room - count, left[name] - count
            if not piece.nbytes:
                break


def _checked(
    infos: Mapping[str, TensorInfo], parts: Iterable[tuple[str, Piece]], *, with_empty: bool = False
) -> Iterator[tuple[str, memoryview]]:
    """The pieces as bytes, once they are known to be in order and to fill every tensor.

    with_empty: an empty tensor comes as one empty piece; other empty pieces never come.
    """
    names = iter(infos)
    current, missing = "", 0
    for name, piece in parts:
        while name != current:
            assert missing == 0, f"{current}: {missing} bytes are missing"
            current = next(names, "")
            assert current, f"{name} is not the next tensor"
            missing = infos[current].num_bytes
            if missing == 0 and with_empty:
                yield current, memoryview(b"")
        content = _bytes_of(piece)
        missing -= content.nbytes
        assert missing >= 0, f"{name}: {-missing} bytes too many"
        if content.nbytes:
            yield name, content
    assert missing == 0, f"{current}: {missing} bytes are missing"
    for name in names:
        assert infos[name].num_bytes == 0, f"{name} is missing"
        if with_empty:
            yield name, memoryview(b"")


def _bytes_of(piece: Piece) -> memoryview:
    if not isinstance(piece, np.ndarray):
        return memoryview(piece).cast("B")
    plain = np.asarray(piece, dtype=piece.dtype.newbyteorder("<"), order="C")
    return memoryview(plain.reshape(-1).view(np.uint8))
