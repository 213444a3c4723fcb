"""Configuration -> the parts of an experiment. The whole configuration stops here.

What enters: a resolved `ExperimentConfig` and the run folder. What leaves: `TrainingParts`. Everything that a user
may have got wrong in files (data, tokenizer, weights, gold answers) is checked before the first graph is compiled.
"""

from __future__ import annotations

from pathlib import Path

from mindspore import nn

from mindgspo.algorithms.registry import build_policy_loss
from mindgspo.algorithms.update import PolicyUpdater
from mindgspo.config import DataSourceSection, ExperimentConfig, ModelSection, planned_steps
from mindgspo.data import PromptDataset, PromptStream, open_dataset, prepare_dataset
from mindgspo.errors import ConfigError
from mindgspo.metrics import Timers
from mindgspo.models.huggingface_config import read_model_section
from mindgspo.models.policy import PolicyLogProbs, PolicyScorer, build_model
from mindgspo.models.weights import initialize_weights, load_huggingface
from mindgspo.parallel.runtime import set_up_runtime
from mindgspo.rewards import build_scorer
from mindgspo.rollout.engine import NativeEngine
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.trainer.parts import TrainingParts

# Held-out rows do not depend on the run's seed: runs with different seeds are compared on the same problems.
_HELD_OUT_SEED = 0


def build_parts(config: ExperimentConfig, *, data_dir: Path, failures_dir: Path) -> TrainingParts:
    """All parts, with initial weights. data_dir: where raw data sets are prepared (reused if nothing changed)."""
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    scorer = build_scorer(config.reward)
    train_set = dataset(config, config.data.train, tokenizer, data_dir / "train", seed=config.seed)
    eval_set = dataset(config, config.data.eval, tokenizer, data_dir / "eval", seed=_HELD_OUT_SEED)
    for rows in (train_set, eval_set):
        scorer.check_rows(list(rows))
    total_steps = planned_steps(config, len(train_set))
    assert total_steps is not None

    set_up_runtime(config.device)
    model = policy_model(config)
    rollout = config.rollout
    return TrainingParts(
        config=config,
        tokenizer=tokenizer,
        model=model,
        engine=NativeEngine(
            model,
            eos_ids=tokenizer.eos_ids,
            num_slots=rollout.slots,
            # As many prompts as fill the slots with their siblings: one prefill then feeds all slots once.
            prefill_width=max(1, rollout.slots // rollout.num_generations),
            max_prompt_length=config.data.max_prompt_length,
            max_new_tokens=rollout.max_new_tokens,
            length_multiple=config.trainer.length_multiple,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
        ),
        old_policy=PolicyScorer(model, temperature=rollout.temperature),
        updater=PolicyUpdater(
            PolicyLogProbs(model, temperature=rollout.temperature, with_entropy=False),
            build_policy_loss(config.algorithm),
            config.optimizer,
        ),
        scorer=scorer,
        train_set=train_set,
        eval_set=eval_set,
        stream=PromptStream(len(train_set), config.seed, config.data.shuffle),
        timers=Timers(),
        total_steps=total_steps,
        failures_dir=failures_dir,
    )


def warmup_check_set(config: ExperimentConfig, tokenizer: Tokenizer, data_dir: Path) -> PromptDataset | None:
    """The rows on which the warm-up watches its accuracy, None if it does not."""
    if config.warmup is None or config.warmup.check is None:
        return None
    return dataset(config, config.warmup.check, tokenizer, data_dir / "warmup_check", seed=_HELD_OUT_SEED)


def dataset(
    config: ExperimentConfig, source: DataSourceSection, tokenizer: Tokenizer, folder: Path, *, seed: int
) -> PromptDataset:
    """Open a prepared folder, or prepare the raw rows into `folder` first."""
    if source.format == "prepared":
        assert source.path is not None
        return open_dataset(source.path, tokenizer, config.data)
    prepare_dataset(source, config.data, tokenizer, folder, seed=seed)
    return open_dataset(folder, tokenizer, config.data)


def policy_model(config: ExperimentConfig) -> nn.Cell:
    """The policy with weights of model.path, or random ones. Raises ConfigError if that folder's architecture is
    not the one configured."""
    section = config.model
    model = build_model(section)
    if section.path is None:
        initialize_weights(model, section, config.seed)
    else:
        _check_architecture(section, read_model_section(section.path))
        load_huggingface(model, section, section.path)
    return model


def _check_architecture(configured: ModelSection, found: ModelSection) -> None:
    ours = configured.model_dump(exclude={"path", "dtype", "initializer_range"})
    theirs = found.model_dump(exclude={"path", "dtype", "initializer_range"})
    differing = [f"model.{key}: {ours[key]!r}, there {theirs[key]!r}" for key in ours if ours[key] != theirs[key]]
    if differing:
        raise ConfigError(
            f"{found.path}/config.json describes another model than the `model` section: " + "; ".join(differing)
        )
