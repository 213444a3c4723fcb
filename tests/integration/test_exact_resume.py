"""N steps are k steps, a stop, and N - k: bit for bit, whatever is under way at that moment.

A whole run saves every step. From some of its checkpoints new runs begin in processes of their own and must end as it
did: weights, moments, every figure and every sample.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import MODEL, mindgspo, sets, succeeded
from torture_runs import at_the_end

from mindgspo.checkpoint.store import read_state, step_folder
from mindgspo.metrics import unknown_names
from mindgspo.tensor_files.reader import open_tensors

STEPS = 4
# The reward of every third answer is always the same: those groups have no signal.
REWARD = """
def score(data_source, solution_str, ground_truth, extra_info):
    if FLAT and int(ground_truth) % 3 == 0:
        return 0.0
    return sum(ord(letter) * (place % 5 + 1) for place, letter in enumerate(solution_str)) % 11 / 10
"""
COMMON = f"""
experiment: exact
seed: 3
{MODEL}
reward: {{functions: [reward.py:score], workers: {{count: 1}}}}
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 8, slots: 16}}
optimizer: {{lr: 1e-3, schedule: cosine, warmup_ratio: 0.2}}
eval: {{every: 2}}
logging: {{groups_per_step: null, progress: false}}
"""
TRAINER = (
    f"trainer: {{max_steps: {STEPS}, prompts_per_mini_batch: 2, samples_per_micro_batch: 4, length_multiple: 32, "
    "save_every: 1, keep_checkpoints: 99"
)
KL = "kl: {placement: PLACE, coef: 0.05, target: 0.001, horizon: 100"
# 8 rows by 4: every second step ends an epoch exactly.
FROZEN = f"""
data:
  train: {{format: arithmetic, split: train, max_rows: 8}}
  eval: {{format: arithmetic, split: test, max_rows: 4}}
  max_prompt_length: 32
algorithm: {{name: gspo, {KL.replace("PLACE", "loss")}}}}}
{TRAINER}}}
"""
# 11 rows: prompts are deferred behind the end of an epoch, others drawn in their place, and groups wait for a later
# step.
MOVING = f"""
data:
  train: {{format: arithmetic, split: train, max_rows: 11}}
  eval: {{format: arithmetic, split: test, max_rows: 4}}
  max_prompt_length: 32
algorithm:
  name: gspo
  {KL.replace("PLACE", "reward")}, reference: {{mode: ema, every: 1, decay: 0.9}}}}
  filter_groups: {{metric: reward, refill: true, prompts_per_draw: 4, keep_surplus_steps: 2}}
{TRAINER}, epochs_per_rollout: 2, save_in_background: true, keep_best: 1}}
"""
# Recorded experts wait with their groups.
MIXTURE = """
include: exact.yaml
model: {architecture: qwen3_moe, num_experts: 6, num_experts_per_tok: 2, moe_intermediate_size: 16}
algorithm: {router_replay: rollout}
"""
TWO_REPLICAS = """
plans: {train: {data_parallel: 2}, infer: {data_parallel: 2}}
"""
ADAPTERS = """
include: exact.yaml
model: {lora: {rank: 4, alpha: 8.0, train_norms: true, init: pissa}}
"""
# Two sources with epochs of their own, and rows that rest.
SOURCES = """
include: exact.yaml
data:
  train:
    - {format: arithmetic, split: train, max_rows: 9, name: plain, weight: 3}
    - {format: arithmetic, split: dev, max_rows: 5, name: extra, weight: 1}
  curriculum: {max_rest_epochs: 3}
"""
MORE = {
    "sources": SOURCES,
    "sources_twice": SOURCES + TWO_REPLICAS,
    "routed": MIXTURE,
    "routed_twice": MIXTURE + TWO_REPLICAS,
    "adapted": ADAPTERS,
}


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A run without interruption, with the checkpoints of all its steps."""

    config: Path
    root: Path

    def checkpoint(self, step: int) -> Path:
        return step_folder(self.root / "checkpoints", step)

    def kept(self, step: int, name: str) -> dict:
        return read_state(self.checkpoint(step))["kept"][name]


@pytest.fixture(scope="module")
def whole_run(once: Callable[..., Path]) -> Callable[[str], Whole]:
    """whole_run("frozen"), as it "adapted", "moving", and as that the others: made when it is first asked for."""

    def make(folder: Path) -> None:
        is_flat = folder.name not in ("frozen", "adapted")
        (folder / "reward.py").write_text(f"FLAT = {is_flat}\n{REWARD}")
        (folder / "exact.yaml").write_text(COMMON + (MOVING if is_flat else FROZEN))
        if folder.name in MORE:
            (folder / "more.yaml").write_text(MORE[folder.name])
        succeeded("run", config_of(folder), cwd=folder)

    def config_of(folder: Path) -> Path:
        return folder / ("more.yaml" if folder.name in MORE else "exact.yaml")

    def run(name: str) -> Whole:
        folder = once(name, make)
        return Whole(config=config_of(folder), root=folder / "runs" / "exact")

    return run


def begin_at(whole: Whole, step: int, root: Path) -> str:
    """Another process, another folder: the rest of the run."""
    words = sets(f"resume={whole.checkpoint(step)}", f"run_dir={root}")
    done = succeeded("run", whole.config, *words, cwd=whole.config.parent)
    assert f"began at step {step} with {whole.checkpoint(step)}" in done.stdout
    return done.stdout


def test_in_the_middle_of_everything(whole_run, tmp_path: Path) -> None:
    whole = whole_run("routed")
    step = next(step for step in range(1, STEPS) if whole.kept(step, "surplus")["groups"])
    with open_tensors(whole.checkpoint(step) / "surplus.safetensors") as waiting:
        assert {"experts", "prompt_experts"} <= waiting.tensors.keys()
    assert (whole.checkpoint(step) / "reference.safetensors").is_file()
    begin_at(whole, step, tmp_path / "run")
    assert at_the_end(tmp_path / "run", whole.root) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frozen", "moving", "routed", "routed_twice", "sources", "sources_twice"])
@pytest.mark.parametrize("step", range(STEPS + 1))
def test_at_every_step(whole_run, tmp_path: Path, name: str, step: int) -> None:
    whole = whole_run(name)
    begin_at(whole, step, tmp_path / "run")
    assert at_the_end(tmp_path / "run", whole.root) == []


def test_two_sources_and_a_curriculum_go_on_after_a_kill(whole_run, tmp_path: Path) -> None:
    whole = whole_run("sources")
    lines = [json.loads(line) for line in (whole.root / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train-aux/plain/num_prompts" in line]
    assert len(steps) == STEPS and not any(map(unknown_names, lines))
    drawn = [sum(line[f"train-aux/{name}/num_prompts"] for line in steps) for name in ("plain", "extra")]
    assert drawn[0] == 3 * drawn[1] == whole.kept(STEPS, "stream")["drawn"][0]
    passed = sum(line["sampling/prompts"] for line in steps) / 14
    assert steps[-1]["training/epoch"] > passed, "rows were passed over"
    with open_tensors(whole.checkpoint(2) / "curriculum.safetensors") as rows:
        assert rows.read("rest").any() and rows.read("rest").shape == (14,)
    samples = [json.loads(line) for line in (whole.root / "samples.jsonl").read_text().splitlines()]
    assert {line["source"] for line in samples} == {"plain", "extra"}
    root = tmp_path / "run"
    words = sets("resume=auto", f"run_dir={root}")
    killed = mindgspo("run", whole.config, *words, cwd=whole.config.parent, env={"MINDGSPO_FAULT": "log.after:3=kill"})
    assert killed.returncode == -9
    done = succeeded("run", whole.config, *words, cwd=whole.config.parent)
    assert "resumed at step 2" in done.stdout and at_the_end(root, whole.root) == []
    text = whole.config.read_text().replace("weight: 1", "weight: 2")
    other = whole.config.with_name("other.yaml")
    other.write_text(text)
    refused = mindgspo("run", other, *words, cwd=whole.config.parent)
    assert refused.returncode and "data.train[1].weight: 2.0, the run has 1.0" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moving", "routed"])
def test_killed_while_a_thread_writes_the_checkpoint(whole_run, tmp_path: Path, name: str) -> None:
    whole = whole_run(name)
    root = tmp_path / "run"
    words = sets("resume=auto", f"run_dir={root}")
    num_files = len(list(whole.checkpoint(0).iterdir())) - 1  # each is a point, but for the manifest
    fault = {"MINDGSPO_FAULT": f"save.inside:{num_files + 2}=kill"}
    killed = mindgspo("run", whole.config, *words, cwd=whole.config.parent, env=fault)
    assert killed.returncode == -9
    assert [path.name for path in (root / "checkpoints").glob("step_*")] == ["step_00000000"]
    done = succeeded("run", whole.config, *words, cwd=whole.config.parent)
    assert "resumed at step 0" in done.stdout and at_the_end(root, whole.root) == []


@pytest.mark.parametrize("name", ["frozen", "adapted"])
def test_back_to_an_earlier_step_killed_on_the_way(whole_run, tmp_path: Path, name: str) -> None:
    """What was given up does not come back, although the process dies before the last of it is set aside; and from the
    end of an epoch the run goes on as it did before."""
    whole = whole_run(name)
    stream = whole.kept(2, "stream")
    assert (stream["position"], stream["deferred"]) == (8, []), "the epoch has ended with this step"
    assert whole.kept(2, "kl")["coef"] != whole.kept(0, "kl")["coef"], "the coefficient is adaptive"
    root = tmp_path / "run"
    shutil.copytree(whole.root, root)
    fault = {"MINDGSPO_FAULT": "going_back.inside:2=kill"}
    killed = mindgspo("run", whole.config, *sets(f"run_dir={root}", f"resume={root / 'checkpoints' / 'step_00000002'}"),
                      cwd=whole.config.parent, env=fault)  # fmt: skip
    assert killed.returncode == -9 and "going back to step 2" in killed.stdout, killed.stderr
    assert (root / "checkpoints" / "step_00000004").is_dir(), "it was not set aside yet"
    assert json.loads((root / "summary.json").read_text())["finished"], "nor was the end of the run"
    done = succeeded("run", whole.config, *sets(f"run_dir={root}", "resume=auto"), cwd=whole.config.parent)
    assert "resumed at step 2" in done.stdout
    assert at_the_end(root, whole.root) == []
    (aside,) = (root / "checkpoints").glob("abandoned-*")
    names = {"step_00000003", "step_00000004", "summary.json", "metrics.jsonl", "samples.jsonl", "export"}
    assert names <= {path.name for path in aside.iterdir()}
    assert {json.loads(line)["step"] for line in (aside / "metrics.jsonl").read_text().splitlines()} == {3, 4}
