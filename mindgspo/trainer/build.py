"""Configuration -> experiment. The whole configuration stops here.

Everything that a user may have got wrong in files (data, tokenizer, weights, gold answers) is checked before the first
graph is compiled. Every rank builds its own share from the same configuration.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mindspore import nn

from mindgspo import faults, progress
from mindgspo.algorithms.kl_control import KLController
from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import round_up
from mindgspo.checkpoint.adapted import PARTS, base_digest, base_record
from mindgspo.config import ExperimentConfig, planned_steps
from mindgspo.config.generation import log_prob_differences, merges_adapters
from mindgspo.config.profile import check_profile
from mindgspo.data.curriculum import Curriculum
from mindgspo.data.dataset import PromptDataset
from mindgspo.data.mixture import MixtureStream
from mindgspo.data.stream import PromptOrder, PromptStream
from mindgspo.evaluation.datasets import (
    HELD_OUT_SEED,
    NUM_TRIAL_ROWS,
    check_curriculum,
    check_distinct_prompts,
    open_checked_dataset,
    open_eval_sets,
    training_prompts,
    trial_candidate,
)
from mindgspo.evaluation.evaluator import Evaluator, ResponseScorer, check_best_metric, start_scorer
from mindgspo.metrics import Timers
from mindgspo.models.adapter_norms import AdapterNorms
from mindgspo.models.model import Model
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import fill_model, held_parameters
from mindgspo.parallel.collectives.host import require_agreement
from mindgspo.parallel.collectives.replicas import Replicas
from mindgspo.parallel.ops.device import takes_packed
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import heartbeat, runtime
from mindgspo.parallel.platform.cluster import (
    reference_place,
    scoring_place,
    start_device,
    text_for_all,
    train_place,
)
from mindgspo.rewards import Scorer
from mindgspo.rollout.answer_log import AnswerLog
from mindgspo.rollout.player import OpenEnvironment, open_environment
from mindgspo.rollout.sizes import rollout_sizes
from mindgspo.rollout.trace import SamplerForm
from mindgspo.rollout.weight_transfer import ServedWeights
from mindgspo.swap.states import Holding
from mindgspo.swap.swap import open_swap
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.trainer.batches import batch_layout
from mindgspo.trainer.checkpoints import JSONState, Stateful
from mindgspo.trainer.dynamic_sampling import LeftoverBuffer
from mindgspo.trainer.exact_log_probs import ExactLogProbs, where_they_part
from mindgspo.trainer.metrics import Speed, StepReport
from mindgspo.trainer.policies import PolicyScores, ReferencePolicy
from mindgspo.trainer.principal_parts import PrincipalParts
from mindgspo.trainer.profiling import MindSporeCollector, PhaseProfiler
from mindgspo.trainer.resume_checks import fingerprints, rows_digest
from mindgspo.trainer.routing_transfer import RoutingTransfer
from mindgspo.trainer.schedules import build_generation
from mindgspo.trainer.step import Trainer, WeightSync
from mindgspo.trainer.teachers import build_teachers
from mindgspo.trainer.updates import UpdateGuard
from mindgspo.trainer.validation import Validation
from mindgspo.trainer.warmup import Warmup, supervised_sample
from mindgspo.types import Prompt

if TYPE_CHECKING:
    from mindgspo.rollout.http_service import HTTPService


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Parts of a run; `scorer`, the environment's player, `service` and `served` have to be closed."""

    tokenizer: Tokenizer
    train_set: Sequence[Prompt]
    """Training prompts by index, those of all sources."""
    source_rows: Sequence[PromptDataset]
    """Rows of each source of data.train."""
    scorer: Scorer
    """Owns the worker processes of the reward functions."""
    environment: OpenEnvironment | None
    """Owns those of the environment, if there is one."""
    service: HTTPService | None
    """Connection to the servers that generate, on rank 0 if there are any."""
    served: ServedWeights | None
    """Their weights, on rank 0."""
    trainer: Trainer
    validation: Validation
    profiler: PhaseProfiler
    stateful: Mapping[str, Stateful]
    """Contents of checkpoints besides weights and optimizer, by name."""
    inputs: Mapping[str, Any]
    """Fingerprints of everything the run learns from."""


def build_experiment(
    config: ExperimentConfig,
    *,
    data_dir: Path,
    failures_dir: Path,
    swap_dir: Path,
    new_run: bool = True,
    only_warm_up: bool = False,
) -> Experiment:
    """Build all parts of a run, with initial weights.

    swap_dir: where evicted memory waits on CPU, unless swap.path names a folder. data_dir: where raw data sets are
    prepared; they are reused if nothing changed. new_run: data that a start with other settings left there is moved
    aside; a resumed run rejects it.
    """
    start_device(config)
    progress.enter_phase("data")
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    scorer = start_scorer(config.reward, scoring_place(config))
    environment, tools = None, ()
    if config.environment is not None:
        environment = open_environment(config.environment, tokenizer, on_answer=heartbeat.tick)
        if not environment.is_deterministic:
            answers = AnswerLog(failures_dir.with_name("answers"), rank=runtime.rank(), new_run=new_run)
            environment = replace(environment, answers=answers)
        tools = environment.tools
    names = config.data.train_names
    folders = [data_dir / "train" / name for name in names] or [data_dir / "train"]
    source_rows = [
        open_checked_dataset(config, source, tokenizer, scorer, folder, seed=config.seed, new_run=new_run, tools=tools)
        for source, folder in zip(config.data.train_sources, folders, strict=True)
    ]
    num_rows = [len(rows) for rows in source_rows]
    train_set = training_prompts(source_rows, names)
    eval_sets = open_eval_sets(config, tokenizer, scorer, data_dir / "eval", new_run=new_run, tools=tools)
    check_best_metric(config.eval, eval_sets, names_sets=config.data.names_eval_sets)
    check_distinct_prompts(config, *num_rows)
    if not only_warm_up:
        check_curriculum(config, *num_rows)
    if scoring_place(config).is_replica_leader:
        trial_rows = [row for rows in source_rows for row in itertools.islice(rows, NUM_TRIAL_ROWS)]
        if environment is None:
            scorer.try_out([trial_candidate(prompt, tokenizer) for prompt in trial_rows])
        else:
            environment.player.try_out(trial_rows)
    train_digest = rows_digest(train_set)
    total_steps = 0 if only_warm_up else planned_steps(config, len(train_set))
    assert total_steps is not None
    if not only_warm_up:
        check_profile(config.profile, world_size=config.plans.train.world_size, num_steps=total_steps)
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
    progress.enter_phase("build")
    place = train_place(config)
    model = build_trained_model(config, place)
    temperature, reward_weights = config.rollout.temperature, config.reward.weights
    assert reward_weights is not None, "config is not resolved"
    # The experts that the trainer's graphs chose: to be replayed, or compared with the recorded ones.
    replay, records = config.algorithm.router_replay, bool(config.rollout.record_experts)
    returns_routing = records or replay == "old"
    old_log_probs = resolved_old_log_probs(config, model)
    updater = build_updater(config, model)
    base = json.loads(text_for_all(lambda: json.dumps(base_record(config.model, config.seed))))
    fill_model(model, config.model, config.seed, base=None if base is None else base_digest(base))
    # Before any graph is compiled, and part by part: on CPU a parameter that is swapped gets memory of its own.
    swap = open_swap(config.swap, swap_dir)
    begins_with_parts = config.model.lora is not None and config.model.lora.init == "pissa"
    parts = PrincipalParts(model, config.model, config.seed, swap) if begins_with_parts else None
    swap.register(Holding.ACTOR_WEIGHTS, held_parameters(model))
    section = config.data.curriculum
    curriculum = None if section is None else Curriculum(section, len(train_set))
    stream = prompt_order(config, num_rows, curriculum)
    generation = build_generation(config, model, tokenizer, swap, train_set, stream, total_steps, environment, base)
    reference, frozen = None, ()
    if config.algorithm.kl.placement != "none":
        reference = ReferencePolicy(
            config.reference_model,
            reference_place(config),
            temperature=temperature,
            changes=config.algorithm.kl.reference,
            reshard=config.reshard,
            swap=swap,
            base_of=model if config.shares_base else None,
        )
        frozen = reference.parameters
    teachers = build_teachers(config, tokenizer, place.rank)
    if teachers is not None:
        frozen += teachers.parameters
    if frozen:
        swap.register(Holding.REFERENCE_WEIGHTS, frozen)
    swap.register(Holding.GRADIENTS, updater.scratch, keeps_content=False, is_zero=lambda: updater.gradients_are_zero)
    swap.register(Holding.MOMENTS, updater.moments)
    routing = RoutingTransfer(place, config.model) if records or replay == "old" else None
    response_scorer = ResponseScorer(scorer, tokenizer, Replicas(scoring_place(config)))
    on_card = config.device == "Ascend" and not runtime.is_emulated()
    profiler = PhaseProfiler(
        config.profile, failures_dir.parent, collector=MindSporeCollector(runtime.rank()) if on_card else None
    )
    timers = Timers(on_enter=partial(_stage_begins, profiler), on_exit=partial(_stage_ends, profiler))
    leftovers = LeftoverBuffer(
        config.algorithm.filter_groups.keep_surplus_steps, train_set, routing if records else None
    )
    layout = batch_layout(config, pad_id=tokenizer.pad_id)
    policy_scorer = PolicyScorer(
        model, temperature=temperature, replays_experts=replay == "rollout", returns_routing=returns_routing
    )
    trainer = Trainer(
        take_prompts=generation.take_prompts,
        engine=generation.engine,
        reward=response_scorer,
        scorer=PolicyScores(
            policy=model,
            scorer=policy_scorer,
            sharp_scorer=PolicyScorer(model, temperature=temperature / 2, replays_experts=replay == "rollout")
            if config.algorithm.advantage.estimator == "optimal_token_baseline"
            else None,
            old_log_probs=old_log_probs,
            reference=reference,
            routing=routing,
            records_experts=records,
            replays_old=replay == "old",
        ),
        updater=updater,
        weights=WeightSync(engine=generation.engine, swap=swap),
        algorithm=config.algorithm,
        rollout=config.rollout,
        settings=config.trainer,
        optimizer=config.optimizer,
        reward_functions=config.reward.functions,
        reward_weights=reward_weights,
        seed=config.seed,
        layout=layout,
        model=model,
        total_steps=total_steps,
        kl=KLController(config.algorithm.kl),
        leftovers=leftovers,
        guard=UpdateGuard(settings=config.trainer, failures_dir=failures_dir),
        report=StepReport(
            algorithm=config.algorithm,
            rollout=config.rollout,
            settings=config.trainer,
            layout=layout,
            speed=Speed.of(config.model, config.plans.train, config.logging.peak_tflops),
            timers=timers,
            fed=generation.fed,
            stream=stream,
            leftovers=leftovers,
            scores_old=old_log_probs == "recompute",
            transfer=generation.transfer,
            curriculum=curriculum,
            first_router=config.model.expert_layers.start,
        ),
        dumps_dir=failures_dir.with_name("dumps"),
        timers=timers,
        swap=swap,
        adapters=None if config.model.lora is None else AdapterNorms(model),
        teachers=teachers,
        curriculum=curriculum,
        exact=build_exact_log_probs(config, policy_scorer.policy) if config.trainer.require_exact_logprobs else None,
    )
    validation = Validation(
        Evaluator(
            generation.engine,
            response_scorer,
            config.eval,
            max_new_tokens=config.rollout.max_new_tokens,
            seed=config.seed,
            names_sets=config.data.names_eval_sets,
            swap=swap,
        ),
        eval_sets,
        config.eval,
        timers=trainer.timers,
        decode=tokenizer.decode,
    )
    return Experiment(
        tokenizer=tokenizer,
        train_set=train_set,
        source_rows=source_rows,
        scorer=scorer,
        environment=environment,
        service=generation.service,
        served=generation.served,
        trainer=trainer,
        validation=validation,
        profiler=profiler,
        stateful=stateful_parts(
            trainer, stream, validation, None if environment is None else environment.answers, parts
        ),
        inputs=fingerprints(config, tokenizer, train_set, digest=train_digest, base=base),
    )


def prompt_order(config: ExperimentConfig, num_rows: Sequence[int], curriculum: Curriculum | None) -> PromptOrder:
    """The order of training prompts. num_rows: of each source of data.train."""
    passes_over = None if curriculum is None else curriculum.passes_over
    if mixture := config.data.mixture(num_rows):
        return MixtureStream(mixture, config.seed, config.data.shuffle, passes_over=passes_over)
    return PromptStream(num_rows[0], config.seed, config.data.shuffle, passes_over=passes_over)


def build_updater(config: ExperimentConfig, model: Model) -> Updater:
    """Build the updater of an experiment's model."""
    place, replay, rate = model.place, config.algorithm.router_replay, config.optimizer.router_bias_update_rate
    # If nothing is scored, the updates report the entropy, provided that it costs next to nothing.
    is_free = resolved_old_log_probs(config, model) == "sampler" and takes_packed(model)
    return Updater(
        PolicyLogProbs(
            model,
            temperature=config.rollout.temperature,
            with_entropy=config.algorithm.entropy_coef > 0 or is_free,
            replays_experts=replay != "none",
            # Only a cell with one output can be recomputed in the backward pass.
            returns_routing=(bool(config.rollout.record_experts) or replay == "old" or (rate > 0 and replay == "none"))
            and place.recompute == "none",
            scores_ids=config.algorithm.teacher_top_k > 0,
        ),
        build_policy_loss(config.algorithm),
        config.optimizer,
        place,
    )


def build_exact_log_probs(config: ExperimentConfig, policy: nn.Cell) -> ExactLogProbs:
    """Build the comparison of `trainer.require_exact_logprobs`. policy: the one that scores."""
    sizes = rollout_sizes(config)
    form = SamplerForm(
        num_slots=sizes.num_slots,
        cache_dtype=sizes.cache_dtype,
        temperature=config.rollout.temperature,
        merges_adapters=merges_adapters(config),
    )
    return ExactLogProbs(every=config.trainer.exact_logprobs_every, locate=partial(where_they_part, policy, form))


def resolved_old_log_probs(config: ExperimentConfig, model: Model) -> Literal["recompute", "sampler"]:
    """Resolve `algorithm.old_log_probs`: the sampler's where they equal the trainer's, bit for bit.

    They do where `config.generation.log_prob_differences` has no objection and every response was drawn with the
    present weights. A correction of the mismatch needs both.
    """
    algorithm = config.algorithm
    if algorithm.old_log_probs != "auto":
        return algorithm.old_log_probs
    is_exact = (
        takes_packed(model)
        and not any(log_prob_differences(config))
        and algorithm.filter_groups.keep_surplus_steps == 0
        and config.staleness == 0
        and algorithm.rollout_correction.level == "none"
        and algorithm.router_replay != "old"
    )
    return "sampler" if is_exact else "recompute"


def stateful_parts(
    trainer: Trainer,
    stream: PromptOrder,
    validation: Validation,
    answers: AnswerLog | None,
    principal_parts: PrincipalParts | None,
) -> dict[str, Stateful]:
    """State that must survive a stop besides weights, optimizer and progress, by its name in checkpoints."""
    baseline, skipped = validation.baseline, trainer.guard.skipped
    fed, reference = trainer.report.fed, trainer.scorer.reference
    parts: dict[str, Stateful] = {
        "stream": JSONState(stream.to_json, stream.load_json),
        "kl": JSONState(trainer.kl.state, trainer.kl.load_state),
        "skipped_updates": JSONState(skipped.state, skipped.load_state),
        "surplus": trainer.leftovers,
        "baseline": JSONState(baseline.state, baseline.load_state),
    }
    if trainer.curriculum is not None:
        parts["curriculum"] = trainer.curriculum
    if fed is not None:
        parts["feed"] = fed
    if reference is not None and not reference.is_frozen:
        parts["reference"] = reference
    if answers is not None:
        parts["answers"] = answers
    if principal_parts is not None:
        parts[PARTS] = principal_parts
    return parts


def _stage_begins(profiler: PhaseProfiler, stage: str) -> None:
    heartbeat.enter_stage(stage)
    progress.enter_phase(stage)
    profiler.enter(stage)
    if stage == "update_actor":
        faults.reach("update.before")


def _stage_ends(profiler: PhaseProfiler, stage: str, start: float, seconds: float) -> None:
    profiler.exit(stage, start, seconds)
    if stage == "update_actor":
        faults.reach("update.after")
    elif stage == "update_weights":
        faults.reach("weights.after")


def build_warmup(
    config: ExperimentConfig, experiment: Experiment, *, data_dir: Path, new_run: bool = True
) -> Warmup | None:
    """Read the inputs of the experiment's warm-up; None if it has none. Raises DataError for a row without a solution
    or with one that is too long."""
    section = config.warmup
    if section is None:
        return None
    tokenizer, check_set = experiment.tokenizer, None
    environment = experiment.environment
    dialogue, tools = (None, ()) if environment is None else (environment.dialogue, environment.tools)
    if section.check is not None:
        check_set = open_checked_dataset(
            config,
            section.check,
            tokenizer,
            experiment.scorer,
            data_dir / "warmup_check",
            seed=HELD_OUT_SEED,
            new_run=new_run,
            tools=tools,
        )
    budget, multiple = config.trainer.max_tokens_per_micro_batch, config.trainer.length_multiple
    longest = None if budget is None else budget // multiple * multiple
    samples = tuple(
        supervised_sample(row, tokenizer, config.model, max_tokens=longest, dialogue=dialogue)
        for row in experiment.train_set
    )
    return Warmup(section=section, samples=samples, check_set=check_set)


# By name, since these backends stand above this package and need packages of their own:
# (section, *, longest_row) -> model.
_MODEL_BACKENDS = {"mindformers": "mindgspo.integrations.mindformers.model:build_mindformers_model"}


def build_trained_model(config: ExperimentConfig, place: Placement) -> Model:
    """The transformer to train, ours or another suite's, by `model.backend`; its parameters have no values yet. Raises
    ConfigError if that suite is not installed."""
    if config.model.backend == "native":
        return build_model(config.model, place)
    module, _, name = _MODEL_BACKENDS[config.model.backend].partition(":")
    build: Callable[..., Model] = getattr(importlib.import_module(module), name)
    return build(config.model, longest_row=longest_row(config))


def longest_row(config: ExperimentConfig) -> int:
    """Token slots of the longest row of any update. A warm-up's solutions may fill the model's positions."""
    longest = config.data.max_prompt_length + config.rollout.max_new_tokens
    if config.warmup is not None:
        longest = max(longest, config.model.max_position_embeddings)
    return round_up(longest, config.trainer.length_multiple)
