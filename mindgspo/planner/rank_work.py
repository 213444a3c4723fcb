"""The sizes that one rank computes with and the bytes it holds, from the layouts. Pure Python.

Lengths are the longest that the configuration allows. What follows from model and plans alone is cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import prod

from mindgspo.batches.rows import round_up
from mindgspo.config import ExperimentConfig, ModelSection, ParallelPlan
from mindgspo.config.cache import BLOCK, block_bytes, whole_cache_blocks
from mindgspo.config.distillation import TeacherSection
from mindgspo.config.distillation_rules import local_teachers, teacher_model, teacher_plan
from mindgspo.config.generation import generating_model, reads_trained_weights
from mindgspo.models.names import compute_type, parameter_shapes, trained_shapes, trained_type
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.plans.placement import Placement
from mindgspo.reshard.plan import ReshardPlan
from mindgspo.reshard.planner import plan_reshard
from mindgspo.rollout.sizes import rollout_sizes
from mindgspo.swap.states import Holding

FLOAT = 4
"""Bytes of a float32."""
TYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
Sizes = Mapping[str, int]
"""Elements, or bytes, by parameter name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWidths:
    """One rank's part of a model under one plan."""

    layers: int
    context: int
    """Parts of each sequence, of which the rank has one."""
    hidden: int
    query: int
    key_value: int
    """Features of the rank's heads."""
    latents: int
    """Features of latents, before and after their norms, and of keys that are rotated beside them; on every rank."""
    dense_layers: int
    """The layers among them that have no experts; they come first."""
    dense_inner: int
    """Features of SwiGLU in dense layers."""
    inner: int
    """Features of each expert's SwiGLU; 0 if there are none."""
    shared_inner: int
    """Features of that of the shared experts."""
    experts: int
    """Experts on the rank; 0 if there are none."""
    chosen: int
    """Experts per token, of all."""
    sees: Fraction
    """Tokens that come to the rank's experts, as a multiple of those of its model-parallel group."""
    heads: int
    kv_heads: int
    output_rows: int
    """Vocabulary entries of its logits."""
    input_rows: int
    """Vocabulary entries of its input table."""
    is_first: bool
    is_last: bool
    has_biases: bool
    """Whether q, k and v have biases."""
    has_head_norms: bool
    """Whether queries and keys are normed per head."""
    block_norms: int
    """Norms of blocks' outputs in a layer."""
    low: int
    """Features between A and B of all adapters of a layer; 0 without adapters. Every slice of a layer has all."""

    @classmethod
    def of(cls, model: ModelSection, place: Placement) -> RankWidths:
        """The part that `place` computes."""
        assert model.head_dim is not None, "config.rules refuses a width that its heads do not divide"
        kv_heads = place.share(model.num_key_value_heads, units=model.num_key_value_heads)
        heads = place.share(model.num_attention_heads)
        output_rows = place.share(model.rows)
        names, layers = parameter_shapes(model), place.own_layers(model.num_hidden_layers)
        dense = len(range(layers.start, min(layers.stop, model.expert_layers.start)))
        inner = (model.moe_intermediate_size or 0) if dense < len(layers) else 0
        last = f"model.layers.{model.num_hidden_layers - 1}."
        return cls(
            layers=len(layers),
            dense_layers=dense,
            context=place.plan.context_parallel,
            hidden=model.hidden_size,
            query=heads * model.head_dim,
            key_value=kv_heads * model.head_dim,
            latents=0 if model.kv_lora_rank is None else 2 * (sum(model.latent_dims) + (model.q_lora_rank or 0)),
            dense_inner=model.intermediate_size // place.model_parallel,
            inner=inner // place.plan.expert_slices,
            shared_inner=model.n_shared_experts * inner // place.model_parallel,
            experts=len(place.own_experts(model.num_experts or 0)) if inner else 0,
            chosen=model.num_experts_per_tok or 0,
            sees=Fraction(place.plan.expert_block, place.model_parallel),
            heads=heads,
            kv_heads=kv_heads,
            output_rows=output_rows,
            input_rows=model.rows if place.plan.vocab_emb_dp else output_rows,
            is_first=place.is_first_stage,
            is_last=place.is_last_stage,
            has_biases="model.layers.0.self_attn.q_proj.bias" in names,
            has_head_norms="model.layers.0.self_attn.q_norm.weight" in names,
            block_norms=2 * ("model.layers.0.post_mlp_layernorm.weight" in names),
            low=sum(
                shape[-2] for name, shape in names.items() if name.startswith(last) and name.endswith(".lora_A.weight")
            ),
        )

    def feed_forward(self, tokens: int, *, dense: bool = False) -> FeedForwardSizes:
        """Sizes of one feed-forward block for so many tokens, of those with experts if there are any. dense: of a layer
        without."""
        if dense or not self.experts:
            return FeedForwardSizes(inner=tokens * self.dense_inner, widest=tokens * self.dense_inner, routed=0)
        slots = round(tokens * self.sees) * self.chosen
        routed, shared = slots * self.inner, tokens * self.shared_inner
        return FeedForwardSizes(inner=routed + shared, widest=max(routed, shared), routed=slots * self.hidden)

    @property
    def widest_inner(self) -> int:
        """Most features of one SwiGLU on the rank."""
        return max(self.inner, self.shared_inner, self.dense_inner if self.dense_layers else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSizes:
    """Elements of tensors."""

    inner: int
    """Inner features: of the experts and, in a tensor of their own, of shared ones."""
    widest: int
    """The larger one of these tensors."""
    routed: int
    """One tensor of hidden states before or after the experts; 0 if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """The sizes of one rank's work, with the longest samples that are allowed."""

    config: ExperimentConfig
    rank: int
    train: RankWidths
    infer: RankWidths
    reference: RankWidths
    rows: int
    row_length: int
    """Rows of a micro-batch and their token slots."""
    responses: int
    """Response-token slots per row."""
    in_flight: int
    """Micro-batches between their forward and backward pass on this rank."""
    prompts: int
    prompt_length: int
    """Rows of one prefill and their token slots."""
    slots: int
    """Most sequences decoded at once."""
    columns: int
    """Tokens of the longest sequence."""
    blocks: int
    cache_dtype: str
    """Blocks of the key/value cache and their type."""

    @classmethod
    def of(cls, config: ExperimentConfig, rank: int) -> RankWork:
        """The work of a rank, sized as `trainer.build` sizes its parts."""
        plans = config.plans
        train, infer, reference = (
            Placement(plan=plan, rank=rank) for plan in (plans.train, plans.infer, plans.scoring)
        )
        trainer, rollout = config.trainer, config.rollout
        multiple, sizes = trainer.length_multiple, rollout_sizes(config)
        row_length = round_up(config.data.max_prompt_length + rollout.max_new_tokens, multiple)
        return cls(
            config=config,
            rank=rank,
            train=RankWidths.of(config.model, train),
            infer=RankWidths.of(config.model, infer),
            reference=RankWidths.of(config.model, reference),
            rows=trainer.samples_per_micro_batch or (trainer.max_tokens_per_micro_batch or 0) // row_length,
            row_length=row_length,
            responses=round_up(rollout.max_new_tokens, multiple),
            in_flight=train.plan.pipeline_stage - train.at.stage,
            prompts=sizes.prefill_width,
            prompt_length=sizes.prompt_columns,
            slots=sizes.num_slots,
            columns=sizes.cache_columns,
            blocks=sizes.num_blocks,
            cache_dtype=sizes.cache_dtype,
        )

    @property
    def prefills(self) -> tuple[tuple[int, int], ...]:
        """Rows and their length of each kind of prefill: prompts, and one sequence of any length after a
        pre-emption."""
        may_preempt = self.blocks < whole_cache_blocks(self.config)
        again = ((1, round_up(self.columns, self.config.trainer.length_multiple)),) if may_preempt else ()
        return ((self.prompts, self.prompt_length), *again)

    @property
    def plan(self) -> ParallelPlan:
        """The training plan."""
        return self.config.plans.train

    def tokens(self, width: RankWidths) -> int:
        """Tokens of a micro-batch on the rank, padding included."""
        whole = self.config.trainer.max_tokens_per_micro_batch or self.rows * self.row_length
        return -(-whole // width.context)

    def scored_tokens(self, width: RankWidths) -> int:
        """Response-token slots of a micro-batch, which reach the log-prob head; of a part of its tokens as many as
        there may be. Under a token budget that does not say how many of its tokens are prompts, all of them."""
        whole = self.config.trainer.max_tokens_per_micro_batch or self.rows * self.responses
        return min(whole, self.tokens(width))

    @property
    def scoring(self) -> tuple[tuple[RankWork, RankWidths], ...]:
        """Work and widths of the models that score on the cards: of the trained policy, unless the sampler's log-probs
        stand for its and no advantage asks for more, of the reference if there is one, and of teachers."""
        algorithm = self.config.algorithm
        needs_score = algorithm.advantage.estimator == "optimal_token_baseline"
        needs_score |= self.config.trainer.require_exact_logprobs
        is_scored = algorithm.old_log_probs != "sampler" or needs_score
        trained = ((self, self.train),) if is_scored else ()
        reference = () if algorithm.kl.placement == "none" else ((self, self.reference),)
        return (*trained, *reference, *map(self._teaching, local_teachers(self.config)))

    def _teaching(self, teacher: TeacherSection) -> tuple[RankWork, RankWidths]:
        """The same micro-batches, and a model of other sizes."""
        model, plan = teacher_model(teacher, self.config.model), teacher_plan(teacher, self.config)
        config = self.config.model_copy(update={"model": model})
        return replace(self, config=config), RankWidths.of(model, Placement(plan=plan, rank=self.rank))


def largest_tensors(work: RankWork) -> dict[str, int]:
    """Elements of the largest tensors that the rank's graphs compute, by what they hold."""
    tokens = work.tokens(work.train)
    trained = work.train.feed_forward(tokens)
    prefilled = work.infer.feed_forward(max(rows * length for rows, length in work.prefills))
    return {
        "gate and up of a micro-batch": 2 * trained.widest,
        "hidden states of a micro-batch": max(trained.routed, tokens * work.train.hidden),
        "gate and up of a prefill": 2 * prefilled.widest,
        "a layer's keys in the cache": work.blocks * BLOCK * work.infer.key_value,
        "logits of a decode step": work.slots * work.config.model.rows,
    }


def log_odds_elements(work: RankWork, width: RankWidths, chunk_bytes: int) -> int:
    """Elements that the update works with for the likeliest tokens of a teacher: ids and log-probs of teacher and
    policy by prediction and by response token, the last with gradients, and a chunk of `models.log_odds`."""
    each = work.config.algorithm.teacher_top_k * work.scored_tokens(width)
    return 6 * each + min(3 * each * width.hidden, chunk_bytes // FLOAT)


def held_bytes(work: RankWork) -> dict[Holding, int]:
    """Bytes of every holding on the rank; memory shared by two holdings counts for the trained weights."""
    config, plans = work.config, work.config.plans
    own = sum(trained_sizes(config.model, plans.train, work.rank).values())
    rows = moment_sizes(config.model, plans.train, work.rank)
    moments = FLOAT * sum(rows.values())
    rollout = 0
    if not reads_trained_weights(config):
        rollout = sum(generating_bytes(config, work.rank).values())
    reference = 0
    if config.algorithm.kl.placement != "none":
        held = built_bytes(config.reference_model, plans.scoring, work.rank)
        reference = sum(size for name, size in held.items() if not config.shares_base or name in rows)
    reference += sum(_teacher_bytes(config, rank=work.rank))
    return {
        Holding.ACTOR_WEIGHTS: sum(_trained_bytes(config.model, plans.train, work.rank, config.device).values())
        + FLOAT * _shared_out(work),
        Holding.GRADIENTS: FLOAT * (own + _shared_out(work)),
        Holding.MOMENTS: 2 * moments,
        Holding.REFERENCE_WEIGHTS: reference,
        Holding.ROLLOUT_WEIGHTS: rollout,
        Holding.KV_CACHE: work.blocks * block_bytes(config),
    }


def _teacher_bytes(config: ExperimentConfig, *, rank: int) -> Iterator[int]:
    """Bytes of each teacher's weights on the rank, in their compute types."""
    for teacher in local_teachers(config):
        model, plan = teacher_model(teacher, config.model), teacher_plan(teacher, config)
        sizes = weight_sizes(model, plan, rank)
        yield sum(size * _generating_item(model, name) for name, size in sizes.items())


def frozen_bytes(work: RankWork) -> int:
    """The part of the trained policy's weights on the rank that only adapters change; 0 without adapters."""
    model, plan = work.config.model, work.plan
    if model.lora is None:
        return 0
    trained = moment_sizes(model, plan, work.rank)
    held = _trained_bytes(model, plan, work.rank, work.config.device)
    return sum(size for name, size in held.items() if name not in trained)


def _shared_out(work: RankWork) -> int:
    """Elements of the rank's rows of weights that optimizer_shard has it update alone: float32 masters, and their
    gradients, beside the whole ones (`models.weights.hold_masters`, `algorithms.optim.over_ranks`)."""
    model, plan = work.config.model, work.plan
    whole = weight_sizes(model, plan, work.rank)
    return sum(size for name, size in moment_sizes(model, plan, work.rank).items() if size < whole[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardBytes:
    """Bytes of a reshard on one rank."""

    bucket: int
    """The largest buffer that it sends or receives."""
    step: int
    """The largest size of one step's parameters, old and new slices together."""


def reshard_bytes(work: RankWork) -> ReshardBytes:
    """Buffers of the transfer of weights to generation; 0 if both plans share one set."""
    config = work.config
    if reads_trained_weights(config):
        return ReshardBytes(bucket=0, step=0)
    plans, bucket_bytes = config.plans, config.reshard.bucket_mb << 20
    return _reshard(config.model, plans.train, plans.infer, bucket_bytes, work.rank, config.device)


def generating_bytes(config: ExperimentConfig, rank: int) -> Sizes:
    """Bytes by name of the weights that generation reads, on a rank."""
    if reads_trained_weights(config):
        return built_bytes(config.model, config.plans.infer, rank)
    sizes = weight_sizes(generating_model(config), config.plans.infer, rank)
    return {name: size * _generating_item(config.model, name) for name, size in sizes.items()}


def built_bytes(model: ModelSection, plan: ParallelPlan, rank: int) -> Sizes:
    """Bytes by name of the weights of `models.policy.build_model`: float32, and the compute type of what adapters leave
    frozen."""
    sizes, trained = weight_sizes(model, plan, rank), trained_shapes(model)
    return {name: size * (FLOAT if name in trained else _generating_item(model, name)) for name, size in sizes.items()}


@lru_cache(maxsize=1024)
def _trained_bytes(model: ModelSection, plan: ParallelPlan, rank: int, device: str) -> Sizes:
    """Bytes by name of the policy's weights that a rank computes with, without float32 masters."""
    sizes, rows, shapes = weight_sizes(model, plan, rank), moment_sizes(model, plan, rank), parameter_shapes(model)
    rounded = {name for name in rows if device == "Ascend" and rows[name] < sizes[name]}
    dtypes = {name: trained_type(name, shapes[name], model.dtype) for name in rounded}
    return {**built_bytes(model, plan, rank), **{name: sizes[name] * TYPE_BYTES[dtypes[name]] for name in rounded}}


def _generating_item(model: ModelSection, name: str) -> int:
    return TYPE_BYTES[compute_type(name, model.dtype)]


def whole_bytes(model: ModelSection) -> int:
    """All weights of the model, float32."""
    return FLOAT * sum(prod(shape) for shape in parameter_shapes(model).values())


@lru_cache(maxsize=1024)
def weight_sizes(model: ModelSection, plan: ParallelPlan, rank: int) -> Sizes:
    """Elements of the rank's slices of the weights under a plan."""
    return _sizes(_weight_layouts(model, plan), rank)


@lru_cache(maxsize=1024)
def moment_sizes(model: ModelSection, plan: ParallelPlan, rank: int) -> Sizes:
    """Elements of one moment of each trained weight on the rank: of its slice, or of its rows of that."""
    return _sizes(moment_layouts(trained_shapes(model), model, plan), rank)


def trained_sizes(model: ModelSection, plan: ParallelPlan, rank: int) -> Sizes:
    """The part of `weight_sizes` that gets gradients."""
    sizes = weight_sizes(model, plan, rank)
    return {name: sizes[name] for name in moment_sizes(model, plan, rank)}


def trained_bytes(model: ModelSection) -> int:
    """All weights of the model that are trained, float32."""
    return FLOAT * sum(prod(shape) for shape in trained_shapes(model).values())


@lru_cache(maxsize=64)
def _weight_layouts(model: ModelSection, plan: ParallelPlan) -> dict[str, Layout]:
    return parameter_layouts(parameter_shapes(model), model, plan)


def _sizes(layouts: Mapping[str, Layout], rank: int) -> Sizes:
    return {name: prod(layout.slice_shape) for name, layout in layouts.items() if rank in layout.rank_list}


@lru_cache(maxsize=1024)
def _reshard(
    model: ModelSection, train: ParallelPlan, infer: ParallelPlan, bucket_bytes: int, rank: int, device: str
) -> ReshardBytes:
    plan = _reshard_plan(model, train, infer, bucket_bytes)
    old, new = _trained_bytes(model, train, rank, device), weight_sizes(model, infer, rank)
    steps = [
        sum(old.get(name, 0) + _generating_item(model, name) * new.get(name, 0) for name in step.parameters)
        for step in plan.steps
    ]
    buckets = [bucket.num_bytes for bucket in plan.buckets() if rank in (bucket.sender, *bucket.receivers)]
    return ReshardBytes(bucket=max(buckets, default=0), step=max(steps, default=0))


@lru_cache(maxsize=64)
def _reshard_plan(model: ModelSection, train: ParallelPlan, infer: ParallelPlan, bucket_bytes: int) -> ReshardPlan:
    items = {name: _generating_item(model, name) for name in parameter_shapes(model)}
    return plan_reshard(
        _weight_layouts(model, train), _weight_layouts(model, infer), bucket_bytes=bucket_bytes, item_bytes=items
    )
