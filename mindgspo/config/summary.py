"""The batch table of the start banner: what the sizes in a config multiply to, and which formula is in use.

What enters: a resolved config and the number of training rows. What leaves: pairs (name, text) in print
order. Called by the command line and the trainer; `planned_steps` is the one place that turns epochs into
steps. The formulas are written in `config.formulas`.
"""

from __future__ import annotations

from mindgspo.config.formulas import advantage, correction, objective, reference_policy
from mindgspo.config.schema import ExperimentConfig
from mindgspo.errors import ConfigError


def planned_steps(config: ExperimentConfig, num_rows: int | None) -> int | None:
    """Training steps of the whole run: trainer.max_steps, else the full steps in `epochs` passes over
    `num_rows`.

    Prompts run on from one epoch into the next; only the rest after the last epoch is left over. None: epochs
    decide and the number of rows is not known yet. Raises ConfigError if not one step is full.
    """
    if config.trainer.max_steps is not None:
        return config.trainer.max_steps
    if num_rows is None:
        return None
    epochs, prompts = config.trainer.epochs, config.rollout.prompts_per_step
    steps = epochs * num_rows // prompts
    if steps == 0:
        raise ConfigError(
            f"rollout.prompts_per_step: {prompts} prompts do not fit into {num_rows} rows x {epochs} epochs; "
            f"largest legal: {epochs * num_rows}; or raise trainer.epochs, or set trainer.max_steps"
        )
    return steps


def batch_table(config: ExperimentConfig, num_rows: int | None) -> list[tuple[str, str]]:
    """(name, text) of every line of the table. num_rows: rows of the training set, None while unknown."""
    rollout, trainer = config.rollout, config.trainer
    samples = rollout.prompts_per_step * rollout.num_generations
    mini_samples = trainer.prompts_per_mini_batch * rollout.num_generations
    updates = rollout.prompts_per_step // trainer.prompts_per_mini_batch * trainer.epochs_per_rollout
    mini_batch = f"{mini_samples:,} samples ({trainer.prompts_per_mini_batch} prompts)"
    longest = config.data.max_prompt_length + rollout.max_new_tokens
    steps = planned_steps(config, num_rows)
    return [
        ("prompts per step", f"{rollout.prompts_per_step:,}"),
        ("samples per step", f"{samples:,} = {rollout.prompts_per_step} prompts x {rollout.num_generations}"),
        ("updates per rollout", f"{updates:,} of {mini_batch}{_epochs_text(trainer.epochs_per_rollout)}"),
        ("micro-batches per update", _micro_batches(config, mini_samples)),
        ("max tokens per step", f"{samples * longest:,} = {samples:,} x ({_length_text(config)})"),
        ("steps", _steps_text(config, steps, num_rows)),
        ("total samples", "known when the rows are counted" if steps is None else f"{steps * samples:,}"),
        ("objective", objective(config)),
        ("advantage", advantage(config)),
        *([("reference policy", reference_policy(config))] if config.algorithm.kl.placement != "none" else []),
        *(
            [("old log-probs", "the sampler's, without a scoring pass")]
            if config.algorithm.old_log_probs == "sampler"
            else []
        ),
        *([("rollout correction", correction(config))] if config.algorithm.rollout_correction.level != "none" else []),
        *(
            [("key/value cache", f"{rollout.cache_dtype}, and the model {config.model.dtype}")]
            if rollout.cache_dtype != config.model.dtype
            else []
        ),
        ("plans", _plans_text(config)),
    ]


def _plans_text(config: ExperimentConfig) -> str:
    plans = config.plans
    own = plans.reference is not None and config.algorithm.kl.placement != "none"
    reference = f", reference {plans.reference}" if own else ""
    return f"train {plans.train}, infer {plans.infer}{reference} (data x model x pipeline)"


def _epochs_text(epochs: int) -> str:
    return f", {epochs} times over the rollout" if epochs > 1 else ""


def _micro_batches(config: ExperimentConfig, samples: int) -> str:
    trainer, replicas = config.trainer, config.plans.train.data_parallel
    balanced = f", balanced over {replicas} replicas" if trainer.balance_batches and replicas > 1 else ""
    if trainer.max_tokens_per_micro_batch is None:
        assert trainer.samples_per_micro_batch is not None
        number = samples // trainer.samples_per_micro_batch
        return f"{number:,} of {trainer.samples_per_micro_batch:,} samples{balanced}"
    rows = "several samples per row" if trainer.packing else "one sample per row"
    return f"as lengths ask for, of up to {trainer.max_tokens_per_micro_batch:,} token slots, {rows}{balanced}"


def _length_text(config: ExperimentConfig) -> str:
    return f"{config.data.max_prompt_length:,} prompt + {config.rollout.max_new_tokens:,} response"


def _steps_text(config: ExperimentConfig, steps: int | None, num_rows: int | None) -> str:
    if config.trainer.max_steps is not None:
        return f"{steps:,}" if num_rows is None else f"{steps:,} (trainer.max_steps), {num_rows:,} rows"
    epochs = config.trainer.epochs
    return f"{epochs} epochs" if steps is None else f"{steps:,} = {epochs} epochs x {num_rows:,} rows"
