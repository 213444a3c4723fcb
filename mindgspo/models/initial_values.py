"""Initial weights: random ones, as Hugging Face and PEFT draw them, and those of a base. Needs no MindSpore.

Every parameter has its own stream, keyed by (seed, its name): neither the order of creation nor the plan matters.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.models.names import TABLES, hugging_face_names, parameter_shapes, to_hugging_face, weight_shapes
from mindgspo.models.weight_check import require_weights
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import CHUNK_BYTES, ArraySource, PickedTensors, TensorInfo, TensorSource

_INITIALIZATION_STREAM = 0x1717


def initial_values(name: str, shape: tuple[int, ...], section: ModelSection, seed: int) -> np.ndarray:
    """A whole parameter, float32: matrices N(0, initializer_range^2), norms 1, biases 0; adapters as `LoraSection.init`
    says."""
    if len(shape) == 1:
        return np.full(shape, float(name.endswith("norm.weight")), dtype=np.float32)
    if name.endswith(".lora_B.weight"):
        return np.zeros(shape, np.float32)
    key = [seed, _INITIALIZATION_STREAM, zlib.crc32(name.encode())]
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
    if name.endswith(".lora_A.weight"):
        assert section.lora is not None, name
        if section.lora.init == "gaussian":
            return random.standard_normal(shape, np.float32) / np.float32(section.lora.rank)
        return (random.random(shape, np.float32) * 2 - 1) * np.float32(shape[-1] ** -0.5)  # kaiming, a = sqrt(5)
    padding = section.rows - section.vocab_size if name in TABLES else 0
    values = random.standard_normal((shape[0] - padding, *shape[1:]), dtype=np.float32)
    values *= np.float32(section.initializer_range)
    return np.pad(values, ((0, padding), (0, 0))) if padding else values


class DrawnTensors:
    """A `TensorSource` of random weights under Hugging Face names, drawn when they are read. path: for messages."""

    def __init__(self, section: ModelSection, seed: int, *, path: Path) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        self.tensors = {name: TensorInfo(dtype="F32", shape=shape) for name, shape in weight_shapes(section).items()}
        shapes = parameter_shapes(section)
        ours: dict[str, tuple[str, ...]] = {}
        for name, place in hugging_face_names(section).items():
            ours |= {theirs: (*ours.get(theirs, ()), name) for theirs in place.names}

        @lru_cache(maxsize=1)  # experts are drawn together and read one by one
        def drawn(names: tuple[str, ...]) -> dict[str, np.ndarray]:
            return to_hugging_face(section, {name: initial_values(name, shapes[name], section, seed) for name in names})

        self._read = lambda theirs: drawn(ours[theirs])[theirs]

    def read(self, name: str) -> np.ndarray:
        """A whole tensor."""
        return self._read(name)

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor."""
        return self._read(name)[index]

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[np.ndarray]:
        """A whole tensor, flat, in pieces."""
        return ArraySource({name: self._read(name)}, path=self.path).chunks(name, chunk_bytes)


@contextmanager
def open_base(model: ModelSection, seed: int) -> Iterator[TensorSource]:
    """The base's tensors, under Hugging Face names, for the block. Raises WeightsError."""
    if model.path is None:
        yield DrawnTensors(model.base, seed, path=Path(f"seed {seed}"))
        return
    with open_tensors(model.path) as stored:
        names = require_weights(model.base, stored, {name: name for name in stored.tensors})
        yield PickedTensors({name: (stored, theirs) for name, theirs in names.items()}, path=stored.path, metadata={})
