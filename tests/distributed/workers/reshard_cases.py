"""Pairs of plans for reshards over real workers, and the tensors that travel; what `test_reshard_ranks` has them do."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.reshard.plan import ReshardPlan
from mindgspo.reshard.planner import plan_reshard

NUM_WORKERS = 8

MODELS = {
    "untied": ModelSection(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=False),
    # Not everything divides over four replicas: some moments stay whole.
    "tied": ModelSection(vocab_size=40, hidden_size=24, intermediate_size=36, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
    # A quarter of the table does not fit the memory that ranks share.
    "wide": ModelSection(vocab_size=24000, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
}  # fmt: skip

# Zeros and infinities of both signs, the smallest and the largest subnormal, quiet and signalling NaNs with payloads.
PATTERNS = np.array(
    [0, 1 << 31, 0x7F800000, 0xFF800000, 1, 0x807FFFFF, 0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFBFFFFF], np.uint32
)

WHOLE = 16 << 20
"""A bucket that is larger than any model here."""


def plan_of(sizes: str, *, split_table: bool = False, shard: bool = False) -> ParallelPlan:
    """data x model x pipeline."""
    data, model, stages = map(int, sizes.split("x"))
    return ParallelPlan(
        data_parallel=data, model_parallel=model, pipeline_stage=stages, micro_batch_num=stages,
        vocab_emb_dp=not split_table, optimizer_shard=shard,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A reshard. shared: the new slices are the old arrays."""

    name: str
    source: ParallelPlan
    destination: ParallelPlan = field(default_factory=ParallelPlan)
    bucket_bytes: int = 4096
    model: str = "untied"
    moments: bool = False
    shared: bool = False

    def layouts(self, side: str) -> dict[str, Layout]:
        model = MODELS[self.model]
        layouts_of = moment_layouts if self.moments else parameter_layouts
        return layouts_of(weight_shapes(model), model, getattr(self, side))

    def plan(self) -> ReshardPlan:
        """What every rank must have planned."""
        return plan_reshard(self.layouts("source"), self.layouts("destination"), bucket_bytes=self.bucket_bytes)

    def entry(self) -> dict[str, object]:
        """For the worker."""
        plans = {side: getattr(self, side).model_dump() for side in ("source", "destination")}
        return {**vars(self), **plans}


PAIRS = [
    Pair(name="more model parallel", source=plan_of("4x2x1"), destination=plan_of("2x4x1")),
    Pair(name="less model parallel", source=plan_of("1x8x1"), destination=plan_of("4x2x1"), bucket_bytes=256),
    Pair(name="stages to none", source=plan_of("1x4x2"), destination=plan_of("2x4x1"), bucket_bytes=WHOLE),
    Pair(name="none to stages", source=plan_of("2x4x1"), destination=plan_of("2x1x4"), bucket_bytes=1000),
    Pair(name="stages for replicas", source=plan_of("2x4x1"), destination=plan_of("1x4x2")),
    Pair(name="table to whole", source=plan_of("2x4x1", split_table=True), destination=plan_of("2x4x1")),
    Pair(name="table to slices", source=plan_of("4x2x1"), destination=plan_of("2x4x1", split_table=True)),
    Pair(name="buckets in parts", model="wide", source=plan_of("2x4x1", split_table=True),
        destination=plan_of("2x4x1"), bucket_bytes=WHOLE),
    Pair(name="kv heads on two ranks each", source=plan_of("2x4x1"), destination=plan_of("2x2x2"), bucket_bytes=512),
    Pair(name="tied", model="tied", source=plan_of("1x4x2"), destination=plan_of("2x2x2"), bucket_bytes=516),
    Pair(name="tied to no stages", model="tied", source=plan_of("2x2x2"), destination=plan_of("8x1x1")),
    Pair(name="more replicas", source=plan_of("1x2x2"), destination=plan_of("2x2x2"), bucket_bytes=WHOLE),
    Pair(name="fewer replicas", source=plan_of("4x1x2", split_table=True), destination=plan_of("2x1x2")),
    Pair(name="equal, shared", source=plan_of("2x2x2"), destination=plan_of("2x2x2"), shared=True),
    Pair(name="equal, not shared", source=plan_of("2x2x2"), destination=plan_of("2x2x2")),
    Pair(name="sharded moments", model="tied", moments=True, source=plan_of("4x2x1", shard=True),
        destination=plan_of("2x2x2", shard=True)),
]  # fmt: skip
PROOF = Pair(name="proof", source=plan_of("1x4x2"), destination=plan_of("2x4x1"))
GATHERS = [
    Pair(name="gathered weights", source=plan_of("2x2x2", split_table=True)),
    Pair(name="gathered moments", model="tied", moments=True, source=plan_of("4x2x1", shard=True)),
]
UP = "model.layers.{}.mlp.up_proj.weight"
FLIPS = [
    {"rank": 5, "side": "new", "bit": 0, "parameters": [UP.format(0)]},
    {"rank": 2, "side": "old", "bit": 31, "parameters": ["model.layers.1.input_layernorm.weight"]},
    {"rank": 7, "side": "new", "bit": 22, "parameters": ["model.embed_tokens.weight", UP.format(3)]},
    {"rank": 0, "side": "new", "bit": 3, "parameters": [f"model.layers.{i}.self_attn.k_proj.bias" for i in range(4)]},
]
ODD_RANKS = [3, 0]


def whole_tensors(model: ModelSection, seed: int) -> dict[str, np.ndarray]:
    """Random bits, every third element one of PATTERNS: each pattern is in every tensor."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in weight_shapes(model).items():
        bits = random.integers(0, 1 << 32, prod(shape), np.uint32)
        bits[::3] = np.resize(PATTERNS, bits[::3].size)
        tensors[name] = bits.reshape(shape).view(np.float32)
    return tensors


WHOLE_TENSORS = {name: whole_tensors(model, seed) for seed, (name, model) in enumerate(MODELS.items())}
