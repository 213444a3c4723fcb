"""Builds the rollout engine of an experiment, over all replicas of its infer plan or over completion servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from mindspore import Parameter

from mindgspo.config import ExperimentConfig, ParallelPlan
from mindgspo.config.generation import generating_model, merges_adapters, reads_trained_weights
from mindgspo.models.model import Model
from mindgspo.models.policy import build_model
from mindgspo.models.transformer import Transformer
from mindgspo.models.weights import hold_in_compute_type, share_parameters
from mindgspo.parallel.collectives.replicas import Arrays, Replicas
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import infer_place, is_first
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.local_service import EpisodeEngine
from mindgspo.rollout.player import OpenEnvironment
from mindgspo.rollout.protocol import Rollout, RolloutCounters, RolloutEngine, SamplingSettings
from mindgspo.rollout.service import ServiceEngine
from mindgspo.rollout.sizes import rollout_sizes
from mindgspo.rollout.weight_transfer import WeightTransfer
from mindgspo.swap.swap import Swap
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Episode, FinishReason, Prompt, Response

_REASONS = tuple(FinishReason)
_COUNTERS = tuple(field.name for field in fields(RolloutCounters))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine and the memory that it uses."""

    engine: RolloutEngine
    model: Model
    """The model whose parameters the engine reads."""
    cache: tuple[Parameter, ...]
    """Keys and values."""
    transfer: WeightTransfer | None = None
    """Fills the model, where it is not the trained one."""


def build_engine(
    config: ExperimentConfig,
    trained: Model,
    tokenizer: Tokenizer,
    swap: Swap,
    environment: OpenEnvironment | None = None,
) -> BuiltEngine:
    """Build an engine on the trained model's own parameters where both plans hold them alike, else on a model of its
    own that the trained weights are transferred to. environment: the experiment's, where it has one."""
    place = infer_place(config)
    if reads_trained_weights(config):
        assert isinstance(trained, Transformer), "only our own model generates"
        generating = trained
        if trained.place.plan.use_seq_parallel:  # every rank decodes all sequences
            generating = build_model(config.model, place)
            share_parameters(generating, trained, but=())
        native = native_engine(config, generating, tokenizer)
        own = _with_environment(native, tokenizer, environment, place)
        engine = own if place.plan.world_size == 1 else ReplicatedEngine(own, place, lambda version: None)
        return BuiltEngine(engine=engine, model=trained, cache=native.cache)
    section = generating_model(config)
    model = build_model(section, place)
    hold_in_compute_type(model)
    native = native_engine(config, model, tokenizer)
    transfer = WeightTransfer(
        trained, model, section, config.reshard, swap.reshard_step, merges=section.lora != config.model.lora
    )
    own = _with_environment(native, tokenizer, environment, place)
    engine = ReplicatedEngine(own, place, transfer.push)
    return BuiltEngine(engine=engine, model=model, cache=native.cache, transfer=transfer)


def _with_environment(
    native: NativeEngine, tokenizer: Tokenizer, environment: OpenEnvironment | None, place: Placement
) -> RolloutEngine:
    """The engine that plays episodes where there is an environment, else the engine itself."""
    return native if environment is None else EpisodeEngine(native, environment, tokenizer, place)


def native_engine(config: ExperimentConfig, model: Transformer, tokenizer: Tokenizer) -> NativeEngine:
    """Build the engine of one replica on the parameters of `model`."""
    rollout, sizes = config.rollout, rollout_sizes(config)
    return NativeEngine(
        model,
        eos_ids=tokenizer.eos_ids,
        num_slots=sizes.num_slots,
        prefill_width=sizes.prefill_width,
        max_prompt_length=config.data.max_prompt_length,
        max_new_tokens=rollout.max_new_tokens,
        length_multiple=config.trainer.length_multiple,
        num_blocks=sizes.num_blocks,
        tokens_per_sync=sizes.tokens_per_sync,
        cache_dtype=sizes.cache_dtype,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        records_experts=bool(rollout.record_experts),
        merges_adapters=model.config.lora is not None and merges_adapters(config),
    )


def remote_engine(engine: ServiceEngine | None, bring_weights: Callable[[int], None]) -> RolloutEngine:
    """Build an engine on all ranks around that of rank 0, which asks completion servers. engine: None on the other
    ranks. bring_weights: see `ReplicatedEngine`."""
    place = Placement(plan=ParallelPlan(model_parallel=runtime.world_size()), rank=runtime.rank())
    assert (engine is not None) == is_first()
    return ReplicatedEngine(engine or _SilentEngine(), place, bring_weights)


class _SilentEngine:
    """Takes the place of an engine on ranks that get all responses from rank 0."""

    def load_weights(self, version: int) -> None:
        """Do nothing."""

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """Return no responses."""
        return Rollout(responses=(), counters=RolloutCounters())


class ReplicatedEngine:
    """Implements `RolloutEngine` over all replicas of a plan: each answers its share of the prompts, and every rank
    gets all responses. The ranks of one model-parallel group run one engine together.

    engine: this rank's own. bring_weights: called with the version on all ranks at once; it fills the parameters of the
    engine's model.
    """

    def __init__(self, engine: RolloutEngine, place: Placement, bring_weights: Callable[[int], None]) -> None:
        self._engine, self._bring_weights = engine, bring_weights
        self._replicas = Replicas(place)

    def load_weights(self, version: int) -> None:
        """Transfer the trained weights, then stamp them."""
        self._bring_weights(version)
        self._engine.load_weights(version)

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`. The responses do not depend on the number of replicas; their routing stays on the rank
        that speaks for the replica."""
        share = self._replicas.own(prompts)
        rollout = Rollout(responses=(), counters=RolloutCounters())
        if share:
            rollout = self._engine.generate(share, settings, weight_version=weight_version)
        groups = self._replicas.collect([_packed(group) for group in rollout.responses], num_items=len(prompts))
        counters = self._replicas.collect_each((np.array(astuple(rollout.counters), np.int64),))
        own: dict[int, tuple[Response, ...]] = {}
        if self._replicas.is_leader:
            own = dict(zip(self._replicas.own(range(len(prompts))), rollout.responses, strict=True))
        return Rollout(
            responses=tuple(
                own.get(number) or _unpacked(arrays, prompt, settings, weight_version)
                for number, (prompt, arrays) in enumerate(zip(prompts, groups, strict=True))
            ),
            counters=RolloutCounters.total(
                RolloutCounters(**dict(zip(_COUNTERS, numbers.tolist(), strict=True))) for (numbers,) in counters
            ),
        )


def _packed(siblings: Sequence[Response]) -> Arrays:
    """Lengths and finish reasons [G], then ids and log-probs of all siblings end to end; their episodes as JSON, only
    if there are any."""
    arrays = (
        np.array([response.ids.size for response in siblings], np.int64),
        np.array([_REASONS.index(response.finish_reason) for response in siblings], np.int64),
        np.concatenate([response.ids for response in siblings]),
        np.concatenate([response.logprobs for response in siblings]),
    )
    episodes = [response.episode and response.episode.to_json() for response in siblings]
    return (*arrays, np.frombuffer(json.dumps(episodes).encode(), np.uint8)) if any(episodes) else arrays


def _unpacked(arrays: Arrays, prompt: Prompt, settings: SamplingSettings, weight_version: int) -> tuple[Response, ...]:
    lengths, reasons, ids, logprobs, *text = arrays
    told = json.loads(text[0].tobytes()) if text else [None] * len(lengths)
    episodes = [None if fields is None else Episode.from_json(fields) for fields in told]
    sampled = [
        length if episode is None else episode.num_sampled for length, episode in zip(lengths, episodes, strict=True)
    ]
    split_ids, split_logprobs = np.split(ids, np.cumsum(lengths)[:-1]), np.split(logprobs, np.cumsum(sampled)[:-1])
    return tuple(
        Response(
            prompt_index=prompt.index,
            sample_index=sample,
            ids=own_ids,
            logprobs=own_logprobs,
            finish_reason=_REASONS[reason],
            temperature=settings.temperature,
            weight_version=weight_version,
            episode=episode,
        )
        for sample, (reason, own_ids, own_logprobs, episode) in enumerate(
            zip(reasons, split_ids, split_logprobs, episodes, strict=True)
        )
    )
