"""The smoke test, about two minutes: what the machine computes, on a tiny model under the plans of an experiment.

    kernels and groups   one kernel per class of operators against numpy, AllReduce over each group (`smoke_ranks`)
    run                  a warm-up and two steps; weights brought from the training plan to the rollout plan, verified

Every part runs in processes of its own, which may crash; their logs stay in the folder.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mindgspo.config import ExperimentConfig, ParallelPlan, load_config
from mindgspo.config.yaml_dialect import write_document
from mindgspo.doctor.hccl import ROLES
from mindgspo.io import make_folder, write_file
from mindgspo.launch.error_codes import find_in_file, told
from mindgspo.launch.failures import last_lines
from mindgspo.launch.launcher import launch

_RUN_S = 1200.0
_MOST_MISMATCH = 2e-2
"""Between sampler and trainer, nats per token; the cache of a card rounds to bfloat16."""

# Groups of equal rewards teach nothing, and a model of a few updates answers nothing right.
_REWARD = '''"""A reward that any response has some of."""


def share_of_digits(data_source, solution_str, ground_truth, extra_info=None):
    return sum(character.isdigit() for character in solution_str) / max(len(solution_str), 1)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part, when it is over. problem: "" where all went well."""

    name: str
    seconds: float
    problem: str

    def __str__(self) -> str:
        return f"{self.name}: {'FAILED, ' + self.problem if self.problem else 'ok'} ({self.seconds:.0f} s)"


def write_experiment(folder: Path, device: Literal["CPU", "Ascend"], config: ExperimentConfig | None) -> Path:
    """A tiny experiment of the plans of another one, or of one process."""
    train = ParallelPlan() if config is None else config.plans.train
    infer = ParallelPlan() if config is None or config.has_servers else config.plans.infer
    if infer.world_size != train.world_size:
        infer = ParallelPlan(data_parallel=train.world_size)
    make_folder(folder)
    write_file(folder / "reward.py", _REWARD.encode())
    path = folder / "smoke.yaml"
    write_file(path, write_document(_settings(folder, device, train, infer)).encode())
    return path


def _settings(folder: Path, device: str, train: ParallelPlan, infer: ParallelPlan) -> dict[str, Any]:
    slices = math.lcm(train.model_parallel * train.context_parallel, infer.model_parallel)
    heads = max(4, slices)
    prompts = math.lcm(infer.data_parallel, train.data_parallel * train.micro_batch_num)
    plans = {
        name: {
            key: getattr(plan, key)
            for key in ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "micro_batch_num",
                        "use_seq_parallel", "optimizer_shard", "vocab_emb_dp")
            if getattr(plan, key) != getattr(ParallelPlan(), key)
        }
        for name, plan in (("train", train), ("infer", infer))
    }  # fmt: skip
    return {
        "experiment": "smoke",
        "device": device,
        "seed": 1,
        "run_dir": str(folder.absolute() / "run"),
        "model": {
            "architecture": "qwen2",
            "vocab_size": 512,
            "hidden_size": 16 * heads,
            "intermediate_size": 32 * heads,
            "num_hidden_layers": 2 * train.pipeline_stage,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": 128,
            "tie_word_embeddings": False,
        },
        "data": {
            "train": {"format": "arithmetic", "split": "train"},
            "eval": {"format": "arithmetic", "split": "test", "max_rows": 4},
            "max_prompt_length": 32,
        },
        "warmup": {"max_steps": 3, "batch_size": 4 * prompts, "lr": 4e-3},
        "rollout": {"prompts_per_step": prompts, "num_generations": 4, "max_new_tokens": 8, "slots": 8},
        "algorithm": {
            "name": "gspo",
            "clip_low": 0.5,  # a difference quotient must not meet a clipped ratio
            "clip_high": 0.5,
            "allow_wide_clip": True,
            "old_log_probs": "recompute",
        },
        "reward": {"functions": [f"{folder.absolute()}/reward.py:share_of_digits"]},
        "optimizer": {"lr": 1e-4, "weight_decay": 0.0},
        "trainer": {
            "max_steps": 2,
            "prompts_per_mini_batch": prompts,
            "samples_per_micro_batch": 2,
            "length_multiple": 16,
        },
        "reshard": {"verify": "full"},
        "eval": {"every": 2},
        "plans": plans,
    }


def smoke_test(path: Path) -> Iterator[Stage]:
    """Run the parts one after the other, each also where one before it failed. path: of `write_experiment`."""
    config = load_config(path)
    yield _kernels(path, config)
    yield _run(path, config)


def _kernels(path: Path, config: ExperimentConfig) -> Stage:
    """In as many ranks as the plans have; each calls this command again, see `cli.doctor`."""
    started, logs = time.monotonic(), path.parent / "logs"
    command = ["-m", "mindgspo.cli", "doctor", str(path), "--smoke"]
    code = launch(command, num_workers=config.plans.train.world_size, log_dir=logs, watch=config.watch)
    problem = f"see {logs}" if code else ""
    return Stage(name="kernels and groups", seconds=time.monotonic() - started, problem=problem)


def _run(path: Path, config: ExperimentConfig) -> Stage:
    started, log = time.monotonic(), path.parent / "run.log"
    assert config.run_dir is not None, "config is not resolved"
    # What an earlier launch left in the shell would make a rank of this run.
    environment = {name: value for name, value in os.environ.items() if name not in ROLES}
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                [sys.executable, "-m", "mindgspo.cli", "run", str(path)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=_RUN_S, env=environment,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = 124
    problem = f"exit code {code}, see {log}" if code else _wrong_metric(config.run_dir / "metrics.jsonl")
    if code:
        print(*(told(find_in_file(log)) or last_lines(log, 12)), sep="\n")
    return Stage(name="two steps, weights resharded and verified", seconds=time.monotonic() - started, problem=problem)


def _wrong_metric(metrics: Path) -> str:
    """What of the last step is not as it must be, "" where nothing."""
    name = "training/rollout_logprob_diff_mean"
    found = [line for text in metrics.read_text(encoding="utf-8").splitlines() if name in (line := json.loads(text))]
    if not found:
        return f"{metrics} has no {name}"
    value = found[-1][name]
    if value > _MOST_MISMATCH:
        return f"sampler and trainer differ by {value:.2g} nat per token, allowed are {_MOST_MISMATCH:g}"
    return ""
