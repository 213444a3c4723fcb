"""What the folders of a model and its tokenizer say counts; and nothing that could not be read becomes a default."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_cases.conversions import converted, findings_of, flat, model_folder

from mindgspo_migrate.convert import report_lines
from mindgspo_migrate.models import is_local, sizes_of
from mindgspo_migrate.tables import Status

TRAIN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"
MINDRLHF = """
rl_config: {num_generations: 8}
generate_config:
  max_num_seqs: 16
  sampling_config: {eos_token_id: [7, 5], pad_token_id: 5, bos_token_id: 5}
"""


@pytest.mark.parametrize("text", [f"{TRAIN} actor_rollout_ref.model.path=Qwen/Qwen2.5-7B", MINDRLHF,
                                  "run_mode: finetune\nmodel: {model_config: {num_layers: 9, hidden_size: 32}}",
                                  "megatron_training: {stage: ray_grpo, tokenizer_name_or_path: /m/Qwen3-8B}",
                                  "model_name_or_path: Qwen/Qwen3-8B"],
                         ids=["verl", "mindrlhf", "mindformers", "mindspeed", "trl"])  # fmt: skip
def test_the_folder_given_on_the_command_line_says_the_sizes(tmp_path: Path, text: str) -> None:
    folder = model_folder(tmp_path / "model")
    name = "given.sh" if "python3" in text else "given.yaml"
    found = converted(tmp_path, text, name=name, overrides=(f"model.path={folder}", f"tokenizer.path={folder}"))
    values = flat(found)
    assert (values["model.architecture"], values["model.hidden_size"]) == ("llama", 64)
    assert (values["model.num_hidden_layers"], values["model.max_position_embeddings"]) == (2, 4096)
    assert values["tokenizer.eos_tokens"] == ["<|turn|>", "<|end|>"]
    if "num_layers: 9" in text:
        (finding,) = findings_of(found, "model.num_hidden_layers")
        assert (finding.status, finding.value) == (Status.ADJUSTED, 9) and "config.json" in finding.text
    kept = converted(tmp_path, text, name=name, overrides=(f"model.path={folder}", "model.num_hidden_layers=3"))
    assert flat(kept)["model.num_hidden_layers"] == 3, "--set counts above all"


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", model_type="gpt2")
    (finding,) = findings_of(converted(tmp_path, TRAIN, overrides=(f"model.path={folder}",)), "model.path")
    assert finding.status is Status.UNREADABLE and "gpt2" in finding.text


def test_end_tokens_of_mindrlhf_are_named_by_the_tokenizer(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    found = converted(tmp_path, MINDRLHF, name="given.yaml", overrides=(f"tokenizer.path={folder}",))
    assert flat(found)["tokenizer.eos_tokens"] == ["<|turn|>", "<|end|>"]
    assert flat(found)["tokenizer.pad_token"] == "<|end|>", "the file counts, not generation_config.json"
    nameless = converted(tmp_path, MINDRLHF, name="given.yaml")
    finding = findings_of(nameless, "generate_config.sampling_config.eos_token_id")[-1]
    assert finding.status is Status.UNREADABLE and "set tokenizer.eos_tokens" in finding.text
    assert "tokenizer.eos_tokens" not in flat(nameless)
    set_by_hand = converted(tmp_path, MINDRLHF, name="given.yaml", overrides=("tokenizer.eos_tokens=[a]",))
    assert flat(set_by_hand)["tokenizer.eos_tokens"] == ["a"]


@pytest.mark.parametrize(("name", "positions", "theta"), [("Qwen3-30B-A3B-Base", 32768, 1e6),
                                                          ("Qwen3-30B-A3B-Instruct-2507", 262144, 1e7),
                                                          ("Qwen2.5-Math-7B", 4096, 1e4)])  # fmt: skip
def test_sizes_by_name(name: str, positions: int, theta: float) -> None:
    found = sizes_of(f"/models/{name}")
    assert found is not None
    assert (found[0]["max_position_embeddings"], found[0]["rope_theta"]) == (positions, theta)
    assert found[0]["num_hidden_layers"] == (48 if "A3B" in name else 28)


@pytest.mark.parametrize("text", [
    f'{TRAIN} data.shuffle=true $SETTINGS_FROM_OUTSIDE',
    f'{TRAIN} actor_rollout_ref.actor.policy_loss.loss_mode=$MODE',
    f'if [ "$HOST" = x ]; then\n L=(actor_rollout_ref.actor.policy_loss.loss_mode=gspo)\nfi\n{TRAIN} a.b=1 "${{L[@]}}"',
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae",
    "python3 -m verl.trainer.main_ppo data.shuffle=true",
])  # fmt: skip
def test_a_loss_that_cannot_be_read_is_never_another_one(tmp_path: Path, text: str) -> None:
    found = converted(tmp_path, text)
    assert "algorithm.name" in found.missing and flat(found)["algorithm.name"] is None
    assert any(line.startswith("  algorithm.name: --set algorithm.name=gspo") for line in report_lines(found))
    chosen = converted(tmp_path, text, overrides=("algorithm.name=gspo",))
    assert "algorithm.name" not in chosen.missing and flat(chosen)["algorithm.name"] == "gspo"


def test_no_default_is_assumed_where_a_word_may_hold_any_key(tmp_path: Path) -> None:
    found = converted(tmp_path, f"{TRAIN} data.max_prompt_length=7 $MORE")
    values = flat(found)
    assert values["data.max_prompt_length"] == 7 and "algorithm.clip_low" not in values
    (finding,) = findings_of(found, "data.max_response_length")
    assert finding.status is Status.UNREADABLE and "may stand in ${MORE}" in finding.text


def test_the_device_is_not_said_to_be_a_default_of_verl(tmp_path: Path) -> None:
    (finding,) = findings_of(converted(tmp_path, f"{TRAIN} data.shuffle=true"), "device")
    assert finding.status is Status.ASSUMED and finding.value == "Ascend"
    assert "verl's own default is cuda" in finding.text


def test_the_cards_of_a_sequence_are_those_of_model_and_context_parallel(tmp_path: Path) -> None:
    for section, slices, context in (("", 1, 4), ("fsdp_config.", 1, 4), ("", 2, 2), ("", 4, 1), ("", 8, 1)):
        key = f"actor_rollout_ref.actor.{section}ulysses_sequence_parallel_size"
        text = (
            f"{TRAIN} {key}=4 actor_rollout_ref.rollout.tensor_model_parallel_size={slices} trainer.nnodes=2 "
            "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=5000"
        )
        found = converted(tmp_path, text)
        values = flat(found)
        assert (values["plans.train.model_parallel"], values["plans.train.context_parallel"]) == (slices, context)
        assert values["plans.train.data_parallel"] == 16 // (slices * context)
        assert values.get("plans.train.use_seq_parallel", False) == (slices > 1)
        assert values["trainer.max_tokens_per_micro_batch"] == 20000, "verl counts those of one card"
        told = findings_of(found, key)[-1]
        if slices > 1:
            assert (
                told.status is Status.ADJUSTED and f"model_parallel {slices} x context_parallel {context}" in told.text
            )


def test_the_cards_of_a_cluster_that_the_script_does_not_name(tmp_path: Path) -> None:
    text = (
        f"{TRAIN} trainer.nnodes=$NODES trainer.n_gpus_per_node=8 actor_rollout_ref.actor.strategy=megatron "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "
        "actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4"
    )
    values = flat(converted(tmp_path, text))
    # 16 is the fewest that 8 cards a machine, 2 x 8 of training and 4 of generation divide.
    assert values["plans.train.data_parallel"] == 8 and values["plans.infer.data_parallel"] == 4


def test_the_report_says_how_to_give_data_and_folders(tmp_path: Path) -> None:
    lines = list(report_lines(converted(tmp_path, "rl_config: {num_generations: 8}", name="given.yaml")))
    assert any(
        line.startswith("  data.train: --set data.train.format=verl --set data.train.path=FILE") for line in lines
    )
    assert any(line.startswith("  data.eval: --set data.eval.format=verl") for line in lines)
    assert any(line.startswith("  model: --set model.path=FOLDER") for line in lines)


@pytest.mark.parametrize(("path", "expected"), [("Qwen/Qwen3-8B", False), ("./Qwen3-8B", True), ("../Qwen3-8B", True),
                                                ("/m/Qwen3-8B", True), ("~/Qwen3-8B", True), ("Qwen3-8B", True),
                                                ("a/b/c", True)])  # fmt: skip
def test_paths_are_told_from_names_on_a_hub(path: str, expected: bool) -> None:
    assert is_local(path) is expected
