"""What the cells of another suite in the place of ours (`model.backend`) ask of a model and its plans.

What enters: a resolved config, or its model section. What leaves: lines as of `config.validate`, which calls this. The
MindFormers backend asks for a model's as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.model_section import ModelSection
from mindgspo.config.schema import ExperimentConfig

_ARCHITECTURES = ("qwen2", "llama")


def backend_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule of a backend that is not ours."""
    if config.model.backend == "native":
        return
    yield from mindformers_problems(config.model)
    use_native = "or leave model.backend=native"
    if config.device != "CPU":
        yield f"model.backend: mindformers is tested on CPU alone; set device=CPU, {use_native}"
    if config.plans.train.world_size > 1:
        yield f"model.backend: mindformers trains in one process; leave out plans, {use_native}"
    if config.trainer.packing:
        yield f"trainer.packing: rows of MindFormers' cells hold one sample each; set it to false, {use_native}"


def mindformers_problems(model: ModelSection) -> Iterator[str]:
    """Every detail of an architecture that MindFormers' legacy cells do not have."""
    if model.architecture not in _ARCHITECTURES:
        yield (
            f"model.architecture: {model.architecture} is not among the legacy cells of MindFormers; legal with that "
            f"backend: {', '.join(_ARCHITECTURES)}"
        )
    if model.head_dim is not None and model.head_dim * model.num_attention_heads != model.hidden_size:
        yield (
            f"model.head_dim: {model.head_dim} x {model.num_attention_heads} attention heads is not hidden_size "
            f"{model.hidden_size}, as it must be in the cells of MindFormers; use the native backend"
        )
    if model.dtype != "float32":
        yield f"model.dtype: {model.dtype}; the MindFormers backend is tested in float32 alone; set float32"
