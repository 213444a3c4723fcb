"""The work behind `mindgspo eval`: accuracy of any exported folder on an experiment's held-out problems.

What enters: a resolved configuration and a Hugging Face folder. What leaves: an `Evaluation`. Nothing is
written but a temporary folder with the prepared rows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from mindgspo.config import ExperimentConfig, PlansSection
from mindgspo.errors import ConfigError
from mindgspo.models.huggingface_config import read_model_section
from mindgspo.trainer.build import build_evaluation_parts
from mindgspo.trainer.evaluate import Evaluation, evaluate


def with_model(config: ExperimentConfig, folder: Path) -> ExperimentConfig:
    """The experiment with the policy of `folder`, whatever its architecture, in one process.

    Raises WeightsError for a folder that is no model, ConfigError where its positions are too few.
    """
    found = read_model_section(folder).model_copy(update={"dtype": config.model.dtype})
    longest = config.data.max_prompt_length + config.rollout.max_new_tokens
    if longest > found.max_position_embeddings:
        raise ConfigError(
            f"{folder}: {found.max_position_embeddings} positions, but data.max_prompt_length + "
            f"rollout.max_new_tokens = {longest}; lower one of them with --set"
        )
    return config.model_copy(update={"model": found, "plans": PlansSection()})


def measure(config: ExperimentConfig, folder: Path) -> Evaluation:
    """Greedy accuracy on data.eval and, if eval.num_samples > 1, pass@k. Raises the errors of `mindgspo.errors`."""
    with tempfile.TemporaryDirectory(prefix="mindgspo-eval-") as data_dir:
        parts = build_evaluation_parts(with_model(config, folder), data_dir=Path(data_dir))
        with parts.scorer:
            parts.bring_weights()
            return evaluate(parts, list(parts.eval_set), step=0)
