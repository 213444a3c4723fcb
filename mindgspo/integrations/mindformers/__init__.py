"""MindFormers' legacy `LlamaForCausalLM` (Qwen2, Qwen2.5, Llama) in the place of our transformer.

This module needs neither MindSpore nor MindFormers; `model` has the cell. MindFormers 1.9.0 needs MindSpore 2.9.0,
hence a separate environment: see docs/integrations.md.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.config.deployment_rules import mindformers_problems
from mindgspo.errors import ConfigError
from mindgspo.types import Float32Array, Int32Array

if TYPE_CHECKING:
    from mindgspo.models.scoring import RowScore

WANTED = {"mindformers": "1.9.0", "mindspore": "2.9.0"}
"""The pair of wheels that belong together, and that this backend was tested with."""

_HOW = (
    "it runs in an environment of its own, with mindformers 1.9.0 and mindspore 2.9.0. In a checkout: "
    "python3 -m venv mf && mf/bin/pip install -e '.[mindformers]'; then mf/bin/mindgspo"
)


def require_mindformers() -> ModuleType:
    """The package `mindformers`. Raises ConfigError: it is absent, not the tested pair of versions, or told by an
    environment variable to do something else.

    On import, MindFormers sends its messages and Python's warnings to stdout, where our results go. Here its errors go
    to stderr, lesser messages only to its log file, and warnings are left to Python.
    """
    found = {name: _version(name) for name in WANTED}
    if found["mindformers"] is None:
        raise ConfigError(f"the MindFormers backend needs the package mindformers, which is not installed; {_HOW}")
    if found != WANTED:
        have = ", ".join(f"{name} {version or 'absent'}" for name, version in found.items())
        raise ConfigError(
            f"the MindFormers backend is tested with one pair of wheels and this is another: {have}; {_HOW}"
        )
    if os.environ.get("RUN_MODE") == "predict":
        raise ConfigError("RUN_MODE=predict: MindFormers then builds graphs for generation on Ascend; unset it")
    show_warning = warnings.showwarning
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import mindformers
            from mindformers.tools.logger import get_logger  # pyright: ignore[reportMissingImports] - an extra

            _quieten(get_logger())
    except ImportError as error:
        raise ConfigError(f"the MindFormers backend: mindformers cannot be imported ({error}); {_HOW}") from error
    finally:
        warnings.showwarning = show_warning
    return mindformers


def _quieten(logger: logging.Logger) -> None:
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setStream(sys.stderr)
            handler.setLevel(logging.ERROR)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# In every run: float32 throughout, and none of the fused operators, which exist on Ascend alone. Rows may be shorter
# than seq_length only where it is dynamic. input_sliced_sig: nothing is cut off the ids, in training neither.
_ALWAYS: dict[str, object] = {
    "compute_dtype": "float32",
    "param_init_type": "float32",
    "layernorm_compute_type": "float32",
    "softmax_compute_type": "float32",
    "rotary_dtype": "float32",
    "use_flash_attention": False,
    "fused_rms_norm": False,
    "use_rope_slice": True,
    "qkv_concat": False,
    "is_dynamic": True,
    "input_sliced_sig": True,
}

# MindFormers masks every token that has the pad id, wherever it stands. Rows are padded on the right, where causal
# attention does not look, so nothing needs that mask; with an id that no token has, it never acts.
_NO_TOKEN = -1


def llama_settings(model: ModelSection, *, longest_row: int) -> dict[str, object]:
    """Our model section as arguments of LlamaConfig; its causal mask has `longest_row` squared entries.

    Raises ConfigError: an architecture or a detail that those cells do not have.
    """
    problems = list(mindformers_problems(model))
    if problems:
        raise ConfigError("\n".join(problems))
    return {
        **_ALWAYS,
        **_rope(model),
        "seq_length": longest_row,
        "max_position_embedding": model.max_position_embeddings,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_layers": model.num_hidden_layers,
        "num_heads": model.num_attention_heads,
        "n_kv_heads": model.num_key_value_heads,
        "rms_norm_eps": model.rms_norm_eps,
        "qkv_has_bias": bool(model.attention_bias),
        "tie_word_embeddings": model.tie_word_embeddings,
        "pad_token_id": _NO_TOKEN,
    }


def _rope(model: ModelSection) -> dict[str, object]:
    if model.rope_scaling is None:
        return {"theta": model.rope_theta}
    scaling = model.rope_scaling
    assert scaling.rope_type == "llama3", scaling
    return {
        "theta": model.rope_theta,
        "extend_method": "LLAMA3",
        "scaling_factor": {
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        },
    }


_ROWS_AT_ONCE = 256  # bounds the float64 copies of logits


def log_probs_by_mindformers(section: ModelSection, folder: Path, rows: Sequence[Int32Array]) -> Iterable[RowScore]:
    """Log-probs by MindFormers' whole forward pass, none of our cells in it: one result per row of ids, in order.

    Raises ConfigError and WeightsError before the first.
    """
    from mindspore import Tensor

    from mindgspo.integrations.mindformers.model import build_mindformers_model
    from mindgspo.models.scoring import RowScore, padded_length
    from mindgspo.models.weights import load_huggingface

    lengths = [padded_length(row.size, section.max_position_embeddings) for row in rows]
    model = build_mindformers_model(section, longest_row=max(lengths))
    load_huggingface(model, section, folder)

    def scored(row: Int32Array, length: int) -> RowScore:
        ids_1T = np.zeros((1, length), np.int32)
        ids_1T[0, : row.size] = row
        logits_TV = model.net(Tensor(ids_1T))[0].asnumpy()[0]
        return RowScore(
            logprobs=chosen_logprobs(logits_TV[: row.size - 1], row[1:]),
            next_id=int(logits_TV[row.size - 1].argmax()),
        )

    return map(scored, rows, lengths)


def chosen_logprobs(logits_LV: np.ndarray, targets_L: Int32Array) -> Float32Array:
    """float32 [L]: log-prob of each target, by a softmax in float64 over a few rows at a time."""
    chosen = np.zeros(len(targets_L), np.float32)
    for start in range(0, len(targets_L), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        logits = logits_LV[rows].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        picked = np.take_along_axis(logits, targets_L[rows, None], axis=1)[:, 0]
        chosen[rows] = picked - np.log(np.exp(logits).sum(axis=1))
    return chosen
