"""Configuration -> the parts of an experiment. The whole configuration stops here.

What enters: a resolved `ExperimentConfig` and the run folder. What leaves: `TrainingParts` or `Warmup`;
evaluation takes single parts. Everything that a user may have got wrong in files (data, tokenizer, weights, gold
answers) is checked before the first graph is compiled. Every rank builds its own parts from the same configuration.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from mindspore import Parameter, nn

from mindgspo.algorithms.kl_control import KLController
from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.build import build_update_backend
from mindgspo.config import ExperimentConfig, planned_steps
from mindgspo.data import PromptStream
from mindgspo.metrics import Timers
from mindgspo.models.huggingface_config import read_model_section
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import build_scorer
from mindgspo.models.weights import held_parameters, initialize_weights, load_huggingface
from mindgspo.parallel import heartbeat
from mindgspo.parallel.agreement import require_agreement
from mindgspo.parallel.placement import Placement
from mindgspo.parallel.replicas import Replicas
from mindgspo.parallel.swap.states import Holding
from mindgspo.parallel.swap.swap import Swap, open_swap
from mindgspo.rewards import Scorer
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.protocol import RolloutEngine
from mindgspo.rollout.replicated import ReplicatedEngine
from mindgspo.rollout.sizes import reads_trained_weights, rollout_sizes
from mindgspo.rollout.weight_transfer import WeightTransfer
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.trainer.baseline import Baseline
from mindgspo.trainer.fingerprints import fingerprints, rows_digest
from mindgspo.trainer.inputs import HELD_OUT_SEED, NUM_TRIAL_ROWS, check_architecture, trial_candidate
from mindgspo.trainer.kept_state import KeptCoefficient, KeptState, KeptStream
from mindgspo.trainer.longest_batch import longest_batch
from mindgspo.trainer.opened_data import check_distinct_prompts, judged_dataset, open_eval_sets
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.ranks import infer_place, reference_place, start_device, train_place
from mindgspo.trainer.reference import KeptReference, ReferencePolicy
from mindgspo.trainer.skipped_updates import SkippedUpdates
from mindgspo.trainer.surplus import Surplus
from mindgspo.trainer.trained_model import build_trained_model
from mindgspo.trainer.validation import check_best_metric
from mindgspo.trainer.warmup import Warmup, supervised_sample


def build_parts(
    config: ExperimentConfig, *, data_dir: Path, failures_dir: Path, swap_dir: Path, new_run: bool = True
) -> TrainingParts:
    """All parts, with initial weights.

    swap_dir: where evicted memory waits on CPU, unless swap.path names a folder. data_dir: where raw data sets are
    prepared; they are reused if nothing changed. new_run: data that a start with other settings left there is moved
    aside; a resumed run refuses it.
    """
    start_device(config)
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    scorer = started_scorer(config)
    train_set = judged_dataset(
        config, config.data.train, tokenizer, scorer, data_dir / "train", seed=config.seed, new_run=new_run
    )
    eval_sets = open_eval_sets(config, tokenizer, scorer, data_dir / "eval", new_run=new_run)
    check_best_metric(config, eval_sets)
    check_distinct_prompts(config, len(train_set))
    if infer_place(config).is_speaker:
        scorer.try_out([trial_candidate(prompt, tokenizer) for prompt in itertools.islice(train_set, NUM_TRIAL_ROWS)])
    train_digest = rows_digest(train_set)
    total_steps = planned_steps(config, len(train_set))
    assert total_steps is not None
    require_agreement(
        "data and batch counts",
        {
            "data.train": train_digest,
            "rows of data.train": len(train_set),
            **{f"data.eval ({name})": rows_digest(rows) for name, rows in eval_sets.items()},
            **{f"rows of data.eval ({name})": len(rows) for name, rows in eval_sets.items()},
            "steps": total_steps,
        },
        "Give every rank the same data: files of one content, and one run_dir on a file system that all nodes share",
    )
    place = train_place(config)
    model = build_trained_model(config, place)
    temperature = config.rollout.temperature
    updater = build_update_backend(
        PolicyLogProbs(model, temperature=temperature, with_entropy=config.algorithm.entropy_coef > 0),
        build_policy_loss(config.algorithm),
        config.optimizer,
    )
    longest = longest_batch(config) if place.is_divided else None
    if longest is not None:  # compiling leaves this rank with the slices that weights are then loaded into
        updater.compile(longest)
    fill(model, config)
    # Before any graph is compiled, and part by part: on CPU a parameter that is swapped gets memory of its own.
    swap = open_swap(config.swap, swap_dir)
    swap.register(Holding.ACTOR_WEIGHTS, held_parameters(model))
    generator = generating_part(config, model, tokenizer, swap)
    swap.register(Holding.ROLLOUT_WEIGHTS, generator.model.get_parameters())
    swap.register(Holding.KV_CACHE, generator.cache, keeps_content=False)
    kl, stream = KLController(config.algorithm.kl), PromptStream(len(train_set), config.seed, config.data.shuffle)
    kept: dict[str, KeptState] = {"stream": KeptStream(stream), "kl": KeptCoefficient(kl)}
    reference = None
    if config.algorithm.kl.placement != "none":
        reference = ReferencePolicy(
            config.model,
            reference_place(config),
            temperature=temperature,
            changes=config.algorithm.kl.reference,
            reshard=config.reshard,
            longest=longest,
        )
        swap.register(Holding.REFERENCE_WEIGHTS, reference.parameters)
        if not reference.is_frozen:
            kept["reference"] = KeptReference(reference, swap)
    swap.register(Holding.GRADIENTS, updater.gradients, keeps_content=False, is_zero=lambda: updater.gradients_are_zero)
    swap.register(Holding.MOMENTS, updater.moments)
    skips, baseline = SkippedUpdates(), Baseline()
    surplus = Surplus(config.algorithm.filter_groups.keep_surplus_steps, train_set)
    kept |= {"skipped_updates": skips, "surplus": surplus, "baseline": baseline}
    return TrainingParts(
        config=config,
        tokenizer=tokenizer,
        model=model,
        engine=generator.engine,
        swap=swap,
        scorer=scorer,
        judges=Replicas(infer_place(config)),
        old_policy=build_scorer(model, temperature=temperature),
        reference=reference,
        kl=kl,
        updater=updater,
        train_set=train_set,
        eval_sets=eval_sets,
        stream=stream,
        surplus=surplus,
        timers=Timers(on_enter=heartbeat.enter_stage),
        total_steps=total_steps,
        failures_dir=failures_dir,
        skips=skips,
        baseline=baseline,
        fingerprints=fingerprints(config, tokenizer, train_set, digest=train_digest),
        kept=kept,
    )


def build_warmup(parts: TrainingParts, *, data_dir: Path, new_run: bool = True) -> Warmup | None:
    """What the warm-up of this experiment learns from, None if it has none. Raises DataError for a row without a
    solution or with one that is too long."""
    section = parts.config.warmup
    if section is None:
        return None
    check_set = None
    if section.check is not None:
        check_set = judged_dataset(
            parts.config,
            section.check,
            parts.tokenizer,
            parts.scorer,
            data_dir / "warmup_check",
            seed=HELD_OUT_SEED,
            new_run=new_run,
        )
    budget, multiple = parts.config.trainer.max_tokens_per_micro_batch, parts.config.trainer.length_multiple
    longest = None if budget is None else budget // multiple * multiple
    samples = tuple(
        supervised_sample(row, parts.tokenizer, parts.config.model, max_tokens=longest) for row in parts.train_set
    )
    return Warmup(section=section, samples=samples, check_set=check_set)


def started_scorer(config: ExperimentConfig) -> Scorer:
    """The reward functions. Only ranks that judge start its worker processes."""
    scorer = Scorer(config.reward, on_answer=heartbeat.tick)
    if infer_place(config).is_speaker:
        scorer.start()
    return scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratingPart:
    """engine: what the trainer asks. model: whose parameters it reads. cache: its keys and values."""

    engine: RolloutEngine
    model: nn.Cell
    cache: tuple[Parameter, ...]


def generating_part(config: ExperimentConfig, trained: nn.Cell, tokenizer: Tokenizer, swap: Swap) -> GeneratingPart:
    """The engine of the infer plan: on the trained model's own parameters where both plans hold them alike, else on a
    model of its own that the trained weights are brought to."""
    place = infer_place(config)
    if reads_trained_weights(config):
        native = _native_engine(config, trained, tokenizer)
        spread = ReplicatedEngine(native, place, lambda version: None)
        return GeneratingPart(
            engine=native if place.plan.world_size == 1 else spread, model=trained, cache=native.cache
        )
    model = build_model(config.model, place)
    native = _native_engine(config, model, tokenizer)
    transfer = WeightTransfer(trained, model, config.model, config.reshard, swap.reshard_step)
    return GeneratingPart(engine=ReplicatedEngine(native, place, transfer.bring), model=model, cache=native.cache)


def _native_engine(config: ExperimentConfig, model: nn.Cell, tokenizer: Tokenizer) -> NativeEngine:
    rollout, sizes = config.rollout, rollout_sizes(config)
    return NativeEngine(
        model,
        eos_ids=tokenizer.eos_ids,
        num_slots=sizes.num_slots,
        prefill_width=sizes.prefill_width,
        max_prompt_length=config.data.max_prompt_length,
        max_new_tokens=rollout.max_new_tokens,
        length_multiple=config.trainer.length_multiple,
        cache_dtype=sizes.cache_dtype,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
    )


def policy_model(config: ExperimentConfig, place: Placement) -> nn.Cell:
    """This rank's part of the policy, filled; see `fill`."""
    model = build_model(config.model, place)
    fill(model, config)
    return model


def fill(model: nn.Cell, config: ExperimentConfig) -> None:
    """Weights of model.path, or random ones. Raises ConfigError if that folder's architecture is not the one
    configured."""
    section = config.model
    if section.path is None:
        initialize_weights(model, section, config.seed)
        return
    check_architecture(section, read_model_section(section.path))
    load_huggingface(model, section, section.path)
