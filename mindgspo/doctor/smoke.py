"""The smoke test: a tiny model computed on this machine, on its device and under the plans of an experiment.

    first       on cards, as many processes as the plans have: see `first_minutes`
    reference   one process on the CPU trains a step and dumps it
    ranks       as many again: each runs the dumped step again, as `mindgspo replay` does, then all of
                them add up over each group of the plans
    run         a warm-up and two steps; weights brought from the training plan to the rollout plan, verified

Every part runs in processes of its own, which may crash; their logs stay in the folder.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mindgspo.config import ExperimentConfig, ParallelPlan, load_config
from mindgspo.config.yaml_dialect import write_document
from mindgspo.doctor.host import ROLES
from mindgspo.errors import TrainingError
from mindgspo.io import make_folder, write_file
from mindgspo.launch.error_codes import find_in_file, told
from mindgspo.launch.failures import last_lines
from mindgspo.launch.launcher import launch
from mindgspo.parallel.platform.runtime import EMULATED

_RUN_S = 1200.0
_MOST_MISMATCH = 2e-2
"""Between sampler and trainer, nats per token; the cache of a card rounds to bfloat16."""
_PLAN_KEYS = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "micro_batch_num",
              "use_seq_parallel", "optimizer_shard", "vocab_emb_dp")  # fmt: skip
# Groups of equal rewards have no gradient, and a model after a few updates gives no right answer.
_REWARD = '''"""A reward that any response has some of."""


def share_of_digits(data_source, solution_str, ground_truth, extra_info=None):
    return sum(character.isdigit() for character in solution_str) / max(len(solution_str), 1)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """Outcome of one part."""

    name: str
    seconds: float
    problem: str
    """Empty if all went well."""

    def __str__(self) -> str:
        return f"{self.name}: {'FAILED, ' + self.problem if self.problem else 'ok'} ({self.seconds:.0f} s)"


def write_smoke_experiment(folder: Path, device: Literal["CPU", "Ascend"], config: ExperimentConfig | None) -> Path:
    """Write a tiny experiment with the plans of another one, or for one process; and beside it reference.yaml, which
    computes the same in one process on the CPU, and for cards first.yaml."""
    train = ParallelPlan() if config is None else config.plans.train
    infer = ParallelPlan() if config is None or config.has_servers else config.plans.infer
    if infer.world_size != train.world_size:
        infer = ParallelPlan(data_parallel=train.world_size)
    make_folder(folder)
    write_file(folder / "reward.py", _REWARD.encode())
    settings = _settings(folder, train, infer)
    plans = {name: _plan(plan) for name, plan in (("train", train), ("infer", infer))}
    trainer, path = settings["trainer"], folder / "smoke.yaml"
    for name in (path, *([_first(path)] if device == "Ascend" else [])):
        write_file(name, write_document({**settings, "device": device, "plans": plans}).encode())
    own = {"run_dir": f"{folder.absolute()}/reference", "trainer": {**trainer, "max_steps": 1, "dump_step": 1}}
    write_file(_reference(path), write_document({**settings, **own, "device": "CPU"}).encode())
    return path


def _first(path: Path) -> Path:
    return path.with_name("first.yaml")


def _reference(path: Path) -> Path:
    return path.with_name("reference.yaml")


def _plan(plan: ParallelPlan) -> dict[str, Any]:
    return {key: getattr(plan, key) for key in _PLAN_KEYS if getattr(plan, key) != getattr(ParallelPlan(), key)}


def _settings(folder: Path, train: ParallelPlan, infer: ParallelPlan) -> dict[str, Any]:
    slices = math.lcm(train.model_parallel * train.context_parallel, infer.model_parallel)
    heads = max(4, slices)
    prompts = math.lcm(infer.data_parallel, train.data_parallel * train.micro_batch_num)
    return {
        "experiment": "smoke",
        "seed": 1,
        "run_dir": f"{folder.absolute()}/run",
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
        "algorithm": {"name": "gspo", "old_log_probs": "recompute"},
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
    }


def smoke_test(path: Path, late_s: float) -> Iterator[SmokeResult]:
    """Run the parts in turn, each even if an earlier one failed. path: of `write_smoke_experiment`. late_s: as in
    `first_minutes`."""
    config, first = load_config(path), _first(path)
    parts: dict[str, Callable[[], str]] = {
        **({"first minutes": lambda: _ranks(first, config, f"--late={late_s}")} if first.exists() else {}),
        "reference step on the CPU": lambda: _run(_reference(path), without=(*ROLES, EMULATED)),
        "kernels and groups": lambda: _ranks(path, config),
        "two steps, weights resharded and verified": lambda: _run(path, without=ROLES) or _wrong_metric(config),
    }
    for name, part in parts.items():
        started = time.monotonic()
        problem = part()
        yield SmokeResult(name=name, seconds=time.monotonic() - started, problem=problem)


def _ranks(path: Path, config: ExperimentConfig, *words: str) -> str:
    """Run one process per rank of the plans; each calls this command again, see `cli.doctor`."""
    command = ["-m", "mindgspo.cli", "doctor", str(path), "--smoke", *words]
    logs = path.parent / ("logs" if path.stem == "smoke" else f"logs_{path.stem}")
    size, on_cards = config.plans.train.world_size, config.device == "Ascend"
    code = launch(command, num_workers=size, log_dir=logs, watch=config.watch, on_cards=on_cards)
    return f"see {logs}" if code else ""


def _run(path: Path, *, without: Sequence[str]) -> str:
    """Run an experiment. without: variables to remove from its environment, because those of an earlier launch would
    make it a rank."""
    log = path.with_suffix(".log")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                [sys.executable, "-m", "mindgspo.cli", "run", str(path)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=_RUN_S, env=environment,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = 124
    if code:
        print(*(told(find_in_file(log)) or last_lines(log, 12)), sep="\n")
    return f"exit code {code}, see {log}" if code else ""


def _wrong_metric(config: ExperimentConfig) -> str:
    """Describe how the last step is not as it must be; empty if it is."""
    assert config.run_dir is not None, "config is not resolved"
    name, metrics = "training/rollout_logprob_diff_mean", config.run_dir / "metrics.jsonl"
    found = [line for text in metrics.read_text(encoding="utf-8").splitlines() if name in (line := json.loads(text))]
    if not found:
        return f"{metrics} has no {name}"
    value = found[-1][name]
    if value > _MOST_MISMATCH:
        return f"sampler and trainer differ by {value:.2g} nat per token, allowed are {_MOST_MISMATCH:g}"
    return ""


def smoke_of_rank(path: Path, replay: Callable[[Path], tuple[Sequence[str], str]], late_s: float) -> int:
    """The part of one rank; rank 0 prints.

    path: of `write_smoke_experiment`, or first.yaml beside it. replay: runs a dumped step again; returns a report, and
    the first difference or "". Raises TrainingError for what is wrong, and whatever MindSpore raises.
    """
    from mindgspo.parallel.platform import heartbeat, runtime  # MindSpore comes with these
    from mindgspo.parallel.platform.cluster import start_device

    start_device(load_config(path))
    heartbeat.enter("smoke test", 0)
    wrong = []
    if path == _first(path):
        from mindgspo.doctor.first_minutes import first_minutes

        checks = first_minutes(late_s)
    else:
        reference = load_config(_reference(path)).run_dir
        assert reference is not None, "config is not resolved"
        lines, difference = replay(reference / "dumps" / "step_00000001")
        checks, wrong = _group_sums(load_config(path)), [difference] if difference else []
        if runtime.rank() == 0:
            print(*lines, sep="\n", flush=True)
    for name, is_right in checks:
        wrong += [] if is_right else [name]
        if runtime.rank() == 0:
            print(f"{'ok' if is_right else 'WRONG':<6}{name}", flush=True)
    if wrong:
        raise TrainingError(f"rank {runtime.rank()} computes something else: " + "; ".join(wrong))
    return 0


def _group_sums(config: ExperimentConfig) -> Iterator[tuple[str, bool]]:
    """(name, whether it is right) of a sum over each group of the plans with this rank, in one order on all ranks."""
    import numpy as np
    from mindspore import Tensor

    from mindgspo.parallel.collectives.graph import all_reduce
    from mindgspo.parallel.collectives.host import wait_for_ranks
    from mindgspo.parallel.plans.placement import RankGrid, Ranks
    from mindgspo.parallel.platform import runtime

    rank, groups = runtime.rank(), {}
    for name, plan in (("train", config.plans.train), ("infer", config.plans.infer)):
        grid = RankGrid(plan)
        kinds: dict[str, Ranks] = {
            "world": tuple(range(grid.world_size)),
            "model": grid.model_group(rank),
            "context": grid.context_group(rank),
            "data": grid.data_group(rank),
            "pipeline": grid.pipeline_group(rank),
        }
        for kind, ranks in kinds.items():
            if len(ranks) > 1:
                groups.setdefault(ranks, f"{name} {kind}")
    for ranks, name in groups.items():
        wait_for_ranks(ranks)
        found = all_reduce(ranks)(Tensor(np.full(1024, rank + 1, np.float32))).asnumpy()
        yield f"AllReduce, {name} group of {len(ranks)}", bool((found == sum(one + 1 for one in ranks)).all())
