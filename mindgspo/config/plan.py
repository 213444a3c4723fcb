"""The parallel plan of one graph, and its rules that need no device: sizes, products, divisibility."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mindgspo.config.section import Section, is_changed
from mindgspo.text import divisors, either, nearest

if TYPE_CHECKING:
    from mindgspo.config.model import ModelSection

_NOT_IN_GENERATION = {
    "optimizer_shard": "there is no optimizer while generating",
    "overlap_grad_reduce": "there are no gradients while generating",
    "micro_batch_num": "there are no micro-batches while generating",
    "recompute": "there is no backward pass while generating",
    "use_seq_parallel": "decoding takes one token per sequence",
}
_OF_EXPERTS = ("expert_parallel", "expert_tensor_parallel")
_NOT_IN_SCORING = {
    "optimizer_shard": "there is no optimizer while scoring",
    "overlap_grad_reduce": "there are no gradients while scoring",
    "micro_batch_num": "without a backward pass micro-batches follow each other through the stages as they are",
    "recompute": "there is no backward pass while scoring",
}


class ParallelPlan(Section):
    """The spread of one graph over cards, in MindSpore's words. The default is one process."""

    if TYPE_CHECKING:  # pydantic gives frozen sections a hash, which type checkers do not know

        def __hash__(self) -> int: ...

    data_parallel: int = Field(default=1, ge=1)
    """Replicas of the model, each with its own share of the batch."""
    model_parallel: int = Field(default=1, ge=1)
    """Cards that split every weight matrix (tensor parallelism); divides the attention heads."""
    pipeline_stage: int = Field(default=1, ge=1)
    """Groups of consecutive layers on different cards; if they do not divide the layers, the last groups have one layer
    fewer."""
    context_parallel: int = Field(default=1, ge=1)
    """Cards that split the tokens of each micro-batch; around attention they exchange tokens for heads (Ulysses,
    arXiv 2309.14509). Divides the attention heads of each model_parallel slice. Training and scoring only."""
    expert_parallel: int = Field(default=1, ge=1)
    """Parts into which the experts of a mixture are split; expert_parallel x expert_tensor_parallel consecutive ranks
    of a stage have all of them. Taken from data_parallel and model_parallel, so it does not count in `world_size`."""
    expert_tensor_parallel: int | None = Field(default=None, ge=1)
    """Ranks that split the features of each expert (verl: expert_tensor_parallel_size): model_parallel, the default, or
    1: then experts are whole, and expert_parallel splits them over model_parallel, too."""
    micro_batch_num: int = Field(default=1, ge=1)
    """With pipeline_stage: the number of micro-batches in a replica's mini-batch is a multiple of this; at least
    `pipeline_stage`, or stages stay idle. More means less idle time: at most `pipeline_stage` are in flight."""
    use_seq_parallel: bool = False
    """Split activations along the sequence between tensor-parallel regions: norms and residuals take 1/model_parallel
    of the memory. Training and scoring only."""
    optimizer_shard: bool = False
    """Split optimizer state over data_parallel x context_parallel, whose ranks hold the same weights (MindSpore's
    enable_parallel_optimizer)."""
    overlap_grad_reduce: bool = False
    """Add gradients up over the ranks inside the backward graph of an update's last micro-batch, layer by layer, rather
    than in a graph of their own after it (Megatron: overlap_grad_reduce). On Ascend, collectives then run beside the
    rest of the backward pass, for one more graph to compile; results stay the same. Without effect on a CPU."""
    vocab_emb_dp: bool = True
    """Replicate the embedding table instead of splitting it over `model_parallel` (MindFormers' default). If it is not
    set and model.tie_word_embeddings makes the table the output table, which is split, it is split too."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass recomputes instead of keeping them. full: everything inside a decoder layer
    except its input. selective: norms, rotary embedding and SwiGLU, on CPU also the inside of attention; outputs of
    matrix products are kept."""

    cards: str | None = None
    """plans.infer only: cards of this plan alone, e.g. "4-7" or "4,5", if generation does not share those of
    plans.train, which are the first ones. None: the same cards with trainer.schedule=sync, else the ones after them."""

    @property
    def world_size(self) -> int:
        """Number of processes, one per card."""
        return self.data_parallel * self.model_parallel * self.pipeline_stage * self.context_parallel

    @property
    def token_parts(self) -> int:
        """Parts into which the tokens of all replicas' micro-batches are split; the ranks that have them hold the same
        weights."""
        return self.data_parallel * self.context_parallel

    @property
    def expert_slices(self) -> int:
        """Ranks that split the features of each expert."""
        return self.model_parallel if self.expert_tensor_parallel is None else self.expert_tensor_parallel

    @property
    def expert_block(self) -> int:
        """Consecutive ranks of a stage that have all experts together."""
        return self.expert_parallel * self.expert_slices

    @property
    def couples_replicas(self) -> bool:
        """Whether replicas have experts together, so that all of them compute equally many micro-batches of equal
        shapes."""
        return self.expert_block > self.context_parallel * self.model_parallel

    @property
    def card_numbers(self) -> tuple[int, ...] | None:
        """The numbers that `cards` names, in its order; None if it names none."""
        if self.cards is None:
            return None
        ends = [part.partition("-") for part in self.cards.split(",")]
        return tuple(n for first, _, last in ends for n in range(int(first), int(last or first) + 1))

    def __str__(self) -> str:
        sizes = f"{self.data_parallel} x {self.model_parallel} x {self.pipeline_stage}"
        return sizes if self.context_parallel == 1 else f"{sizes} x context {self.context_parallel}"


def check_train_plan(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    """List everything wrong with the plan at `name` (e.g. "plans.train") for training `model`, one line per problem."""
    problems = [*_common_problems(name, plan, model), *_pipeline_problems(name, plan, model)]
    if plan.optimizer_shard and plan.token_parts == 1:
        problems.append(f"{name}.optimizer_shard: there is one replica, which keeps all moments; remove it")
    if plan.overlap_grad_reduce and plan.token_parts == 1:
        problems.append(f"{name}.overlap_grad_reduce: there is one replica, which has all gradients; remove it")
    return [*problems, *_sequence_problems(name, plan), *_expert_problems(name, plan, model)]


def _sequence_problems(name: str, plan: ParallelPlan) -> list[str]:
    if plan.use_seq_parallel and plan.model_parallel == 1:
        return [f"{name}.use_seq_parallel: model_parallel is 1, so nothing splits the sequence; remove it"]
    return []


def _common_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    problems = _model_parallel_problems(f"{name}.model_parallel", plan, model)
    return problems or _context_problems(f"{name}.context_parallel", plan, model)


def check_infer_plan(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    """List everything wrong with a plan for generation, including entries that mean nothing there, one line per
    problem."""
    problems = _model_parallel_problems(f"{name}.model_parallel", plan, model)
    if plan.context_parallel > 1:
        problems.append(
            f"{name}.context_parallel: {plan.context_parallel}; decoding takes one token per sequence; set it to "
            f"1 and multiply data_parallel or model_parallel by {plan.context_parallel}"
        )
    if plan.pipeline_stage > 1:
        problems.append(
            f"{name}.pipeline_stage: {plan.pipeline_stage}; decoding runs on one stage; set it to 1 and multiply "
            f"data_parallel or model_parallel by {plan.pipeline_stage}"
        )
    problems += experts_in_replica_problems(name, plan, model, "while generating") or _expert_problems(
        name, plan, model
    )
    return [*problems, *_meaningless(name, plan, _NOT_IN_GENERATION)]


def check_reference_plan(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    """List everything wrong with a plan that only scores, including entries that mean nothing there, one line per
    problem."""
    problems = _common_problems(name, plan, model)
    problems += [*_stage_problems(name, plan, model), *_meaningless(name, plan, _NOT_IN_SCORING)]
    return [*problems, *_sequence_problems(name, plan), *_expert_problems(name, plan, model)]


def _meaningless(name: str, plan: ParallelPlan, reasons: Mapping[str, str]) -> list[str]:
    changed = {key: getattr(plan, key) for key in reasons if is_changed(plan, key)}
    return [f"{name}.{key}: {str(value).lower()}; {reasons[key]}; remove it" for key, value in changed.items()]


def check_same_world(train: ParallelPlan, other: ParallelPlan, name: str = "plans.infer") -> list[str]:
    """Both plans share the same cards, so their products must agree. name: of the other one."""
    if train.world_size == other.world_size:
        return []
    sizes = f"plans.train {train} needs {train.world_size} workers, {name} {other} needs {other.world_size}"
    if train.world_size % (other.world_size // other.data_parallel) == 0:
        replicas = train.world_size // (other.world_size // other.data_parallel)
        return [f"{name}: {sizes}; they share the same cards; set {name}.data_parallel={replicas}"]
    return [f"{name}: {sizes}; they share the same cards, so their products must be equal"]


def _model_parallel_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    size = plan.model_parallel
    legal = legal_model_parallel(plan, model)
    if size in legal:
        return []
    sizes = f"{model.num_attention_heads} attention heads, {model.num_key_value_heads} key/value heads, "
    sizes += "".join(f"{inner} {width}, " for inner, width in _cut_inner_sizes(plan, model).items())
    padded = model.model_copy(update={"table_rows": -(-model.vocab_size // size) * size})
    mend = f", or model.table_rows={padded.rows}" if size in legal_model_parallel(plan, padded) else ""
    table = f"vocab_size {model.vocab_size}" if model.table_rows is None else f"table_rows {model.rows}"
    return [
        f"{name}: {size} does not split the model evenly ({sizes}{table}); nearest legal: "
        f"{either(nearest(legal, size))}{mend}"
    ]


def _cut_inner_sizes(plan: ParallelPlan, model: ModelSection) -> dict[str, int]:
    """The part of `ModelSection.inner_sizes` that model_parallel cuts: whole experts are left alone."""
    is_left = model.num_experts is not None and plan.expert_tensor_parallel == 1
    return {name: size for name, size in model.inner_sizes.items() if not (is_left and name == "moe_intermediate_size")}


def _context_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    size, slices = plan.context_parallel, plan.model_parallel
    legal = legal_context_parallel(plan, model)
    if size in legal:
        return []
    of_slices = f" of each of {slices} model_parallel slices" if slices > 1 else ""
    return [
        f"{name}: {size} ranks exchange tokens for heads and do not divide those{of_slices} evenly "
        f"({model.num_attention_heads} attention heads, {model.num_key_value_heads} key/value heads); nearest legal: "
        f"{either(nearest(legal, size))}"
    ]


def legal_context_parallel(plan: ParallelPlan, model: ModelSection) -> list[int]:
    """Into how many parts a plan with this model_parallel can split sequences, ascending. Few key/value heads may be
    shared by several cards, but then evenly."""
    heads = model.num_attention_heads // plan.model_parallel
    kv_heads = max(model.num_key_value_heads // plan.model_parallel, 1)
    return [size for size in divisors(heads) if kv_heads % size == 0 or size % kv_heads == 0]


def legal_model_parallel(plan: ParallelPlan, model: ModelSection) -> list[int]:
    """Into how many slices a plan of these other sizes can cut the model's matrices, ascending."""
    sizes = [size for size in divisors(model.num_attention_heads) if _fits(size, model)]
    return [size for size in sizes if not any(inner % size for inner in _cut_inner_sizes(plan, model).values())]


def _fits(model_parallel: int, model: ModelSection) -> bool:
    """Few key/value heads may be shared by several cards, but then evenly: one size divides the other. The vocabulary
    is always divided over the output table's logits, whether or not the input table is."""
    kv_heads = model.num_key_value_heads
    shares_heads = kv_heads % model_parallel == 0 or model_parallel % kv_heads == 0
    return shares_heads and model.rows % model_parallel == 0


def _expert_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    size, slices, experts = plan.expert_parallel, plan.model_parallel, model.num_experts
    if experts is None:
        given = {key: getattr(plan, key) for key in _OF_EXPERTS if is_changed(plan, key)}
        return [
            f"{name}.{key}: {value}, but {model.architecture} has no experts; remove it" for key, value in given.items()
        ]
    if plan.expert_slices not in (1, slices):
        return [
            f"{name}.expert_tensor_parallel: {plan.expert_slices}; the features of an expert are split over all ranks "
            f"of model_parallel {slices} or not at all; legal: 1 or {slices}"
        ]
    legal = legal_expert_parallel(plan, experts)
    if size in legal:
        return []
    fix = f"nearest legal: {either(nearest(legal, size))}"
    if plan.expert_slices == slices:
        rule = f"must divide {_token_parts(plan)} and the {experts} experts"
        whole = plan.model_copy(update={"expert_tensor_parallel": 1})
        if size in legal_expert_parallel(whole, experts):
            fix += f", or set {name}.expert_tensor_parallel=1, which splits them over model_parallel, too"
    else:
        rule = (
            f"must divide the {plan.token_parts * slices} ranks of a stage ({_token_parts(plan)} x model_parallel "
            f"{slices}) and the {experts} experts, and divide model_parallel or be a multiple of it"
        )
    return [f"{name}.expert_parallel: {size} {rule}; {fix}"]


def _token_parts(plan: ParallelPlan) -> str:
    context = f" x context_parallel {plan.context_parallel}" if plan.context_parallel > 1 else ""
    return f"data_parallel {plan.data_parallel}{context}"


def legal_expert_parallel(plan: ParallelPlan, num_experts: int) -> list[int]:
    """Into how many parts a plan of these other sizes can split the experts, ascending. Where experts are whole, a
    block of ranks that has them all is a run of model_parallel groups or lies within one."""
    slices = plan.model_parallel
    blocks = [slices * groups for groups in divisors(plan.token_parts)]
    if plan.expert_slices == 1:
        blocks = sorted({*blocks, *divisors(slices)})
    sizes = [block // plan.expert_slices for block in blocks]
    return [size for size in sizes if num_experts % size == 0]


def experts_in_replica_problems(name: str, plan: ParallelPlan, model: ModelSection, when: str) -> list[str]:
    """Rules where each process holds its own slices: the ranks of a replica see the same tokens, and their results add
    up."""
    parts, slices, experts = plan.expert_parallel, plan.model_parallel, model.num_experts
    if experts is None:
        return []
    if plan.expert_block != slices:
        split = f", or set them to {slices} and 1" if slices > 1 and experts % slices == 0 else ""
        return [
            f"{name}.expert_parallel: {parts} x expert_tensor_parallel {plan.expert_slices}; {when} the ranks of a "
            f"replica, model_parallel {slices}, have all experts together; leave both out{split}"
        ]
    if experts % parts:
        return [
            f"{name}.expert_parallel: {parts} does not divide the {experts} experts, and {when} the ranks of a "
            f"replica, model_parallel {slices}, split all of them or none; leave it and expert_tensor_parallel out"
        ]
    return []


def _pipeline_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    stages = plan.pipeline_stage
    problems = _stage_problems(name, plan, model)
    if stages > 1 and plan.micro_batch_num < stages:
        problems.append(
            f"{name}.micro_batch_num: {plan.micro_batch_num} is less than pipeline_stage {stages}; "
            f"smallest legal: {stages}"
        )
    if stages == 1 and plan.micro_batch_num > 1:
        problems.append(
            f"{name}.micro_batch_num: {plan.micro_batch_num} micro-batches are in flight between pipeline stages, and "
            "there is one stage; remove it (trainer.samples_per_micro_batch cuts mini-batches)"
        )
    return problems


def _stage_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    stages, layers = plan.pipeline_stage, model.num_hidden_layers
    if stages <= layers:
        return []
    return [f"{name}.pipeline_stage: {stages} is more than the {layers} layers; nearest legal: {layers}"]
