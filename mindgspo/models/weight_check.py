"""Whether a file's weights are those of a model.

Needs no MindSpore.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.errors import WeightsError
from mindgspo.models.names import weight_shapes
from mindgspo.models.rope import rope_frequencies
from mindgspo.tensor_files.formats import titled_names
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import FLOAT_DTYPES, TensorInfo, TensorSource, widen_bfloat16
from mindgspo.text import did_you_mean

_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"

# Buffers of older files, which follow from config.json.
_FREQUENCIES = re.compile(r"(?:model\.)?(?:layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq")
_NUMBER = re.compile(r"[0-9]+")
_MEND = "compare the `model` section with the weights' config.json"


def require_weights(model: ModelSection, source: TensorSource, names: Mapping[str, str]) -> dict[str, str]:
    """{Hugging Face name: name in the source} of exactly the weights of this model, in the table's order.

    names: the same for all tensors of the source. A tied model may have a copy of its embedding table as
    `lm_head.weight`, which is left out, like the frequencies of the rotary embedding and layers that predict further
    tokens. Raises WeightsError as
    `check_names`, where that copy is none, and where the frequencies are those of another model.
    """
    left_out = tuple(f"model.layers.{i}." for i in model.left_out_layers)
    stored = {
        name: theirs
        for name, theirs in names.items()
        if not name.startswith(left_out) and not _are_frequencies(model, source, name, theirs)
    }
    if model.tie_word_embeddings and {_HEAD, _TABLE} <= stored.keys():
        if not _are_equal(source, stored[_HEAD], stored[_TABLE]):
            raise WeightsError(
                f"{source.path}: the output table is tied to the embedding (tie_word_embeddings), but {_HEAD} differs "
                f"from {_TABLE}; set tie_word_embeddings to false if both belong to the model"
            )
        del stored[_HEAD]
    shapes = weight_shapes(model)
    check_names(shapes, {name: source.tensors[theirs] for name, theirs in stored.items()}, where=source.path)
    return {name: stored[name] for name in shapes}


def _are_frequencies(model: ModelSection, source: TensorSource, name: str, stored: str) -> bool:
    """Whether a tensor holds the frequencies of the rotary embedding: unstretched, as older files have them even where
    positions are, or stretched."""
    info = source.tensors[stored]
    size = model.rotary_dim
    if not _FREQUENCIES.fullmatch(name) or info.dtype not in FLOAT_DTYPES or info.shape != (size // 2,):
        return False
    found = widen_bfloat16(source.read(stored)) if info.dtype == "BF16" else source.read(stored)
    expected = [rope_frequencies(size, model.rope_theta, one) for one in (None, model.rope_scaling)]
    # As exact as bfloat16 and float16 have them.
    if not any(np.allclose(found, one, rtol=1e-2, atol=1e-7) for one in expected):
        theta = float(found[-1]) ** (-size / (size - 2)) if found[-1] > 0 and found.size > 1 else 0
        raise WeightsError(
            f"{source.path}: {name} is not the frequencies of rope_theta {model.rope_theta:g} but about those of "
            f"{theta:.4g}; correct rope_theta in config.json, or leave these tensors out of the file"
        )
    return True


def check_weights(model: ModelSection, folder: Path) -> None:
    """Raises WeightsError unless the folder's files hold exactly the weights of this model, by names, shapes and types;
    the only values read are those of a tied output table."""
    with open_tensors(folder) as found:
        require_weights(model, found, {name: name for name in found.tensors})


def _are_equal(source: TensorSource, left: str, right: str) -> bool:
    """Whether two tensors have the same bits; read in chunks."""
    if source.tensors[left] != source.tensors[right]:
        return False
    return all(map(np.array_equal, source.chunks(left), source.chunks(right)))


def check_names(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, TensorInfo], *, where: Path, mend: str = _MEND
) -> None:
    """Reject weights that do not fit the model exactly: names, shapes, and floating-point values.

    expected: shape of every weight of the model, by its name in the file. where, mend: named in the message.
    Raises WeightsError that lists what is missing, unexpected, of another shape or no float, with near names.
    """
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    common = sorted(expected.keys() & found.keys())
    problems = [
        *titled_names("missing", missing, lambda name: name + _near(name, unexpected)),
        *titled_names("unexpected", unexpected, lambda name: name + _near(name, missing)),
        *titled_names(
            "wrong shape",
            [name for name in common if found[name].shape != tuple(expected[name])],
            lambda name: f"{name}: {_shapes(name, tuple(expected[name]), found[name].shape)}",
        ),
        *titled_names(
            "not floating point (quantised weights are not supported)",
            [name for name in common if found[name].dtype not in FLOAT_DTYPES],
            lambda name: f"{name}: {found[name].dtype}",
        ),
    ]
    if problems:
        raise WeightsError(
            f"{where}: the weights do not fit the configured model ({len(expected)} weights expected, "
            f"{len(found)} found); {mend}\n" + "\n".join(problems)
        )


def _shapes(name: str, ours: tuple[int, ...], theirs: tuple[int, ...]) -> str:
    are_rows = name in (_HEAD, _TABLE) and len(theirs) == 2 and theirs[1:] == ours[1:]
    rows = f"; it would be that of vocab_size {theirs[0]}, and config.json says {ours[0]}" if are_rows else ""
    return f"the model has {ours}, the file {theirs}{rows}"


def _near(name: str, candidates: list[str]) -> str:
    """A `did you mean` for one name, or nothing."""
    numbers = _NUMBER.findall(name)  # of the same layer and expert: there are tens of thousands of weights
    near = [one for one in candidates if _NUMBER.findall(one) == numbers]
    return did_you_mean(name, near, cutoff=0.8, show=str)
