"""Rules of plans, the reference policy and model families."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mindgspo.config import (
    ModelSection,
    ParallelPlan,
    PlansSection,
    batch_table,
    check_infer_plan,
    check_train_plan,
    dump_config,
    load_config,
    notes,
)
from mindgspo.config.model import FAMILIES
from mindgspo.config.plan import check_reference_plan, check_same_world, legal_model_parallel
from mindgspo.errors import ConfigError
from mindgspo.text import divisors, nearest

MODEL_3B = ModelSection(vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36,
                        num_attention_heads=16, num_key_value_heads=2)  # fmt: skip


def test_world_size_counts_every_axis_but_experts():
    plan = ParallelPlan(data_parallel=2, model_parallel=4, pipeline_stage=3, context_parallel=5, expert_parallel=7)
    assert plan.world_size == 2 * 4 * 3 * 5
    assert ParallelPlan().world_size == 1
    assert str(plan) == "2 x 4 x 3 x context 5" and str(ParallelPlan(model_parallel=4)) == "1 x 4 x 1"
    assert plan.token_parts == 10


@pytest.mark.parametrize("plan", [
    ParallelPlan(),
    ParallelPlan(data_parallel=3),
    ParallelPlan(model_parallel=4),
    ParallelPlan(model_parallel=8),  # more than the 2 key/value heads, evenly shared
    ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=4),
    ParallelPlan(data_parallel=2, optimizer_shard=True, vocab_emb_dp=False),
    ParallelPlan(data_parallel=2, model_parallel=4, use_seq_parallel=True),
    ParallelPlan(context_parallel=16),
    ParallelPlan(context_parallel=2, model_parallel=2, use_seq_parallel=True, optimizer_shard=True),
])  # fmt: skip
def test_what_fits_is_legal(plan):
    assert check_train_plan("plans.train", plan, MODEL_3B) == []


@pytest.mark.parametrize(("plan", "line"), [
    (ParallelPlan(model_parallel=6),
     "p.model_parallel: 6 does not split the model evenly (16 attention heads, 2 key/value heads, intermediate_size "
     "11008, vocab_size 151936); nearest legal: 4 or 8"),
    (ParallelPlan(pipeline_stage=37, micro_batch_num=37), 
     "p.pipeline_stage: 37 is more than the 36 layers; nearest legal: 36"),
    (ParallelPlan(pipeline_stage=4, micro_batch_num=2),
     "p.micro_batch_num: 2 is less than pipeline_stage 4; smallest legal: 4"),
    (ParallelPlan(micro_batch_num=2),
     "p.micro_batch_num: 2 micro-batches are in flight between pipeline stages, and there is one stage; remove it "
     "(trainer.samples_per_micro_batch cuts mini-batches)"),
    (ParallelPlan(optimizer_shard=True),
     "p.optimizer_shard: there is one replica, which keeps all moments; remove it"),
    (ParallelPlan(context_parallel=32),
     "p.context_parallel: 32 ranks exchange tokens for heads and do not divide those evenly (16 attention heads, 2 "
     "key/value heads); nearest legal: 16"),
    (ParallelPlan(model_parallel=8, context_parallel=4),
     "p.context_parallel: 4 ranks exchange tokens for heads and do not divide those of each of 8 model_parallel slices "
     "evenly (16 attention heads, 2 key/value heads); nearest legal: 2"),
    (ParallelPlan(data_parallel=2, expert_parallel=2), "p.expert_parallel: 2, but qwen2 has no experts; remove it"),
    (ParallelPlan(use_seq_parallel=True),
     "p.use_seq_parallel: model_parallel is 1, so nothing splits the sequence; remove it"),
])  # fmt: skip
def test_what_does_not_fit_names_legal_values_in_one_line(plan, line):
    assert check_train_plan("p", plan, MODEL_3B) == [line]


def test_the_vocabulary_must_divide_over_the_output_table():
    odd = MODEL_3B.model_copy(update={"vocab_size": 151937})
    assert "nearest legal: 1" in check_train_plan("p", ParallelPlan(model_parallel=2), odd)[0]


def test_padded_tables_divide_where_the_vocabulary_does_not():
    odd, plan = MODEL_3B.model_copy(update={"vocab_size": 151665}), ParallelPlan(model_parallel=2)
    (line,) = check_train_plan("p", plan, odd)
    assert line.endswith("vocab_size 151665); nearest legal: 1, or model.table_rows=151666")
    assert not check_train_plan("p", plan, odd.model_copy(update={"table_rows": 151666}))
    (line,) = check_train_plan("p", plan, odd.model_copy(update={"table_rows": 151667}))
    assert "table_rows 151667); nearest legal: 1, or model.table_rows=151666" in line
    with pytest.raises(ValueError, match="table_rows 151664 is less than vocab_size 151665"):
        ModelSection(**{**odd.model_dump(), "table_rows": 151664})


def test_what_means_nothing_while_generating_is_refused():
    plan = ParallelPlan(
        model_parallel=2, pipeline_stage=2, micro_batch_num=2, optimizer_shard=True, use_seq_parallel=True
    )
    assert [line.split(":")[0] for line in check_infer_plan("plans.infer", plan, MODEL_3B)] == [
        "plans.infer.pipeline_stage",
        "plans.infer.optimizer_shard",
        "plans.infer.micro_batch_num",
        "plans.infer.use_seq_parallel",
    ]
    assert check_infer_plan("plans.infer", ParallelPlan(data_parallel=2, model_parallel=4), MODEL_3B) == []
    assert check_infer_plan("plans.infer", ParallelPlan(context_parallel=2), MODEL_3B) == [
        "plans.infer.context_parallel: 2; decoding takes one token per sequence; set it to 1 and "
        "multiply data_parallel or model_parallel by 2"
    ]


@pytest.mark.parametrize(("infer", "fix"), [
    (ParallelPlan(model_parallel=4), "they share the same cards; set plans.infer.data_parallel=2"),
    (ParallelPlan(model_parallel=3), "they share the same cards, so their products must be equal"),
])  # fmt: skip
def test_both_plans_take_the_same_cards(infer, fix):
    train = ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=2)
    (line,) = check_same_world(train, infer)
    assert "plans.train 1 x 4 x 2 needs 8 workers" in line and line.endswith(fix)
    assert check_same_world(train, ParallelPlan(data_parallel=2, model_parallel=4)) == []


def test_divisors_and_neighbours():
    assert divisors(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert nearest([1, 2, 4, 8], 3) == [2, 4]
    assert nearest([1, 2, 4, 8], 9) == [8]


# ----- Rules of a reference policy that follows the policy, and of its own plan; what is filled in, and what is shown
KEY = "algorithm.kl.reference"
LOSS, REWARD = "algorithm.kl.placement=loss", "algorithm.kl.placement=reward"
SIX = "trainer.samples_per_micro_batch=6"


@pytest.mark.parametrize(("overrides", "expected"), [
    ([f"{KEY}.mode=ema"],
     f"{KEY}.mode: ema, but algorithm.kl.placement is none, so there is no reference policy; set "
     "algorithm.kl.placement to loss or reward, or remove it"),
    ([LOSS, f"{KEY}.every=5"],
     f"{KEY}.every: 5, but a frozen reference never changes; set {KEY}.mode=sync, or remove it"),
    ([LOSS, f"{KEY}.mode=sync"],
     f"{KEY}.every: missing; after how many steps does the reference become the policy? e.g. {KEY}.every=100"),
    ([LOSS, f"{KEY}.mode=sync", f"{KEY}.every=5", f"{KEY}.decay=0.5"],
     f"{KEY}.decay: 0.5 belongs to a moving average, but {KEY}.mode is sync; set {KEY}.mode=ema, or remove it"),
    ([REWARD, f"{KEY}.mode=sync", f"{KEY}.every=1"],
     f"{KEY}.every: 1 makes the old policy of each step its reference, from which it has no distance: the penalty in "
     "the reward would always be 0; smallest legal: 2"),
    (["plans.reference={data_parallel: 2}"],
     "plans.reference: plans.train 1 x 1 x 1 needs 1 workers, plans.reference 2 x 1 x 1 needs 2; they share the same "
     "cards; set plans.reference.data_parallel=1"),
    (["plans.reference={optimizer_shard: true}"],
     "plans.reference.optimizer_shard: true; there is no optimizer while scoring; remove it"),
    (["plans.reference={recompute: full}"],
     "plans.reference.recompute: full; there is no backward pass while scoring; remove it"),
    (["plans.reference={micro_batch_num: 2}"],
     "plans.reference.micro_batch_num: 2; without a backward pass micro-batches follow each other through the stages "
     "as they are; remove it"),
])  # fmt: skip
def test_each_rule_names_the_key_and_the_fix(problems, overrides: list[str], expected: str) -> None:
    assert problems(*overrides) == [expected]


def test_a_moving_average_has_a_pace(load) -> None:
    section = load(LOSS, f"{KEY}.mode=ema").algorithm.kl.reference
    assert (section.every, section.decay) == (1, 0.99)
    section = load(LOSS, f"{KEY}.mode=ema", f"{KEY}.every=4", f"{KEY}.decay=0.5").algorithm.kl.reference
    assert (section.every, section.decay) == (4, 0.5)
    frozen = load(LOSS).algorithm.kl.reference
    assert (frozen.every, frozen.decay) == (None, None)


def test_without_a_plan_of_its_own_it_has_that_of_training_without_shards(load) -> None:
    sharded = ParallelPlan(data_parallel=2, optimizer_shard=True)
    plans = PlansSection(train=sharded, infer=ParallelPlan(data_parallel=2))
    assert plans.scoring == ParallelPlan(data_parallel=2)
    own = load(
        SIX, "plans={train: {data_parallel: 2}, infer: {data_parallel: 2}, reference: {model_parallel: 2}}"
    ).plans
    assert own.scoring == ParallelPlan(model_parallel=2)


def test_the_banner_says_what_it_refers_to(load) -> None:
    plans = "plans={train: {data_parallel: 2}, infer: {data_parallel: 2}, reference: {model_parallel: 2}}"
    table = dict(batch_table(load(SIX, plans, LOSS, f"{KEY}.mode=ema", f"{KEY}.decay=0.75"), 96))
    assert table["reference policy"].startswith(
        "a moving average: ref + 0.25 (policy - ref), each step; k3 in the loss"
    )
    assert table["plans"] == "train 2 x 1 x 1, infer 2 x 1 x 1, reference 1 x 2 x 1 (data x model x pipeline)"
    table = dict(batch_table(load(LOSS, f"{KEY}.mode=sync", f"{KEY}.every=8"), 96))
    assert table["reference policy"].startswith("the policy, taken anew every 8 steps; k3 in the loss")
    unread = load(SIX, plans)
    assert "reference" not in dict(batch_table(unread, 96))["plans"], "nobody scores with it"
    assert any(line.startswith("plans.reference: not read") for line in notes(unread))
    assert dict(batch_table(load("algorithm.old_log_probs=sampler"), 96))["old log-probs"].startswith("the sampler's")


def test_ratios_against_the_sampler_are_not_called_one(load) -> None:
    sampler = "algorithm.old_log_probs=sampler"
    single = notes(load(sampler, "trainer.prompts_per_mini_batch=12"))
    assert any("every ratio is the mismatch of sampler and trainer" in line for line in single)
    assert not any("every ratio is 1" in line for line in single)
    bfloat16 = notes(load(sampler, "device=Ascend", "model.dtype=bfloat16", "model.num_attention_heads=2"))
    assert any("in bfloat16 about 1e-2 per token, into a ratio whose clip range is 0.0003" in line for line in bfloat16)


# ----- What the model families may set, beside each other; experts' plans too
EXPERTS = ("model.architecture=qwen3_moe", "model.num_experts=8", "model.num_experts_per_tok=2",
           "model.moe_intermediate_size=48")  # fmt: skip
DEEP = ("model.architecture=glm4_moe", *EXPERTS[1:], "model.first_k_dense_replace=1")
SCALING = ("model.rope_scaling={factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, "
           "original_max_position_embeddings: 64}")  # fmt: skip
MIXTURE = ModelSection(architecture="qwen3_moe", vocab_size=64, hidden_size=32, intermediate_size=100,
                       num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, num_experts=12,
                       num_experts_per_tok=2, moe_intermediate_size=12)  # fmt: skip


def test_a_family_differs_in_what_the_table_says() -> None:
    assert list(FAMILIES) == ["qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "glm", "glm4", "glm4_moe",
                              "deepseek_v3"]  # fmt: skip
    assert [name for name, family in FAMILIES.items() if family.has_attention_bias] == ["qwen2"]
    assert [name for name, family in FAMILIES.items() if family.has_head_norms] == ["qwen3", "qwen3_moe"]
    assert {name: family.huggingface_class for name, family in FAMILIES.items()} == {
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "glm": "GlmForCausalLM",
        "glm4": "Glm4ForCausalLM",
        "glm4_moe": "Glm4MoeForCausalLM",
        "deepseek_v3": "DeepseekV3ForCausalLM",
    }


@pytest.mark.parametrize(("overrides", "message"), [
    (("model.attention_bias=false",), "model.attention_bias: qwen2 has biases of q, k and v, and no choice; remove"),
    (("model.architecture=llama", "model.attention_bias=true"), "attention_bias: llama has no biases of q, k and v"),
    (("model.partial_rotary_factor=0.5",), "model.partial_rotary_factor: 0.5; qwen2 turns all features of a head"),
    (("model.architecture=glm", "model.head_dim=6", "model.partial_rotary_factor=0.5"),
     "0.5 of head_dim 6 are 3 features, .*; nearest legal: 0.333333 or 0.666667"),
])  # fmt: skip
def test_what_only_some_families_choose_is_refused_elsewhere(load, overrides, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*overrides)


def test_a_family_fills_in_its_biases_and_a_glm_chooses(load) -> None:
    found = [load(*(f"model.architecture={one}",)).model.attention_bias for one in ("qwen2", "llama", "glm4")]
    assert found == [True, False, True]
    chosen = load("model.architecture=glm4", "model.attention_bias=false", "model.partial_rotary_factor=0.5").model
    assert not chosen.attention_bias and chosen.rotary_dim == chosen.head_dim // 2


def test_settings_of_families_are_written_down_and_read_back(load, tmp_path) -> None:
    mixture = load(*EXPERTS, "model.norm_topk_prob=true")
    assert (mixture.model.num_experts, mixture.model.norm_topk_prob) == (8, True)
    stretched = load("model.architecture=llama", SCALING)
    assert (stretched.model.rope_scaling.factor, stretched.model.rope_scaling.rope_type) == (8.0, "llama3")
    deep = load(*DEEP, "model.num_hidden_layers=3", "model.n_group=4", "model.routed_scaling_factor=2.5")
    for config in (mixture, stretched, deep, load("model.architecture=qwen3", "model.head_dim=64")):
        (tmp_path / "dumped.yaml").write_text(dump_config(config), encoding="utf-8")
        assert load_config(tmp_path / "dumped.yaml") == config


@pytest.mark.parametrize(("overrides", "message"), [
    (EXPERTS[:1], "model.num_experts: missing; qwen3_moe needs it"),
    (("model.use_qk_norm=true",), "model.use_qk_norm: qwen2 has no norms of queries and keys, and no choice; remove"),
    ((*EXPERTS, "model.n_group=2"), "model.n_group: qwen3_moe has none; remove it, or set model.architecture=glm4_moe"),
    ((*DEEP, "model.n_group=3"), "n_group: 3 does not split num_experts 8 into equal groups of 2 or more; nearest"),
    ((*DEEP, "model.n_group=8"), "n_group: 8 does not split num_experts 8 into .*; nearest legal: 4"),
    ((*DEEP, "model.topk_group=2"), "topk_group: 2 is more than n_group 1; largest legal: 1"),
    ((*DEEP, "model.n_group=4", "model.num_experts_per_tok=3"),
     "3 is more than num_experts 8 in topk_group 1 of n_group 4 groups; largest legal: 2"),
    ((*DEEP, "model.first_k_dense_replace=99"), "first_k_dense_replace: 99 of num_hidden_layers .* leave no layer"),
    (EXPERTS[:3], "model.moe_intermediate_size: missing; qwen3_moe needs it"),
    (EXPERTS[1:2], "model.num_experts: qwen2 has no experts; remove it, or set model.architecture=qwen3_moe"),
    (("model.norm_topk_prob=true",), "model.norm_topk_prob: qwen2 has no experts"),
    ((*EXPERTS, "model.num_experts_per_tok=9"), "9 is more than num_experts 8; largest legal: 8"),
    (("model.rope_scaling={factor: 8.0}",), "model.rope_scaling.low_freq_factor: missing; llama3 needs it"),
    (("model.rope_scaling={rope_type: yarn, factor: 2.0}",), "original_max_position_embeddings: missing; yarn needs"),
    (("model.architecture=llama", SCALING.replace("high_freq_factor: 4.0", "high_freq_factor: 1.0")),
     "model.rope_scaling.high_freq_factor: 1 must be more than low_freq_factor 1"),
])  # fmt: skip
def test_what_does_not_belong_together_is_refused_in_one_line(load, overrides, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*overrides)


def test_a_rule_for_stretching_that_is_not_implemented_is_refused(load) -> None:
    with pytest.raises(ConfigError, match="rope_scaling"):
        load("model.architecture=llama", SCALING.replace("{", "{rope_type: longrope, "))
    with pytest.raises(ValidationError):
        ModelSection(**MIXTURE.model_dump(exclude={"num_experts"}), num_experts=1)


def test_model_parallel_divides_the_features_of_an_expert() -> None:
    # 12 features of each expert divide over 4 ranks, not over 8; the dense width of 100 does not matter.
    assert MIXTURE.inner_sizes == {"moe_intermediate_size": 12}
    assert legal_model_parallel(ParallelPlan(), MIXTURE) == [1, 2, 4]
    (line,) = check_train_plan("p", ParallelPlan(model_parallel=8), MIXTURE)
    assert "moe_intermediate_size 12" in line and line.endswith("nearest legal: 4")


def test_model_parallel_divides_dense_layers_and_shared_experts_whatever_the_experts_do() -> None:
    deep = MIXTURE.model_copy(update={
        "architecture": "glm4_moe", "first_k_dense_replace": 1, "n_shared_experts": 2, "intermediate_size": 96,
    })  # fmt: skip
    assert list(deep.inner_sizes.values()) == [96, 12, 24]
    whole = ParallelPlan(expert_parallel=4, expert_tensor_parallel=1)
    assert (legal_model_parallel(ParallelPlan(), deep), legal_model_parallel(whole, deep)) == ([1, 2, 4], [1, 2, 4, 8])
    odd = deep.model_copy(update={"intermediate_size": 90})
    assert legal_model_parallel(whole, odd) == [1, 2]
    (line,) = check_train_plan("p", ParallelPlan(model_parallel=8), deep)
    assert "intermediate_size 96, moe_intermediate_size 12, n_shared_experts x moe_intermediate_size 24, " in line


def test_model_parallel_leaves_whole_experts_alone() -> None:
    odd = MIXTURE.model_copy(update={"moe_intermediate_size": 7})
    plan = ParallelPlan(model_parallel=8, expert_parallel=4, expert_tensor_parallel=1)
    assert check_train_plan("p", plan, odd) == [] and legal_model_parallel(plan, odd) == [1, 2, 4, 8]
    (line,) = check_train_plan("p", plan.model_copy(update={"model_parallel": 3}), odd)[:1]
    assert "intermediate_size" not in line and line.endswith("nearest legal: 2 or 4")


@pytest.mark.parametrize(("plan", "line"), [
    (ParallelPlan(data_parallel=4, expert_parallel=8),
     "p.expert_parallel: 8 must divide data_parallel 4 and the 12 experts; nearest legal: 4"),
    (ParallelPlan(data_parallel=8, expert_parallel=8),
     "p.expert_parallel: 8 must divide data_parallel 8 and the 12 experts; nearest legal: 4"),
])  # fmt: skip
def test_experts_divide_over_replicas(plan, line) -> None:
    assert check_train_plan("p", plan, MIXTURE) == [line]
    assert check_train_plan("p", plan.model_copy(update={"expert_parallel": 4}), MIXTURE) == []


LARGE = MIXTURE.model_copy(update={"num_experts": 128, "num_hidden_layers": 4})


def whole(data: int, model: int, experts: int, stages: int = 1) -> ParallelPlan:
    return ParallelPlan(data_parallel=data, model_parallel=model, pipeline_stage=stages, micro_batch_num=stages,
                        expert_parallel=experts, expert_tensor_parallel=1)  # fmt: skip


@pytest.mark.parametrize("plan", [
    whole(2, 4, 8, 4), whole(4, 4, 8), whole(1, 4, 4, 4), whole(1, 4, 4), whole(4, 4, 16), whole(2, 4, 2),
    whole(1, 4, 1),
], ids=str)  # fmt: skip
def test_whole_experts_go_to_all_ranks_of_a_stage(plan: ParallelPlan) -> None:
    assert check_train_plan("p", plan, LARGE) == []
    assert check_reference_plan("p", plan.model_copy(update={"micro_batch_num": 1}), LARGE) == []


@pytest.mark.parametrize(("plan", "line"), [
    (whole(1, 4, 8, 4),
     "p.expert_parallel: 8 must divide the 4 ranks of a stage (data_parallel 1 x model_parallel 4) and the 128 "
     "experts, and divide model_parallel or be a multiple of it; nearest legal: 4"),
    # Blocks of three ranks would cut replicas of two.
    (whole(3, 2, 3).model_copy(update={"expert_parallel": 3}),
     "p.expert_parallel: 3 must divide the 6 ranks of a stage (data_parallel 3 x model_parallel 2) and the 128 "
     "experts, and divide model_parallel or be a multiple of it; nearest legal: 2"),
    (whole(2, 4, 8).model_copy(update={"expert_tensor_parallel": 2}),
     "p.expert_tensor_parallel: 2; the features of an expert are split over all ranks of model_parallel 4 or not at "
     "all; legal: 1 or 4"),
    (whole(2, 4, 8).model_copy(update={"expert_tensor_parallel": None}),
     "p.expert_parallel: 8 must divide data_parallel 2 and the 128 experts; nearest legal: 2, or set "
     "p.expert_tensor_parallel=1, which splits them over model_parallel, too"),
])  # fmt: skip
def test_parts_that_no_block_of_ranks_has_are_refused(plan: ParallelPlan, line: str) -> None:
    assert check_train_plan("p", plan, LARGE) == [line]


def test_a_model_without_experts_has_no_ranks_for_them() -> None:
    dense = ModelSection(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    for check in (check_train_plan, check_infer_plan, check_reference_plan):
        lines = check("p", whole(2, 2, 2), dense)
        assert lines == [
            "p.expert_parallel: 2, but qwen2 has no experts; remove it",
            "p.expert_tensor_parallel: 1, but qwen2 has no experts; remove it",
        ]


def test_replicas_that_generate_have_all_experts() -> None:
    assert check_infer_plan("p", whole(8, 4, 4), LARGE) == []
    assert check_infer_plan("p", ParallelPlan(data_parallel=4, model_parallel=4, expert_tensor_parallel=4), LARGE) == []
    (line,) = check_infer_plan("p", ParallelPlan(data_parallel=4, expert_parallel=2), LARGE)
    assert line == (
        "p.expert_parallel: 2 x expert_tensor_parallel 1; while generating the ranks of a replica, model_parallel 1, "
        "have all experts together; leave both out"
    )
    (line,) = check_infer_plan("p", whole(2, 4, 8), LARGE)
    assert line.endswith("leave both out, or set them to 4 and 1")


def test_what_is_proposed_for_experts_while_generating_is_legal() -> None:
    six = LARGE.model_copy(update={"num_experts": 6})
    (line,) = check_infer_plan("p", whole(2, 4, 4), six)
    assert line == (
        "p.expert_parallel: 4 does not divide the 6 experts, and while generating the ranks of a replica, "
        "model_parallel 4, split all of them or none; leave it and expert_tensor_parallel out"
    )
    (line,) = check_infer_plan("p", whole(2, 4, 2), six)
    assert line.endswith("have all experts together; leave both out"), "4 does not divide the experts either"
    assert check_infer_plan("p", ParallelPlan(data_parallel=2, model_parallel=4), six) == []


def test_experts_are_split_over_replicas_on_cpu(load) -> None:
    plans = ("plans.train.data_parallel=2", "plans.infer.data_parallel=2", "plans.train.expert_parallel=2")
    found = load(*EXPERTS, *plans, "trainer.samples_per_micro_batch=6").plans.train
    assert found.couples_replicas and found.expert_block == 2
    split = "{model_parallel: 2, expert_parallel: 2, expert_tensor_parallel: 1}"
    within = load(*EXPERTS, f"plans.train={split}", f"plans.infer={split}").plans
    assert within.infer.expert_block == 2 and not within.train.couples_replicas
