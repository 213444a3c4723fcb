"""Adapters that begin with the principal parts of their weights (PiSSA, arXiv 2404.02948), as PEFT defines them.

    W = U S V^T;  A0 = (S_r / scale)^1/2 V_r^T,  B0 = U_r (S_r / scale)^1/2;  trained beside W - scale B0 A0

The weights that a run computes with are then no model of their own. Elsewhere its adapters are plain ones of twice the
rank, A = [A; A0] and B = [B, -B0], on the weights that it began with. Needs no MindSpore.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.config.lora import LoraSection
from mindgspo.models.names import is_adapter


def principal_parts(lora: LoraSection, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A0 [.., rank, I] and B0 [.., O, rank] of a weight [.., O, I], float32."""
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    roots = np.sqrt(values[..., : lora.rank] / np.float32(lora.scale))
    return roots[..., :, None] * right[..., : lora.rank, :], left[..., : lora.rank] * roots[..., None, :]


def without_parts(lora: LoraSection, weight: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What its principal parts leave of a weight."""
    return weight - np.float32(lora.scale) * (b @ a)


def plain_model(model: ModelSection) -> ModelSection:
    """The model on whose base the adapters of a run are plain ones; the same, unless they begin with parts of it."""
    lora = model.lora
    if lora is None or lora.init != "pissa":
        return model
    alpha = lora.alpha * (sqrt(2) if lora.use_rslora else 2)
    plain = lora.model_copy(update={"rank": 2 * lora.rank, "alpha": alpha, "init": "kaiming"})
    return model.model_copy(update={"lora": plain})


def plain_adapters(trained: Mapping[str, np.ndarray], parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors that `plain_model` has for what a run has trained. parts: A0 and B0 by the same names."""
    plain = {}
    for name, array in trained.items():
        if not is_adapter(name):
            plain[name] = array
        elif name.endswith(".lora_A.weight"):
            plain[name] = np.concatenate([array, parts[name]], axis=0)
        else:
            plain[name] = np.concatenate([array, -parts[name]], axis=1)
    return plain
