"""Whole files in the manner of each suite: they convert, and pass this project's own check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from foreign_cases.conversions import FILES, findings_of, flat, model_folder

from mindgspo.config import ParallelPlan, load_config, load_model_and_plans
from mindgspo.errors import ConfigError
from mindgspo.trainer.check import check_experiment
from mindgspo_migrate.convert import Conversion, convert, report_lines
from mindgspo_migrate.models import KNOWN
from mindgspo_migrate.tables import Status

PROJECT = Path(__file__).resolve().parents[3]
SHARED = PROJECT / ".." / "shared" / "data"
EXAMPLES = {"mindformers": ("finetune_qwen2_5_7b.yaml",),
            "mindformers, both": ("finetune_qwen2_5_7b.yaml", "predict_qwen2_5_7b.yaml"),
            "mindrlhf": ("grpo_qwen2_5_7b.yaml",), "verl gspo": ("verl_gspo_gsm8k_3b.sh",),
            "verl dapo": ("verl_dapo_math_32b.sh",), "verl math": ("verl_math_lighteval_7b.txt",),
            "trl gspo": ("trl_gspo.yaml",)}  # fmt: skip
# With the keys and values of launch scripts that are published for Ascend.
OF_ASCEND = ("verl_gspo_3b_sequence_parallel.sh", "verl_gspo_30b_megatron.sh", "verl_dapo_32b_fsdp2.sh",
             "verl_dapo_8b_own_reward.sh")  # fmt: skip
each_example = pytest.mark.parametrize("names", EXAMPLES.values(), ids=EXAMPLES)
GENERATED = ("data.train.format=arithmetic", "data.train.path=", "data.eval.format=arithmetic", "data.eval.split=test",
             "data.eval.path=", "data.train.columns=", "data.eval.columns=", "data.train.max_rows=1600",
             "data.eval.max_rows=64", "tokenizer.path=",
             "tokenizer.eos_tokens=['<|im_end|>', '<|endoftext|>']", "tokenizer.pad_token=<|endoftext|>",
             "model.path=", "trainer.max_steps=3", "logging.trackers=[]")  # fmt: skip


def of_files(names: tuple[str, ...], overrides: tuple[str, ...] = ()) -> Conversion:
    return convert([FILES / name for name in names], None, overrides)


def written(found: Conversion, folder: Path) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(found.yaml, encoding="utf-8")
    return path


def check(found: Conversion, folder: Path) -> str:
    """The lines of `mindgspo check` on the result; its errors are the test's."""
    return "\n".join(check_experiment(load_config(written(found, folder))))


@each_example
def test_examples_pass_the_check_with_generated_rows(names: tuple[str, ...], tmp_path: Path) -> None:
    found = of_files(names, GENERATED)
    assert (found.missing, found.refused) == ([], [])
    assert "updates per rollout" in check(found, tmp_path)


@each_example
@pytest.mark.shared_data
def test_examples_pass_the_check_with_published_rows(names, tmp_path, shared_rows):
    aime, format, train = ("aime2024/aime24.jsonl", "aime"), "gsm8k", "gsm8k/train.jsonl"
    files = {"train": (train, format), "eval": ("gsm8k/test.jsonl", format)}
    if "dapo" in names[0]:
        files = {"train": ("dapo-math-17k/dapo_math_512.jsonl", "dapo"), "eval": aime}
    elif "math" in names[0]:
        files = {"train": ("math500/math500.jsonl", "math"), "eval": aime}
    overrides = [f"tokenizer.path={SHARED / 'qwen2.5-tokenizer'}", "model.path=", "trainer.max_steps=3"]
    overrides.append("logging.trackers=[]")  # whose packages may not be here
    if "dapo" in names[0]:
        overrides.append("algorithm.filter_groups.prompts_per_draw=512")  # the rows there are; the example draws 1,536
    for key, (file, format) in files.items():
        shared_rows(file)
        overrides += [f"data.{key}.path={SHARED / file}", f"data.{key}.format={format}", f"data.{key}.max_rows=1024"]
        overrides.append(f"data.{key}.columns=")
    said = check(of_files(names, tuple(overrides)), tmp_path)
    assert "reward: " in said and "151643" in said


def test_mindformers_finetune_and_predict_are_two_plans() -> None:
    found = of_files(EXAMPLES["mindformers, both"])
    values = flat(found)
    found_plan = {key.rpartition(".")[2]: value for key, value in values.items() if key.startswith("plans.train.")}
    assert ParallelPlan(**found_plan) == ParallelPlan(
        data_parallel=2, model_parallel=2, pipeline_stage=2, micro_batch_num=4, use_seq_parallel=True,
        optimizer_shard=True, vocab_emb_dp=False, recompute="full",
    )  # fmt: skip
    # Two slices as the predict file says; replicas fill the 8 cards of training.
    assert (values["plans.infer.model_parallel"], values["plans.infer.data_parallel"]) == (2, 4)
    assert values["tokenizer.path"] == "/models/Qwen2.5-7B" and values["tokenizer.eos_tokens"] == ["<|im_end|>"]
    assert (values["seed"], values["model.max_position_embeddings"]) == (7, 131072), "the finetune file counts"
    assert (values["optimizer.min_lr_ratio"], values["optimizer.warmup_ratio"]) == (0.25, 0.02)
    assert values["trainer.samples_per_micro_batch"] == 2
    # Whole rounds of 2 replicas x 4 micro-batches x 2 responses: 16 responses, so any number of prompts x 16.
    assert values["trainer.prompts_per_mini_batch"] == 32 and values["rollout.prompts_per_step"] == 128
    assert found.missing == ["data.train", "data.eval"]
    assert findings_of(found, "seed")[-1].text == "the other file's 7 counts"
    assert flat(of_files(EXAMPLES["mindformers, both"][::-1])) == values, "in any order"


def test_a_predict_file_alone_gives_both_plans_its_cards() -> None:
    values = flat(of_files(("predict_qwen2_5_7b.yaml",)))
    assert {key: values[key] for key in values if key.endswith("_parallel")} == {
        "plans.train.data_parallel": 1,
        "plans.train.model_parallel": 2,
        "plans.infer.data_parallel": 1,
        "plans.infer.model_parallel": 2,
    }
    assert values["data.max_prompt_length"] + values["rollout.max_new_tokens"] == 32768


def test_mindrlhf_reads_the_files_that_it_names() -> None:
    found = of_files(EXAMPLES["mindrlhf"])
    values = flat(found)
    kind = values["model.architecture"], values["model.hidden_size"], values["model.dtype"]
    assert kind == ("qwen2", 3584, "bfloat16")
    assert (values["experiment"], values["seed"], values["model.path"]) == ("qwen2.5-grpo", 11, "/models/Qwen2.5-7B")
    # 2 x 2 x 4 prompts; 2 x 1 x 2 responses of an update are less than a group of 8.
    assert (values["rollout.prompts_per_step"], values["trainer.prompts_per_mini_batch"]) == (16, 1)
    assert values["reward.functions"] == ["math", "format"] and values["reward.weights"] == [1.0, 0.5]
    assert values["rollout.slots"] == 128
    assert "plans.train.optimizer_shard" not in values, "one replica keeps all moments"
    assert findings_of(found, "runner_config.epochs")[0].status is Status.NOT_NEEDED
    assert values["tokenizer.path"] == "/models/Qwen2.5-7B"


def test_files_of_mindrlhf_may_be_given_instead(tmp_path: Path) -> None:
    text = (FILES / "grpo_qwen2_5_7b.yaml").read_text()
    (tmp_path / "grpo.yaml").write_text(text.replace('"finetune_', '"none/finetune_'))
    alone = convert([tmp_path / "grpo.yaml"])
    assert findings_of(alone, "actor_config.model_config")[-1].status is Status.UNREADABLE
    beside = convert([tmp_path / "grpo.yaml", FILES / "finetune_qwen2_5_7b.yaml", FILES / "predict_qwen2_5_7b.yaml"])
    assert flat(beside) == flat(of_files(EXAMPLES["mindrlhf"]))


def test_verl_gspo_of_the_seed() -> None:
    values = flat(of_files(EXAMPLES["verl gspo"]))
    wanted = {"experiment": "gsm8k-gspo-3b", "device": "Ascend", "resume": "never", "algorithm.name": "gspo",
              "algorithm.clip_low": 0.0003, "algorithm.clip_high": 0.0004,
              "algorithm.loss_agg_mode": "seq-mean-token-mean", "rollout.prompts_per_step": 512,
              "rollout.num_generations": 16, "rollout.max_new_tokens": 8192, "rollout.slots": 128,
              "data.max_prompt_length": 2048, "data.train.format": "verl",
              "data.train.path": "/data/gsm8k/train.parquet", "data.truncation": "drop",
              "trainer.prompts_per_mini_batch": 128, "trainer.max_tokens_per_micro_batch": 40960, "trainer.epochs": 10,
              "plans.train.data_parallel": 4, "plans.train.model_parallel": 2, "plans.infer.data_parallel": 4,
              "plans.infer.model_parallel": 2, "optimizer.beta2": 0.999, "logging.trackers": ["tensorboard"],
              "model.num_hidden_layers": 36}  # fmt: skip
    assert {key: values.get(key) for key in wanted} == wanted
    assert "algorithm.clip_ratio_c" not in values and "algorithm.log_ratio_max" not in values


def test_verl_dapo_of_the_seed() -> None:
    found = of_files(EXAMPLES["verl dapo"])
    values = flat(found)
    wanted = {"algorithm.name": "grpo", "algorithm.clip_low": 0.2, "algorithm.clip_high": 0.28,
              "algorithm.clip_ratio_c": 10.0, "algorithm.loss_agg_mode": "token-mean",
              "algorithm.filter_groups.refill": True, "algorithm.filter_groups.metric": "accuracy",
              "algorithm.filter_groups.when_short": "stop", "algorithm.filter_groups.max_num_gen_batches": 10,
              "algorithm.filter_groups.prompts_per_draw": 1536, "reward.functions": ["auto", "overlong"],
              "reward.overlong.buffer_len": 4096, "reward.overlong.max_len": 20480, "optimizer.warmup_steps": 10,
              "eval.num_samples": 32, "eval.pass_at_k": [1, 32], "eval.temperature": 0.6,
              "plans.train.data_parallel": 16, "plans.train.context_parallel": 2,
              "model.path": "/data/models/Qwen2.5-32B", "model.num_hidden_layers": 64}  # fmt: skip
    assert {key: values.get(key) for key in wanted} == wanted
    assert values["logging.trackers"] == ["wandb"]


def test_trl_gspo_of_its_paper_index(tmp_path: Path) -> None:
    found = of_files(EXAMPLES["trl gspo"])
    values = flat(found)
    # 8 responses x 4 cards x 4 passes are 16 prompts with 8 each; 4 of them are an update, so that 1,000 are 250 steps.
    wanted = {"algorithm.name": "gspo", "algorithm.clip_low": 0.0003, "algorithm.clip_high": 0.0004,
              "algorithm.loss_agg_mode": "seq-mean-token-mean", "algorithm.kl.placement": None,
              "algorithm.advantage.eps": 0.0001, "algorithm.rollout_correction.level": "sequence",
              "algorithm.rollout_correction.mode": "mask", "algorithm.rollout_correction.max": 3.0,
              "rollout.prompts_per_step": 16, "rollout.num_generations": 8, "rollout.max_new_tokens": 512,
              "trainer.prompts_per_mini_batch": 4, "trainer.samples_per_micro_batch": 8, "trainer.max_steps": 250,
              "trainer.save_every": 125, "plans.train.data_parallel": 4, "plans.infer.data_parallel": 2,
              "plans.infer.model_parallel": 2, "model.num_hidden_layers": 36, "model.lora.rank": 16,
              "model.lora.targets": ["all"], "reward.functions": ["math"], "optimizer.weight_decay": 0.0}  # fmt: skip
    assert {key: values.get(key) for key in wanted} == wanted
    assert (found.missing, found.refused) == ([], [])
    with pytest.raises(ConfigError) as error:
        load_config(written(found, tmp_path))
    asked = {line.strip().partition(":")[0] for line in str(error.value).splitlines()[1:]}
    assert asked == {"model.path", "tokenizer.path", "data.train.path", "data.eval.path"}


@pytest.mark.parametrize("name", OF_ASCEND)
def test_scripts_for_ascend_ask_for_paths_alone(name: str, tmp_path: Path) -> None:
    found = of_files((name,))
    assert (found.missing, found.refused) == ([], [])
    assert [one.source for one in found.findings if one.status is Status.UNKNOWN] == []
    with pytest.raises(ConfigError) as error:
        load_config(written(found, tmp_path))
    asked = {line.strip().partition(":")[0] for line in str(error.value).splitlines()[1:]}
    paths = {"model.path", "tokenizer.path", "data.train.path", "data.eval.path"}
    assert paths <= asked <= paths | {"reward.functions"}


@pytest.mark.parametrize("name", OF_ASCEND[:3])
def test_one_drawn_answer_with_a_cut_of_its_own(name: str) -> None:
    values = flat(of_files((name,)))
    wanted = {"eval.num_samples": 1, "eval.do_sample": True, "eval.temperature": 1.0, "eval.top_p": 0.7,
              "eval.top_k": None}  # fmt: skip
    assert {key: values.get(key) for key in wanted} == wanted


def test_verl_gspo_of_experts() -> None:
    found = of_files(("verl_gspo_30b_megatron.sh",))
    values = flat(found)
    wanted = {"model.architecture": "qwen3_moe", "model.num_hidden_layers": 48, "plans.train.data_parallel": 2,
              "plans.train.model_parallel": 4, "plans.train.pipeline_stage": 4, "plans.train.expert_parallel": 8,
              "plans.train.expert_tensor_parallel": 1, "plans.infer.data_parallel": 8, "plans.infer.model_parallel": 4,
              "optimizer.warmup_steps": 10, "optimizer.warmup_ratio": None}  # fmt: skip
    assert {key: values.get(key) for key in wanted} == wanted
    assert "taken for Qwen3-30B" in findings_of(found, "model.*")[0].text


def test_experts_do_not_fit_on_half_the_cards(tmp_path: Path) -> None:
    text = (FILES / "verl_gspo_30b_megatron.sh").read_text().replace("NNODES:-4", "NNODES:-2")
    (tmp_path / "half.sh").write_text(text)
    found = convert([tmp_path / "half.sh"])
    (refused,) = found.refused
    assert refused.startswith("plans.train.expert_parallel: 8 must divide the 4 ranks of a stage")
    assert refused.endswith("nearest legal: 4")
    (finding,) = findings_of(found, "actor_rollout_ref.rollout.data_parallel_size")
    assert (finding.status, finding.text) == (Status.ADJUSTED, "4, as 16 cards allow; its engine takes 32 of them")
    assert flat(found)["plans.infer.data_parallel"] == 4


@pytest.mark.parametrize("name", KNOWN)
def test_models_that_are_known_by_name(name: str, tmp_path: Path) -> None:
    line = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m/{name} algorithm.adv_estimator=grpo"
    (tmp_path / "train.sh").write_text(f"{line} actor_rollout_ref.rollout.n=8 trainer.device=npu")
    found = convert([tmp_path / "train.sh"], None, GENERATED)
    assert (found.missing, found.refused) == ([], [])
    file = PROJECT / "model_configs" / f"{KNOWN[name][0]}.yaml"
    model = load_config(written(found, tmp_path)).model
    published = load_model_and_plans(file).model.model_dump(exclude={"path", "dtype"}) | dict(KNOWN[name][1])
    assert model.model_dump(exclude={"path", "dtype"}) == published


def test_one_size_of_a_known_model_can_be_set(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m/Llama-3.1-8B")
    values = flat(convert([tmp_path / "train.sh"], None, ["model.rope_scaling.factor=4.0"]))
    assert values["model.rope_scaling.factor"] == 4.0
    assert values["model.rope_scaling.original_max_position_embeddings"] == 8192


def test_sizes_of_a_folder_are_those_of_its_config(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (tmp_path / "train.sh").write_text(f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={folder}")
    values = flat(convert([tmp_path / "train.sh"]))
    assert (values["model.path"], values["tokenizer.path"]) == (str(folder), str(folder))
    assert (values["model.hidden_size"], values["model.rope_theta"]) == (64, 10000.0)
    model_folder(folder, model_type="something")
    found = convert([tmp_path / "train.sh"])
    assert "model_type is 'something'" in findings_of(found, "actor_rollout_ref.model.path")[-1].text
    assert "model.hidden_size" not in flat(found)


def test_refused_values_stay_and_the_nearest_legal_one_is_named(tmp_path: Path) -> None:
    text = (FILES / "verl_gspo_gsm8k_3b.sh").read_text().replace("=0.0003 ", "=0.2 ")
    (tmp_path / "wide.sh").write_text(text.replace("tensor_model_parallel_size=2", "tensor_model_parallel_size=3"))
    found = convert([tmp_path / "wide.sh"], None, GENERATED)
    assert flat(found)["algorithm.clip_low"] == 0.2
    refused = "\n".join(found.refused)
    assert "algorithm.clip_low=3e-4 and algorithm.clip_high=4e-4 (paper)" in refused
    assert "plans.train.model_parallel: 3 does not split the model evenly" in refused
    assert "nearest legal: 2 or 4" in refused
    assert "refused here" in "\n".join(report_lines(found))


def test_nothing_is_silent() -> None:
    """Every key of every example is in the report, and every value of the result has an origin beside it."""
    for names in (*EXAMPLES.values(), *zip(OF_ASCEND, strict=True)):
        found = of_files(names)
        reported = {finding.source for finding in found.findings}
        for name in names:
            for line in (FILES / name).read_text().splitlines():
                key = line.strip().removeprefix("+").partition("=")[0]
                if name.startswith("verl") and re.fullmatch(r"[^ #]+\.[^ ]+", key) and "=" in line:
                    assert key in reported, f"{name}: {key}"
        report = "\n".join(report_lines(found))
        assert all(source in report for source in reported if source.isprintable())


MIXTURES = {"pretrain_deepseek3.yaml": (256, 32), "pretrain_glm4_5_air.yaml": (64, 16)}


@pytest.mark.parametrize("name", MIXTURES)
def test_mindformers_mixtures_become_whole_models(name: str, tmp_path: Path) -> None:
    found = of_files((name,), GENERATED)
    assert (found.missing, found.refused) == ([], [])
    odd = (Status.UNKNOWN, Status.UNREADABLE)
    assert [one.source for one in found.findings if one.status in odd] == []
    config = load_config(written(found, tmp_path))
    train = config.plans.train
    assert (train.world_size, train.expert_parallel, train.expert_slices) == (*MIXTURES[name], 1)
    if "glm" in name:
        published = load_model_and_plans(PROJECT / "model_configs" / "glm4_5_air.yaml").model
        assert config.model.model_dump(exclude={"path", "dtype"}) == published.model_dump(exclude={"path", "dtype"})
        return
    latent = (config.model.q_lora_rank, *config.model.latent_dims, config.model.head_dim, config.model.value_dim)
    assert latent == (1536, 512, 64, 192, 128) and config.model.num_key_value_heads == 128
    assert config.model.rope_scaling is not None
    assert config.model.rope_scaling.model_dump(exclude_none=True) == {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip


def test_what_a_mindformers_class_says_counts_where_its_file_does_not(tmp_path: Path) -> None:
    text = (FILES / "pretrain_deepseek3.yaml").read_text()
    sizes = ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "v_head_dim", "n_routed_experts", "n_group",
             "topk_group", "first_k_dense_replace", "routed_scaling_factor", "norm_topk_prob", "n_shared_experts",
             "num_experts_per_tok", "qk_nope_head_dim", "qk_rope_head_dim")  # fmt: skip
    lines = [line for line in text.splitlines() if line.strip().partition(":")[0] not in sizes]
    (tmp_path / "given.yaml").write_text("\n".join(lines))
    values = flat(convert([tmp_path / "given.yaml"]))
    whole = flat(of_files(("pretrain_deepseek3.yaml",)))
    assert len(lines) == len(text.splitlines()) - len(sizes)
    assert values == whole | {"experiment": values["experiment"]}
