"""Whole jobs on emulated cards, started as a user starts them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from games import GAME, GAMES
from running import PROJECT, command, environment, read_lines, sets, succeeded

# Small enough for eight cards on two cores. Two layers per stage, heads of 16, an untied table.
EXPERIMENT = f"""include: {PROJECT}/model_configs/qwen2_tiny.yaml
experiment: small
seed: 1
model: {{hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, tie_word_embeddings: false}}
data:
  train: {{format: arithmetic, split: train, forgotten_carries: 0.65}}
  eval: {{format: arithmetic, split: test, max_rows: 8}}
  max_prompt_length: 32
warmup:
  max_steps: 3
  batch_size: 16
  lr: 4e-3
  check: {{format: arithmetic, split: dev, max_rows: 8}}
  check_every: 3
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 12, slots: 8}}
algorithm: {{name: gspo}}
reward: {{functions: [reward.py:share_of_digits]}}
optimizer: {{lr: 5e-5}}
trainer:
  max_steps: 2
  prompts_per_mini_batch: 2
  samples_per_micro_batch: 2
  length_multiple: 16
  save_every: 1
eval: {{every: 2}}
"""

# A model of three warm-up updates answers nothing right, and where all rewards are equal there is nothing to learn.
REWARD = """
def share_of_digits(data_source, solution_str, ground_truth, extra_info=None):
    return sum(character.isdigit() for character in solution_str) / max(len(solution_str), 1)
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text(REWARD, encoding="utf-8")
    path = tmp_path / "emulated.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


@pytest.fixture
def run(cards: None, experiment: Path) -> Callable[..., subprocess.CompletedProcess]:
    """run(name of the run folder, settings...): `mindgspo run --emulate-ascend`, which must succeed."""

    def start(name: str, *settings: str, emulate: bool = True) -> subprocess.CompletedProcess:
        words = ["--emulate-ascend"] if emulate else []
        overrides = sets(f"run_dir={experiment.parent / name}", *settings)
        done = succeeded("run", experiment, *overrides, *words, cwd=experiment.parent)
        return done

    return start


def started_until_saved(experiment: Path, name: str, *settings: str) -> subprocess.Popen:
    """The launcher of a run on emulated cards that has saved its first step and goes on."""
    launcher = subprocess.Popen(
        command("run", experiment, *sets(f"run_dir={experiment.parent / name}", *settings), "--emulate-ascend"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=experiment.parent, env=environment(),
    )  # fmt: skip
    while not (experiment.parent / name / "checkpoints" / "step_00000001").exists():
        assert launcher.poll() is None, launcher.communicate()[0][-4000:]
        time.sleep(0.2)
    return launcher


def metrics(run_dir: Path) -> list[dict]:
    return read_lines(run_dir / "metrics.jsonl")


def check_updates(run_dir: Path) -> None:
    """Every step learnt something from weights that the sampler had, too."""
    updates = [row for row in metrics(run_dir) if "actor/grad_norm" in row]
    assert updates
    for row in updates:
        assert row["actor/grad_norm"] > 0, row
        assert row["actor/first_ratio_error_max"] < 1e-4, row


def check_same(on_cards: Path, on_cpu: Path, *, last_step: int) -> None:
    """Two run folders have the same responses and updates up to a step; 16 responses each. Later a draw that lies on
    the edge between two tokens may go either way."""

    def values(folder: Path, file: str, key: str) -> list:
        return [row[key] for row in read_lines(folder / file) if row["step"] <= last_step and key in row]

    answers = values(on_cards, "samples.jsonl", "response")
    assert len(answers) == 16 * last_step and answers == values(on_cpu, "samples.jsonl", "response")
    for key in ("sft/loss", "sft/grad_norm", "actor/loss", "actor/grad_norm", "actor/entropy"):
        found = values(on_cards, "metrics.jsonl", key)
        assert found and found == pytest.approx(values(on_cpu, "metrics.jsonl", key), abs=1e-5), key


def steps(run_dir: Path) -> list[int]:
    """Each once, though it may have a line for training and one for evaluation."""
    return sorted({row["step"] for row in metrics(run_dir)})


SHORT = ("warmup.max_steps=1", "warmup.check_every=1", "trainer.max_steps=1", "eval.every=1", "data.eval.max_rows=4")


@pytest.mark.smoke
def test_a_whole_run_on_one_card(run: Callable, experiment: Path) -> None:
    done = run("card", *SHORT)
    run_dir = experiment.parent / "card"
    assert "emulated Ascend cards" in done.stdout
    assert "emulated Ascend cards" in (run_dir / "report.html").read_text()
    assert json.loads((run_dir / "summary.json").read_text())["finished"] is True
    assert (run_dir / "export" / "model.safetensors").is_file()
    run("cpu", *SHORT, emulate=False)
    found, wanted = metrics(run_dir), metrics(experiment.parent / "cpu")
    assert [row["step"] for row in found] == [row["step"] for row in wanted]
    for on_card, on_cpu in zip(found, wanted, strict=True):
        # Of the same samples; what is drawn later differs by the dtype of the cache.
        for key in ("sft/loss", "sft/grad_norm"):
            if key in on_cpu:
                assert on_card[key] == pytest.approx(on_cpu[key], rel=1e-5), key
    assert "emulated Ascend cards" not in (experiment.parent / "cpu" / "report.html").read_text()
    left = [path.name for path in Path("/dev/shm").glob("ascend-emulator-*")]
    assert not [name for name in left if not psutil.pid_exists(int(name.rsplit("-", 1)[1]))], left


LAYERS = "model.num_hidden_layers=4"
EXPERTS = (
    LAYERS, "model.architecture=qwen3_moe", "model.head_dim=16", "model.num_experts=8",
    "model.num_experts_per_tok=2", "model.moe_intermediate_size=32",
)  # fmt: skip
WHOLE = "expert_tensor_parallel: 1"


@pytest.mark.slow
@pytest.mark.parametrize(("model", "eight", "fewer"), [
    ((LAYERS,),
     ("plans.train={model_parallel: 4, pipeline_stage: 2, micro_batch_num: 2}",
      "plans.infer={data_parallel: 2, model_parallel: 4}"),
     ("plans.train={data_parallel: 2}", "plans.infer={data_parallel: 2}")),
    (EXPERTS,
     ("plans.train={data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, "
      f"expert_parallel: 4, {WHOLE}}}",
      f"plans.infer={{data_parallel: 2, model_parallel: 4, expert_parallel: 4, {WHOLE}}}"),
     ("plans.train={data_parallel: 4, expert_parallel: 2, optimizer_shard: true}",
      f"plans.infer={{data_parallel: 2, model_parallel: 2, expert_parallel: 2, {WHOLE}}}")),
], ids=["dense", "experts"])  # fmt: skip
def test_the_eight_card_plans(cards: None, run: Callable, experiment: Path, model, eight, fewer) -> None:
    """Warm-up, rollout, scores, updates, reshard, swap, evaluation, checkpoint; resume on another plan; export. The
    first step is that of one process on CPU, with a cache as coarse."""
    launcher = started_until_saved(experiment, "cards", *model, *eight, "swap.enabled=true", "reshard.verify=full")
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, output[-4000:]
    run_dir = experiment.parent / "cards"
    kept = metrics(run_dir)
    assert steps(run_dir) == [0, 1]
    run("cards", *model, *fewer, "resume=auto")
    assert steps(run_dir) == [0, 1, 2]
    assert (run_dir / "export" / "model.safetensors").is_file()
    assert metrics(run_dir)[: len(kept)] == kept
    check_updates(run_dir)
    run("cpu", *model, "rollout.cache_dtype=bfloat16", emulate=False)
    check_same(run_dir, experiment.parent / "cpu", last_step=1)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    ("plans.train.data_parallel=2", "plans.infer.model_parallel=2"),
    ("plans.train={model_parallel: 2, use_seq_parallel: true}", "plans.infer.data_parallel=2"),
    ("plans.train={pipeline_stage: 2, micro_batch_num: 2}", "plans.infer.data_parallel=2",
     "plans.reference.data_parallel=2", "algorithm.kl={placement: loss, coef: 0.1}"),
    ("model.dtype=bfloat16", "plans.train={data_parallel: 2, optimizer_shard: true}", "plans.infer.data_parallel=2"),
    ("plans.train={context_parallel: 2, optimizer_shard: true}", "plans.infer.data_parallel=2",
     "plans.reference.context_parallel=2", "algorithm.kl={placement: loss, coef: 0.1}",
     "trainer.samples_per_micro_batch=null", "trainer.max_tokens_per_micro_batch=128", "trainer.packing=true"),
    ("model.lora.rank=4", "plans.train.model_parallel=2", "plans.infer.model_parallel=2", "swap.enabled=true",
     "algorithm.kl={placement: loss, coef: 0.1}"),
    ("model.lora.rank=4", "model.dtype=bfloat16", "plans.train={data_parallel: 2, optimizer_shard: true}",
     "plans.infer.model_parallel=2", "swap.enabled=true", "reshard.verify=full"),
], ids=["data", "model", "stages and a reference policy", "sharded moments in bfloat16", "parts of packed rows",
        "adapters on one base", "merged adapters in bfloat16"])  # fmt: skip
def test_two_card_plans(run: Callable, experiment: Path, settings: tuple[str, ...]) -> None:
    run("cards", *settings)
    assert steps(experiment.parent / "cards") == [0, 1, 2]
    check_updates(experiment.parent / "cards")


@pytest.mark.slow
@pytest.mark.parametrize("infer", ["data_parallel", "model_parallel"])
def test_two_cards_train_while_two_others_generate(run: Callable, experiment: Path, infer: str) -> None:
    """One step off: the same responses as on CPU, whose cache is as coarse here, and the same updates."""
    settings = (
        "trainer.schedule=one_step_off", "trainer.max_steps=3", "rollout.cache_dtype=bfloat16",
        "algorithm.old_log_probs=recompute", "logging.groups_per_step=null",
    )  # fmt: skip
    run("cards", "plans.train.data_parallel=2", f"plans.infer.{infer}=2", *settings)
    run("cpu", *settings, emulate=False)
    run_dir = experiment.parent / "cards"
    check_same(run_dir, experiment.parent / "cpu", last_step=3)
    assert [row["staleness/token_max"] for row in metrics(run_dir) if "actor/loss" in row] == [0, 1, 1]
    check_updates(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("infer", ["data_parallel", "model_parallel"])
def test_two_cards_play_episodes(run: Callable, experiment: Path, infer: str) -> None:
    """Several turns of each sample, with the environment's answers between them, are those of one card."""
    (experiment.parent / "game.py").write_text(GAME, encoding="utf-8")
    settings = (
        *GAMES, "rollout.max_new_tokens=96", "warmup.max_steps=25", "warmup.lr=1e-2", "warmup.check_every=25",
        "algorithm.old_log_probs=recompute", "logging.groups_per_step=null",
    )  # fmt: skip
    run("two", "plans.train.data_parallel=2", f"plans.infer.{infer}=2", *settings)
    run("one", *settings)
    run_dir = experiment.parent / "two"
    check_same(run_dir, experiment.parent / "one", last_step=1)
    check_updates(run_dir)
    assert all(row["env/turns/mean"] > 1 for row in metrics(run_dir) if "actor/loss" in row)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sign", "exit_code", "words"),
    [(signal.SIGKILL, 137, "rank 1 failed first"), (signal.SIGSTOP, 124, "awaited: rank 1 at step")],
    ids=["killed", "in no collective"],
)
def test_a_rank_that_fails_is_named_and_the_others_end(cards, experiment, sign, exit_code, words):
    launcher = started_until_saved(
        experiment, "failed", "trainer.max_steps=50", "plans.train.data_parallel=2", "plans.infer.data_parallel=2",
        "watch={factor: 1, min_seconds: 40, on_stall: stop}",
    )  # fmt: skip
    # The workers were there first; what a worker leaves behind comes to the launcher, too, with its rank.
    children = sorted(psutil.Process(launcher.pid).children(), key=psutil.Process.create_time, reverse=True)
    ranks = {rank: child for child in children if (rank := _rank(child)) is not None}
    os.kill(ranks["1"].pid, sign)
    began = time.monotonic()
    output, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == exit_code and words in output, output[-3000:]
    assert time.monotonic() - began < 30 + 40 * (sign == signal.SIGSTOP)
    _, alive = psutil.wait_procs(ranks.values(), timeout=10)
    assert not alive


def _rank(process: psutil.Process) -> str | None:
    try:
        environment = process.environ()
    except psutil.Error:
        return None
    return environment.get("MS_NODE_ID") if environment.get("MS_ROLE") == "MS_WORKER" else None
