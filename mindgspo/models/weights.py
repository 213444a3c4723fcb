"""Values of a model's parameters: drawn from the seed, loaded from Hugging Face names, or read back.

What enters: a model cell and named arrays. What leaves: changed parameters, or named float32 arrays. Called by the
trainer's build, by checkpoints, exports and the `logprobs` command.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from mindgspo.config import ModelSection
from mindgspo.models.names import hugging_face_names, weight_shapes
from mindgspo.models.safetensors_io import check_names, read_safetensors

_INITIALIZATION_STREAM = 0x1717


def initialize_weights(model: nn.Cell, section: ModelSection, seed: int) -> None:
    """Random weights as Hugging Face draws them: matrices N(0, initializer_range^2), norms 1, biases 0.

    Every parameter has its own stream, keyed by (seed, its name): the order of creation does not matter.
    """
    arrays = {}
    for name, shape in weight_shapes(section).items():
        if len(shape) == 2:
            key = [seed, _INITIALIZATION_STREAM, zlib.crc32(name.encode())]
            random = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
            arrays[name] = random.standard_normal(shape, dtype=np.float32) * np.float32(section.initializer_range)
        else:
            arrays[name] = np.full(shape, float(name.endswith("norm.weight")), dtype=np.float32)
    load_weights(model, section, arrays, where=Path("random initialization"))


def load_weights(model: nn.Cell, section: ModelSection, arrays: Mapping[str, np.ndarray], *, where: Path) -> None:
    """Set every parameter from arrays under Hugging Face names.

    Raises WeightsError, before anything is changed, on a missing or unexpected name or another shape. A copy of the
    embedding table under `lm_head.weight` is accepted for a tied model only if it equals that table.
    """
    found = dict(arrays)
    head, table = found.get("lm_head.weight"), found.get("model.embed_tokens.weight")
    if section.tie_word_embeddings and head is not None and table is not None and np.array_equal(head, table):
        del found["lm_head.weight"]
    check_names(weight_shapes(section), found, where=where)
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    for ours, theirs in hugging_face_names(section).items():
        parameters[ours].set_data(Tensor(found[theirs].astype(np.float32)))


def load_huggingface(model: nn.Cell, section: ModelSection, folder: Path) -> None:
    """Set every parameter from a folder's safetensors files, strictly. Raises WeightsError."""
    load_weights(model, section, read_safetensors(folder), where=folder)


def weights_as_numpy(model: nn.Cell, section: ModelSection) -> dict[str, np.ndarray]:
    """Copies of all parameters under Hugging Face names, float32."""
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    return {theirs: parameters[ours].asnumpy().copy() for ours, theirs in hugging_face_names(section).items()}
