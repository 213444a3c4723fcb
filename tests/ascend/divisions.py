"""The divisions that emulated cards and CPU processes are tested with, and what their figures must equal.

Cases are those of `workers/plan_figures.py`.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mindgspo.config import ModelSection, ParallelPlan, load_config

PROJECT = Path(__file__).resolve().parents[2]

# By device. The cache of cards is float16.
SAMPLING_TOLERANCE = {"Ascend": 2e-3, "CPU": 1e-5}
_NUM_RESPONSES = 16  # of `plan_cases.batches_of`


def case(model: str | dict, train: Mapping, infer: Mapping) -> dict:
    return {"model": model, "train": dict(train), "infer": dict(infer)}


def packed(model: str, train: Mapping) -> dict:
    return {"model": model, "train": dict(train), "is_packed": True}


def replayed(train: Mapping, model: str = "experts", **packing: bool) -> dict:
    return {"model": model, "train": dict(train), "replays": True, **packing}


def told(train: Mapping, model: str = "experts") -> dict:
    return {"model": model, "train": dict(train), "tells": True}


def in_bfloat16(train: Mapping, model: str = "dense") -> dict:
    return {"model": model, "train": dict(train), "dtype": "bfloat16"}


DATA, MODEL, STAGES = {"data_parallel": 2}, {"model_parallel": 2}, {"pipeline_stage": 2, "micro_batch_num": 2}
DATA_3, DATA_4, MODEL_4 = {"data_parallel": 3}, {"data_parallel": 4}, {"model_parallel": 4}
STAGES_3 = {"pipeline_stage": 3, "micro_batch_num": 3}
CONTEXT, CONTEXT_OF_4 = {"context_parallel": 2}, {"context_parallel": 4}
SPLIT_TABLE, SHARDED = {"vocab_emb_dp": False}, {"optimizer_shard": True}
OVERLAPPED = {"overlap_grad_reduce": True}
SPLIT_SEQUENCE, WHOLE_EXPERTS = {"use_seq_parallel": True}, {"expert_tensor_parallel": 1}
TWO_PARTS, FOUR_PARTS = WHOLE_EXPERTS | {"expert_parallel": 2}, WHOLE_EXPERTS | {"expert_parallel": 4}
# Cases by number of ranks; one job runs all of a size.
ONE = {
    "one card": case("dense", {}, {}),
    "one card, tied": case("tied", {}, {}),
    "one card of experts": case("experts", {}, {}),
    "one card of shared experts": case("shared experts", {}, {}),
    "one card, packed": packed("dense", {}),
    "one card of adapters": case("adapters", {}, {}),
    "one card of adapters, in bfloat16": in_bfloat16({}, "adapters"),
    "one card of latents": case("latents", {}, {}),
    "one card, replayed": replayed({}),
    "one card, taught": packed("taught", {}),
}
TWO = {
    "2x1x1": case("dense", DATA, MODEL),
    "1x2x1": case("dense", MODEL, DATA),
    "1x2x1, split input table": case("dense", MODEL | SPLIT_TABLE, MODEL | SPLIT_TABLE),
    "1x2x1, tied": case("tied", MODEL | SPLIT_TABLE, DATA),
    "1x2x1, split sequence": case("dense", MODEL | SPLIT_SEQUENCE, DATA),
    "1x2x1, recomputed": case("dense", MODEL | {"recompute": "full"}, DATA),
    "1x2x1, recomputed in part": case("dense", MODEL | {"recompute": "selective"}, DATA),
    "1x1x2": case("dense", STAGES, DATA),
    "1x1x2, tied": case("tied", STAGES | SPLIT_TABLE, DATA),
    "1x2x1, tied, a whole table": case("tied", MODEL, DATA),
    "2x1x1, sharded moments": case("dense", DATA | SHARDED, DATA),
    "2x1x1, sharded moments, overlapped": case("dense", DATA | SHARDED | OVERLAPPED, DATA),
    "2x1x1, split experts": case("experts", DATA | {"expert_parallel": 2}, DATA),
    "1x2x1, whole experts": case("experts", MODEL | TWO_PARTS, MODEL | TWO_PARTS),
    "1x2x1, whole experts, split sequence": case("experts", MODEL | TWO_PARTS | SPLIT_SEQUENCE, MODEL),
    "1x2x1, all experts on every rank": case("experts", MODEL | WHOLE_EXPERTS, DATA),
    "1x2x1, features of experts, split sequence": case("experts", MODEL | SPLIT_SEQUENCE, MODEL | TWO_PARTS),
    "1x2x1 of shared experts": case("shared experts", MODEL, DATA),
    "1x2x1 of shared experts, whole, split sequence": case("shared experts", MODEL | TWO_PARTS | SPLIT_SEQUENCE, MODEL),
    "1x1x2 of shared experts": case("shared experts", STAGES, MODEL),
    "1x1x2 of shared experts, told": told(STAGES, "shared experts"),
    "1x1x2 of shared experts, replayed": replayed(STAGES, "shared experts"),
    "context 2 of shared experts, split": case("shared experts", CONTEXT | {"expert_parallel": 2}, DATA),
    "2x1x1 of shared experts, split, sharded moments": case(
        "shared experts", DATA | SHARDED | {"expert_parallel": 2}, MODEL | TWO_PARTS
    ),
    "2x1x1, packed": packed("dense", DATA),
    "context 2": case("dense", CONTEXT, DATA),
    "context 2, packed": packed("dense", CONTEXT),
    "context 2, tied, sharded moments": case("tied", CONTEXT | SHARDED, DATA),
    "context 2, recomputed": case("dense", CONTEXT | {"recompute": "full"}, DATA),
    "2x1x1 of latents, sharded moments": case("latents", DATA | SHARDED, MODEL),
    "1x2x1 of latents, whole experts, split sequence": case("latents", MODEL | TWO_PARTS | SPLIT_SEQUENCE, MODEL),
    "1x1x2 of latents, recomputed": case("latents", STAGES | {"recompute": "selective"}, DATA),
    "context 2 of latents": case("latents", CONTEXT, DATA),
    "1x2x1 of latents, whole experts, split sequence, told": told(MODEL | TWO_PARTS | SPLIT_SEQUENCE, "latents"),
    "1x1x2 of latents, replayed": replayed(STAGES, "latents"),
    "context 2, split experts": case("experts", CONTEXT | {"expert_parallel": 2}, DATA),
    "2x1x1, split experts, replayed": replayed(DATA | {"expert_parallel": 2}),
    "1x2x1, whole experts, split sequence, replayed": replayed(MODEL | TWO_PARTS | SPLIT_SEQUENCE),
    "context 2, packed, replayed": replayed(CONTEXT, is_packed=True),
    "1x2x1, whole experts, split sequence, told": told(MODEL | TWO_PARTS | SPLIT_SEQUENCE),
    "2x1x1, told": told(DATA),
    "1x1x2, recomputed, in bfloat16": in_bfloat16(STAGES | {"recompute": "full"}),
    "1x2x1 of adapters, split sequence": case("adapters", MODEL | SPLIT_SEQUENCE, DATA),
    "1x1x2 of adapters, recomputed": case("adapters", STAGES | {"recompute": "full"}, MODEL),
    "2x1x1 of adapted experts, split, sharded moments": case(
        "adapted experts", DATA | SHARDED | {"expert_parallel": 2}, MODEL
    ),
    "2x1x1 of adapters, sharded moments, in bfloat16": in_bfloat16(DATA | SHARDED, "adapters"),
    "1x2x1, taught": packed("taught", MODEL),
    "1x2x1, norms of outputs": case("glm4", MODEL, MODEL),
    "1x1x2, norms of outputs, recomputed": case("glm4", STAGES | {"recompute": "full"}, DATA),
    "context 2, norms of outputs, sharded moments": case("glm4", CONTEXT | SHARDED, DATA),
    "1x2x1 of adapters, merged": case("adapters", MODEL, DATA) | {"merges": True},
    "context 2 of adapters": case("adapters", CONTEXT, DATA),
}
# Layers that stages do not divide, and groups that are no power of two.
THREE = {
    "1x1x3, tied, uneven": case("deep", STAGES_3, DATA_3),
    "3x1x1, sharded moments": case("dense", DATA_3 | SHARDED, DATA_3),
    "1x3x1, split sequence": case("thirds", {"model_parallel": 3} | SPLIT_SEQUENCE, {"model_parallel": 3}),
}
SIX = {
    "1x2x3, tied, uneven": case("deep", MODEL | STAGES_3, DATA_3 | MODEL),
    "3x2x1, whole experts over all, sharded moments": case(
        "six experts", DATA_3 | {"expert_parallel": 6} | MODEL | WHOLE_EXPERTS | SHARDED, {"data_parallel": 6}
    ),
}
FOUR = {
    "2x2x1, tied, sharded moments": case("tied", DATA | MODEL | SHARDED | SPLIT_TABLE, DATA_4),
    "1x4x1": case("dense", MODEL_4, DATA | MODEL),
    "1x2x2": case("dense", MODEL | STAGES, MODEL_4),
    "2x2x1 of latents, whole experts over all": case("latents", DATA | MODEL | FOUR_PARTS, MODEL_4 | FOUR_PARTS),
    "2x2x1 of experts": case("experts", DATA | MODEL | {"expert_parallel": 2}, DATA_4),
    "2x2x1, whole experts over all": case("experts", DATA | MODEL | FOUR_PARTS, MODEL_4 | FOUR_PARTS),
    "2x2x1, whole experts over all, split sequence": case(
        "experts", DATA | MODEL | FOUR_PARTS | SPLIT_SEQUENCE, DATA | MODEL | TWO_PARTS
    ),
    "2x2x1, whole experts, sharded moments": case("experts", DATA | MODEL | TWO_PARTS | SHARDED, DATA_4),
    "2x2x1 of shared experts, whole over all": case("shared experts", DATA | MODEL | FOUR_PARTS, DATA_4),
    "1x4x1, two blocks of whole experts": case("experts", MODEL_4 | TWO_PARTS, DATA | MODEL),
    "1x4x1, two blocks of whole experts, split sequence": case(
        "experts", MODEL_4 | TWO_PARTS | SPLIT_SEQUENCE | {"recompute": "full"}, DATA | MODEL | TWO_PARTS
    ),
    "2x1x1, context 2, sharded moments": case("dense", DATA | CONTEXT | SHARDED, DATA_4),
    "1x2x1, context 2": case("dense", MODEL | CONTEXT, DATA | MODEL),
    "1x2x1, context 2, split sequence, packed": packed("dense", MODEL | CONTEXT | SPLIT_SEQUENCE),
    "1x1x2, context 2": case("dense", STAGES | CONTEXT, DATA_4),
    "1x1x2, context 2, packed": packed("dense", STAGES | CONTEXT),
    "context 4": case("dense", CONTEXT_OF_4, MODEL_4),
    "context 4, packed": packed("dense", CONTEXT_OF_4),
    "2x1x1, context 2, whole experts over all": case("experts", DATA | CONTEXT | FOUR_PARTS, DATA_4),
    "1x2x1, context 2, whole experts over all, split sequence": case(
        "experts", MODEL | CONTEXT | FOUR_PARTS | SPLIT_SEQUENCE, DATA | MODEL
    ),
    "2x2x1, whole experts over all, replayed": replayed(DATA | MODEL | FOUR_PARTS),
    "1x4x1, two blocks of whole experts, told": told(MODEL_4 | TWO_PARTS),
    "2x1x2, split experts, told": told(DATA | STAGES | {"expert_parallel": 2}),
    "1x4x1, two blocks of whole experts, replayed": replayed(MODEL_4 | TWO_PARTS),
    "2x1x2, split experts, packed, replayed": replayed(DATA | STAGES | {"expert_parallel": 2}, is_packed=True),
    "2x1x2, tied, overlapped": case("tied", DATA | STAGES | SPLIT_TABLE | OVERLAPPED, DATA_4),
    "1x2x2, whole experts": case("experts", MODEL | STAGES | TWO_PARTS, MODEL_4 | FOUR_PARTS),
}
EIGHT = {
    "1x4x2": case("dense", MODEL_4 | STAGES, DATA | MODEL_4),
    "2x2x2": case("dense", DATA | MODEL | STAGES | SHARDED, DATA_4 | MODEL),
    "1x2x2, context 2, split sequence": case("dense", MODEL | STAGES | CONTEXT | SPLIT_SEQUENCE, DATA_4 | MODEL),
    "2x2x2, whole experts over all": case("experts", DATA | MODEL | STAGES | FOUR_PARTS, DATA | MODEL_4 | FOUR_PARTS),
    "2x1x1, context 4, packed, sharded moments": packed("dense", DATA | CONTEXT_OF_4 | SHARDED),
}


def named(cases: Mapping[str, Mapping]) -> list[dict]:
    return [{"name": name, **case} for name, case in cases.items()]


def check(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], name: str, device: str = "Ascend") -> None:
    """Raises AssertionError where figures of ranks on a device are not those of one process. name: of the case."""
    tolerances = {"loss": (1e-5, 1e-6), "grad_norm": (1e-5, 1e-6), "logp_NK": (0, 1e-5), "entropy_NK": (1e-5, 0)}
    for kind, (rtol, atol) in (tolerances | {"weight/": (0, 5e-6)}).items():
        for key in (key for key in wanted if key.startswith(kind)):
            np.testing.assert_allclose(found[key], wanted[key], rtol=rtol, atol=atol, err_msg=f"{name}: {key}")
    for key in (key for key in found if key.startswith("told/") and key in wanted):
        # Of two experts that are nearly as likely either may be chosen.
        differing = np.mean(np.sort(found[key], axis=-1) != np.sort(wanted[key], axis=-1))
        assert found[key].any() and differing < 0.01, f"{name}: {key}: {differing:.2%} of the choices differ"
    for sampled in ("sampled/0", "sampled/3"):
        if f"{sampled}/ids" in found:
            strays = stray_sequences(found, wanted, sampled, name, SAMPLING_TOLERANCE[device])
            has_experts = any(".mlp.gate." in key for key in wanted)
            # Rounding to the cache's float16 may choose another expert where two are nearly equal: a jump.
            most = len(wanted[f"{sampled}/ids"]) // 8 if has_experts else 0
            assert len(strays) <= most, f"{name}: {sampled}: sequences {strays}"


def check_bfloat16(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], name: str
) -> None:
    """`check` of figures in bfloat16; exact: those of one process on CPU in float32.

    Card and CPU round to bfloat16 in sums of another order, and so both are as far from float32: from each other, in
    the mean of squares, at most twice as far as CPU is. A loss is the mean over responses of their log-probs' errors,
    times advantages of about 1; a norm is off by less than bfloat16's step.
    """

    def distance(kind: str, one: Mapping[str, np.ndarray]) -> float:
        differences = [(one[key] - wanted[key]).ravel() for key in wanted if key.startswith(kind)]
        return float(np.sqrt(np.mean(np.square(np.concatenate(differences), dtype=np.float64))))

    rounding = {kind: distance(kind, exact) for kind in ("logp_NK", "entropy_NK", "weight/")}
    for kind, limit in rounding.items():
        apart = distance(kind, found)
        assert apart <= 2 * limit > 0, f"{name}: {kind}: {apart} from CPU, which is {limit} from float32"
    of_mean = 2 * rounding["logp_NK"] / np.sqrt(_NUM_RESPONSES)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=0, atol=of_mean, err_msg=f"{name}: loss")
    np.testing.assert_allclose(found["grad_norm"], wanted["grad_norm"], rtol=2**-7, err_msg=f"{name}: grad_norm")


def stray_sequences(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], sampled: str, name: str, tolerance: float
) -> list[int]:
    """Sequences with log-probs more than the tolerance apart, or with another token although its uniform does not lie
    that close to the edge between two tokens. Behind another token a sequence goes its own way."""
    ids, margins = wanted[f"{sampled}/ids"], wanted[f"{sampled}/margin"]
    assert margins.min() > -1e-5, f"{name}: {sampled}: CPU's own tokens miss their uniforms by {-margins.min()}"
    differs = found[f"{sampled}/ids"] != ids
    strays = []
    for row in np.flatnonzero(differs.any(axis=1)):
        first = int(np.argmax(differs[row]))
        print(f"{name}: {sampled}: sequence {row} draws another token {first}, {margins[row, first]:.1e} from an edge")
        if margins[row, first] > tolerance:
            strays.append(int(row))
    same = np.cumsum(differs, axis=1) == 0
    apart = np.where(same, np.abs(found[f"{sampled}/logp"] - wanted[f"{sampled}/logp"]), 0).max(axis=1)
    return sorted({*strays, *(int(row) for row in np.flatnonzero(~(apart <= tolerance)))})


def some(cases: Mapping[str, Mapping], *names: str) -> dict[str, Mapping]:
    return {name: cases[name] for name in names}


@cache
def shipped_in_miniature() -> dict[str, Mapping]:
    """Each shipped model configuration for cards: its architecture with small sizes, under its own plans on 8 ranks; a
    tied one over stages, too.

    Plans of more cards lose half of their widest axis until they fit. As many layers as stages, two at least; heads as
    many as model_parallel and the key/value heads need, so that they are shared by ranks where they are shipped so.
    """
    cases = {}
    with TemporaryDirectory() as scratch:
        for path in sorted((PROJECT / "model_configs").glob("*.yaml")):
            if path.stem.endswith(("_tiny", "_smoke")):
                continue
            experiment = Path(scratch) / "experiment.yaml"
            base = (PROJECT / "examples/gsm8k/gspo_qwen2_5_7b.yaml").read_text("utf-8")
            base = base.replace("max_new_tokens: 8192", "max_new_tokens: 4096")  # Moonlight has 8,192 positions
            experiment.write_text(base.replace("../../model_configs/qwen2_5_7b.yaml", str(path)), "utf-8")
            config = load_config(experiment, check_files=False)
            train = _on_eight_cards(config.plans.train)
            infer = _on_eight_cards(config.plans.infer, generates=True)
            cases[path.stem] = case(_small(config.model, train), train.model_dump(), infer.model_dump())
    tied = cases["qwen2_5_3b"]
    in_stages = tied["train"] | {"data_parallel": 1, "pipeline_stage": 2, "micro_batch_num": 4}
    return cases | {"qwen2_5_3b, in stages": tied | {"train": in_stages}}


def _on_eight_cards(plan: ParallelPlan, *, generates: bool = False) -> ParallelPlan:
    while plan.world_size > 8:
        widest = max(("model_parallel", "pipeline_stage", "data_parallel"), key=lambda axis: getattr(plan, axis))
        plan = plan.model_copy(update={widest: getattr(plan, widest) // 2})
    slices, replicas = plan.model_parallel, 1 if generates else plan.data_parallel
    most = replicas * slices if plan.expert_tensor_parallel == 1 else replicas
    return plan.model_copy(update={"expert_parallel": min(plan.expert_parallel, most)})


def _small(model: ModelSection, train: ParallelPlan) -> dict:
    kv_heads = min(model.num_key_value_heads, 8)
    heads = max(kv_heads * min(2, model.num_attention_heads // kv_heads), train.model_parallel)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16 * heads,
        "intermediate_size": 128,
        "num_hidden_layers": max(2, train.pipeline_stage),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 16,
        "max_position_embeddings": 64,
        # Logits as spread out at every width as those of 64 features at 0.1: rounding grows with them.
        "initializer_range": 0.8 / (16 * heads) ** 0.5,
        "path": None,
    }
    if model.num_experts:
        sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if model.kv_lora_rank:
        sizes |= {"num_key_value_heads": heads, "head_dim": None, "kv_lora_rank": 32}
        sizes |= dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16)
    return model.model_dump(mode="json", exclude={"dtype", "backend"}) | sizes
