"""Files of tensors, written atomically: in a stream, or from arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from mindgspo.io import Content, atomic_file
from mindgspo.tensor_files.formats import PART_BYTES, header_bytes, library_order, part_header, text_record
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorInfo, info_of, widen_bfloat16

# A piece of a tensor: bytes, or an array whose memory is taken in C order, little-endian.
TensorBytes = bytes | bytearray | memoryview | np.ndarray
WeightDtype = Literal["float32", "bfloat16", "float16"]


def write_tensors(
    path: Path,
    infos: Mapping[str, TensorInfo],
    parts: Iterable[tuple[str, TensorBytes]],
    *,
    metadata: Mapping[str, str] | None = None,
    sync: bool = True,
    on_write: Callable[[Content], None] | None = None,
) -> None:
    """Write tensors in the order of `infos`; the suffix chooses the format, `.safetensors` or `.ckpt`.

    parts: (name, piece of that tensor), tensors in the order of `infos`, each in one piece or several; an empty tensor
        may have none.
    metadata: text pairs of the header; in a ckpt, the texts beside the tensors.
    sync, on_write: see `atomic_file`.

    `path` is the old or the new file, never part of it. Raises OSError if the file system refuses.
    """
    assert path.suffix in (".safetensors", ".ckpt"), f"{path}: no suffix of a tensor file"
    with atomic_file(path, sync=sync, on_write=on_write) as file:
        if path.suffix == ".safetensors":
            file.write(header_bytes(infos, metadata))
            for _, piece in _checked(infos, parts):
                file.write(piece)
        else:
            write_ckpt(file, infos, parts)
            for name, text in (metadata or {}).items():
                file.write(text_record(name, text))


def write_ckpt(
    file: BinaryIO,
    infos: Mapping[str, TensorInfo],
    parts: Iterable[tuple[str, TensorBytes]],
    *,
    part_bytes: int = PART_BYTES,
) -> None:
    """The records of a ckpt: each tensor as one, or as several of part_bytes at most."""
    room = 0  # bytes that the open record still takes
    left: dict[str, int] = {name: info.num_bytes for name, info in infos.items()}
    for name, piece in _checked(infos, parts):
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
    infos: Mapping[str, TensorInfo], parts: Iterable[tuple[str, TensorBytes]]
) -> Iterator[tuple[str, memoryview]]:
    """The pieces as bytes, once they are known to be in order and to fill every tensor. An empty tensor comes as one
    empty piece; other empty pieces never come."""
    names = iter(infos)
    current, missing = "", 0
    for name, piece in parts:
        while name != current:
            assert missing == 0, f"{current}: {missing} bytes are missing"
            current = next(names, "")
            assert current, f"{name} is not the next tensor"
            missing = infos[current].num_bytes
            if missing == 0:
                yield current, memoryview(b"")
        content = _bytes_of(piece)
        missing -= content.nbytes
        assert missing >= 0, f"{name}: {-missing} bytes too many"
        if content.nbytes:
            yield name, content
    assert missing == 0, f"{current}: {missing} bytes are missing"
    for name in names:
        assert infos[name].num_bytes == 0, f"{name} is missing"
        yield name, memoryview(b"")


def _bytes_of(piece: TensorBytes) -> memoryview:
    if not isinstance(piece, np.ndarray):
        return memoryview(piece).cast("B")
    plain = np.asarray(piece, dtype=piece.dtype.newbyteorder("<"), order="C")
    return memoryview(plain.reshape(-1).view(np.uint8))


def read_safetensors(folder_or_file: Path) -> dict[str, np.ndarray]:
    """All tensors of one file, of a folder's `model.safetensors`, or of the shards its index names.

    bfloat16 becomes float32 with the same values; every other dtype and all shapes are kept. The arrays are
    copies: they stay valid when the file goes away.
    Raises WeightsError: nothing to read, a truncated or damaged file, a missing shard, an index that
    contradicts its shards, a dtype that numpy has not.
    """
    with open_tensors(folder_or_file) as source:
        return {
            name: widen_bfloat16(source.read(name)) if info.dtype == "BF16" else source.read(name)
            for name, info in source.tensors.items()
        }


def write_tensor_file(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, str] | None = None,
    bfloat16_bits: bool = False,
    on_write: Callable[[Content], None] | None = None,
) -> None:
    """Write arrays bit for bit, each in its own dtype, aside and flushed to disk; then rename to `path`.

    bfloat16_bits: the arrays are uint16 and hold the bits of bfloat16 numbers. on_write: see `write_tensors`.
    Raises OSError if the file system refuses.
    """
    infos = library_order({name: info_of(tensor, bfloat16_bits=bfloat16_bits) for name, tensor in tensors.items()})
    write_tensors(path, infos, ((name, tensors[name]) for name in infos), metadata=metadata, on_write=on_write)
