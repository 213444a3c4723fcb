"""Rules of devices and model backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mindgspo.config import ModelSection, batch_table, load_config
from mindgspo.config.cache import block_bytes
from mindgspo.config.deployment_rules import mindformers_problems
from mindgspo.errors import ConfigError

# What suits Ascend: heads of 32, and as many prompts, samples and layers as plans may divide them by.
SUITABLE = """include: small.yaml
experiment: suitable
device: Ascend
model: {hidden_size: 256, num_attention_heads: 8, num_hidden_layers: 12, vocab_size: 768, intermediate_size: 768}
rollout: {prompts_per_step: 48}
trainer: {prompts_per_mini_batch: 48, samples_per_micro_batch: 1}
"""


@pytest.fixture
def experiment(experiment: Path) -> Path:
    path = experiment.with_name("suitable.yaml")
    path.write_text(SUITABLE, encoding="utf-8")
    return path


def plans(data: int, model: int, stages: int = 1, more: str = "") -> list[str]:
    """Overrides: a train plan, and an infer plan of as many ranks."""
    micro_batches = f", micro_batch_num: {stages}" if stages > 1 else ""
    sizes = f"data_parallel: {data}, model_parallel: {model}, pipeline_stage: {stages}{micro_batches}"
    return [f"plans.train={{{sizes}{more}}}",
            f"plans.infer={{data_parallel: {data * stages}, model_parallel: {model}}}"]  # fmt: skip


@pytest.mark.parametrize(
    "sizes",
    [(1, 1), (2, 4), (8, 1), (3, 8), (1, 4, 2), (1, 4, 6), (3, 1), (3, 2), (6, 1), (3, 4, 2), (1, 4, 3), (1, 1, 6)],
)
@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_ranks_work_together_in_any_number(experiment: Path, device: str, sizes: tuple[int, ...]) -> None:
    plan = load_config(experiment, [f"device={device}", *plans(*sizes)]).plans.train
    assert plan.world_size == sizes[0] * sizes[1] * (*sizes, 1)[2]


def test_heads_may_be_12_for_12_slices(experiment: Path) -> None:
    model = ["model.num_attention_heads=12", "model.num_key_value_heads=4", "model.hidden_size=384"]
    assert load_config(experiment, [*model, *plans(2, 12)]).plans.train.model_parallel == 12


@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_a_table_is_shared_between_stages(experiment: Path, device: str) -> None:
    tied = [f"device={device}", "model.tie_word_embeddings=true"]
    for sizes in ((1, 4, 2), (1, 1, 2)):
        assert load_config(experiment, [*tied, *plans(*sizes)]).plans.train.pipeline_stage == 2


@pytest.mark.parametrize(("overrides", "line"), [
    (["model.hidden_size=192"],
     "model.head_dim: 24; FlashAttentionScore takes heads of a multiple of 16; nearest legal: 16 or 32 "
     "(model.hidden_size=128 or 256 for 8 heads)"),
    (["model.architecture=qwen3", "model.head_dim=8"],
     "model.head_dim: 8; FlashAttentionScore takes heads of a multiple of 16; nearest legal: 16"),
])  # fmt: skip
def test_heads_are_multiples_of_16(problems, experiment, overrides, line):
    assert problems(*overrides) == [line]
    assert load_config(experiment, [*overrides, "device=CPU"]).device == "CPU"


def test_heads_of_paged_attention_end_at_16384_numbers_of_a_block(problems, experiment) -> None:
    wide = ["model.architecture=qwen3", "model.head_dim=256"]
    assert problems(*wide) == [
        "model.head_dim: 256; with blocks of 128 tokens PagedAttention takes heads of at most 128; device=CPU has no "
        "such limit"
    ]
    assert load_config(experiment, [*wide, "device=CPU"]).model.head_dim == 256
    assert load_config(experiment, [*wide[:1], "model.head_dim=128", "device=Ascend"]).model.head_dim == 128


LATENTS = [
    "model.architecture=deepseek_v3", "model.num_key_value_heads=8", "model.kv_lora_rank=520", "model.num_experts=4",
    "model.num_experts_per_tok=2", "model.moe_intermediate_size=64",
]  # fmt: skip


def test_latents_of_paged_attention_have_at_most_576_features(problems, experiment) -> None:
    whole = [*LATENTS, "model.qk_nope_head_dim=64", "model.qk_rope_head_dim=64", "model.v_head_dim=64"]
    assert problems(*whole) == [
        "model.kv_lora_rank: 520 + qk_rope_head_dim 64 = 584; PagedAttention takes latents with their rotated key of "
        "at most 576 features together; device=CPU has no such limit"
    ]
    assert load_config(experiment, [*whole, "device=CPU"]).model.kv_lora_rank == 520
    assert load_config(experiment, [*whole, "model.kv_lora_rank=512"]).device == "Ascend"


@pytest.mark.parametrize("more", [(), ("device=CPU",), ("rollout.cache_gb=1",), ("model.lora.rank=2",)])
def test_latents_without_their_other_sizes_are_told_whatever_else_is_set(problems, more: tuple[str, ...]) -> None:
    assert problems(*LATENTS, *more) == [
        f"model.{name}: missing; deepseek_v3 needs it, and its config.json has it"
        for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    ]


def test_a_card_has_more_than_what_is_taken_before_a_run(problems, experiment) -> None:
    assert problems("memory.device_gb=3") == [
        "memory.device_gb: 3 is not more than memory.reserve_gb 3.3, which is taken before a run begins; an Atlas 800T "
        "A2 card has 64"
    ]
    assert load_config(experiment, ["device=CPU", "memory.device_gb=3"]).memory.device_gb == 3


def test_a_cache_holds_as_many_tokens_as_a_prefill_on_ascend(problems, experiment) -> None:
    """16 prompts of 128 columns take 16 blocks; the longest sequence, 128 + 64 columns, takes 2, and one is padding."""
    sizes = ["rollout.slots=64", "rollout.num_generations=4", "data.max_prompt_length=128",
             "rollout.max_new_tokens=64", "trainer.length_multiple=64",
             "model.max_position_embeddings=256"]  # fmt: skip
    config = load_config(experiment, [*sizes, "device=Ascend"])
    gb = {blocks: blocks * block_bytes(config) / 2**30 for blocks in (3, 15, 16)}
    (problem,) = problems(*sizes, f"rollout.cache_gb={gb[15]}")
    assert "15 blocks" in problem
    assert "ReshapeAndCache writes a prefill of 16 x 128 tokens at once, which needs 16; smallest legal" in problem
    for blocks, device in ((16, "Ascend"), (3, "CPU")):
        budget = f"rollout.cache_gb={gb[blocks] * (1 if device == 'Ascend' else 2)}"
        load_config(experiment, [*sizes, budget, f"device={device}"])


@pytest.mark.parametrize(("device", "model", "given", "resolved"), [
    ("CPU", "float32", "null", "float32"),
    ("CPU", "float16", "null", "float16"),
    ("CPU", "float32", "float16", "float16"),
    ("CPU", "bfloat16", "null", "bfloat16"),
    ("Ascend", "float32", "null", "bfloat16"),
    ("Ascend", "float32", "float16", "float16"),
    ("Ascend", "bfloat16", "null", "bfloat16"),
    ("Ascend", "float16", "null", "float16"),
])  # fmt: skip
def test_a_cache_type_that_the_device_takes(experiment: Path, device: str, model: str, given: str, resolved: str):
    config = load_config(experiment, [f"device={device}", f"model.dtype={model}", f"rollout.cache_dtype={given}"])
    assert config.rollout.cache_dtype == resolved
    told = {} if model == resolved else {"key/value cache": f"{resolved}, and the model {model}"}
    assert {name: text for name, text in batch_table(config, None) if "cache" in name} == told


def test_a_cache_type_that_the_device_does_not_take(problems: Callable[..., list[str]]) -> None:
    assert problems("rollout.cache_dtype=float32") == [
        "rollout.cache_dtype: float32; ReshapeAndCache and PagedAttention take a cache of bfloat16 or float16; set "
        "rollout.cache_dtype=bfloat16"
    ]


def test_bfloat16_on_cpu_wants_a_compiler(
    problems: Callable[..., list[str]], experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (compiler := tmp_path / "g++").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler.chmod(0o755)
    for overrides in (["model.dtype=bfloat16"], ["rollout.cache_dtype=bfloat16"]):
        load_config(experiment, ["device=CPU", *overrides])
    compiler.unlink()
    missing = "bfloat16 on CPU takes kernels that g++ compiles, and it is not installed; apt-get install g++, or set"
    assert problems("device=CPU", "model.dtype=bfloat16") == [f"model.dtype: {missing} model.dtype=float32"]
    assert problems("device=CPU", "rollout.cache_dtype=bfloat16") == [
        f"rollout.cache_dtype: {missing} rollout.cache_dtype=float32"
    ]
    for overrides in (["device=CPU", "model.dtype=float16"], ["model.dtype=bfloat16"]):
        load_config(experiment, overrides)
    load_config(experiment, ["device=CPU", "model.dtype=bfloat16"], check_files=False)
    assert problems("device=CPU", *plans(2, 1)) == [
        "plans.train: 2 ranks on CPU talk by code that g++ compiles, and it is not installed; apt-get install g++, or "
        "set every dimension to 1"
    ]


def test_the_tokens_of_a_micro_batch_are_split(problems: Callable[..., list[str]], experiment: Path) -> None:
    split = plans(1, 4, more=", use_seq_parallel: true")
    assert problems(*split, "trainer.length_multiple=6") == [
        "plans.train.use_seq_parallel: model_parallel 4 does not divide the tokens of a micro-batch, "
        "trainer.samples_per_micro_batch 1 x trainer.length_multiple 6 = 6; nearest legal trainer.length_multiple: 4 "
        "or 8"
    ]
    legal = ["trainer.length_multiple=6", "trainer.samples_per_micro_batch=2"]
    assert load_config(experiment, [*split, *legal]).plans.train.use_seq_parallel
    assert load_config(experiment, ["device=CPU", *split, *legal]).plans.train.use_seq_parallel


def test_parts_of_sequences_need_equal_shares(problems: Callable[..., list[str]], experiment: Path) -> None:
    split = ["plans.train={context_parallel: 4, model_parallel: 2, use_seq_parallel: true}",
             "plans.infer={data_parallel: 8}"]  # fmt: skip
    assert problems(*split, "trainer.length_multiple=12") == [
        "plans.train.use_seq_parallel: context_parallel 4 x model_parallel 2 does not divide the tokens of a "
        "micro-batch, trainer.samples_per_micro_batch 1 x trainer.length_multiple 12 = 12; nearest legal "
        "trainer.length_multiple: 8 or 16"
    ]
    packed = ["trainer={samples_per_micro_batch: null, max_tokens_per_micro_batch: 160, packing: true}"]
    assert problems(*split, "plans.train.use_seq_parallel=false", *packed, "trainer.length_multiple=10") == [
        "plans.train.context_parallel: context_parallel 4 does not divide the tokens of a micro-batch, "
        "trainer.length_multiple 10; nearest legal trainer.length_multiple: 8 or 12"
    ]
    assert load_config(experiment, split).plans.train.token_parts == 4


def test_parts_that_the_heads_forbid_are_said_once(problems: Callable[..., list[str]]) -> None:
    """No length would make them legal."""
    found = problems("plans.train={context_parallel: 3}", "plans.infer={data_parallel: 3}")
    assert len(found) == 1 and found[0].startswith("plans.train.context_parallel: 3 ranks exchange tokens for heads")
    found = problems(*plans(1, 3, more=", use_seq_parallel: true"))
    assert found and all("length_multiple" not in line for line in found)


def test_parts_of_sequences_on_both_devices(experiment: Path) -> None:
    split = ["plans.train={context_parallel: 2}", "plans.infer={data_parallel: 2}"]
    assert load_config(experiment, ["device=CPU", *split]).plans.train.context_parallel == 2
    three = ["plans.train={context_parallel: 4, data_parallel: 3}", "plans.infer={data_parallel: 12}"]
    assert load_config(experiment, three).plans.train.token_parts == 12


def test_blocks_that_share_a_replicas_tokens_need_equal_shares(problems: Callable[..., list[str]]) -> None:
    mixture = ["model.architecture=qwen3_moe", "model.num_experts=8", "model.num_experts_per_tok=2",
               "model.moe_intermediate_size=48"]  # fmt: skip
    split = [*mixture, *plans(1, 4, more=", expert_parallel: 2, expert_tensor_parallel: 1")]
    assert problems(*split, "trainer.length_multiple=6") == [
        "plans.train.expert_parallel: model_parallel 4 does not divide the tokens of a micro-batch, "
        "trainer.samples_per_micro_batch 1 x trainer.length_multiple 6 = 6; nearest legal trainer.length_multiple: 4 "
        "or 8"
    ]


def test_a_tied_table_is_split_as_the_output_table_is_unless_it_is_said(experiment: Path) -> None:
    tied = ["model.tie_word_embeddings=true", *plans(1, 4)]
    resolved = load_config(experiment, tied)
    assert [resolved.plans.train.vocab_emb_dp, resolved.plans.infer.vocab_emb_dp] == [False, False]
    untied = load_config(experiment, ["model.tie_word_embeddings=false", *plans(1, 4)])
    assert untied.plans.train.vocab_emb_dp, "MindFormers' default"
    reference = ["algorithm.kl={placement: loss, coef: 0.1}", "plans.reference={model_parallel: 4}"]
    assert load_config(experiment, [*tied, *reference]).plans.scoring.vocab_emb_dp is False
    # A rank that has the whole table takes its own rows of it for the logits.
    said = load_config(experiment, [*tied, *(f"plans.{name}.vocab_emb_dp=true" for name in ("train", "infer"))])
    assert said.plans.train.vocab_emb_dp and said.plans.infer.vocab_emb_dp
    said = load_config(experiment, [*tied, *reference, "plans.reference.vocab_emb_dp=true"])
    assert said.plans.scoring.vocab_emb_dp


# ----- The rules of `model.backend`, refused before MindSpore or MindFormers is imported
EXPERIMENT = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
SIZES = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def model(**settings: object) -> ModelSection:
    return ModelSection(**SIZES | {"num_key_value_heads": 2} | settings)


@pytest.mark.parametrize(("setting", "message"), [
    (["model.architecture=qwen3"], "model.architecture: qwen3 is not among .* legal with that backend: qwen2, llama"),
    (["plans.train.data_parallel=2", "plans.infer.data_parallel=2"], "mindformers trains in one process"),
    (["device=Ascend"], "model.backend: mindformers is tested on CPU alone; set device=CPU"),
    (["model.dtype=float16"], "model.dtype: float16; .* float32 alone"),
])  # fmt: skip
def test_what_it_cannot_do_is_refused(setting: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(EXPERIMENT, ["model.backend=mindformers", *setting])


def test_heads_of_another_width() -> None:
    assert load_config(EXPERIMENT, ["model.backend=mindformers"]).model.backend == "mindformers"
    assert list(mindformers_problems(model(architecture="llama"))) == []
    (problem,) = mindformers_problems(model(architecture="llama", head_dim=6))
    assert problem.startswith("model.head_dim: 6 x 2 attention heads is not hidden_size 8")


def test_a_cache_holds_one_longest_sequence_at_least(problems: Callable[..., list[str]], experiment: Path) -> None:
    long = "rollout.max_new_tokens=16000"
    (found,) = problems(long, "rollout.cache_gb=0.001", "model.max_position_embeddings=32000")
    assert found.startswith("rollout.cache_gb: 0.001 pays for 2 blocks of 128 tokens, 393,216 bytes each "), found
    smallest = float(found.rsplit("smallest legal: ", maxsplit=1)[1])
    load_config(experiment, [long, f"rollout.cache_gb={smallest}", "model.max_position_embeddings=32000"])
    assert len(problems(long, f"rollout.cache_gb={smallest - 0.002}", "model.max_position_embeddings=32000")) == 1


@pytest.mark.parametrize(("device", "given", "resolved"), [("CPU", "null", 1), ("Ascend", "null", 8), ("CPU", "3", 3)])
def test_how_often_the_host_looks(experiment: Path, device: str, given: str, resolved: int) -> None:
    config = load_config(experiment, [f"device={device}", f"rollout.tokens_per_sync={given}"])
    assert config.rollout.tokens_per_sync == resolved
