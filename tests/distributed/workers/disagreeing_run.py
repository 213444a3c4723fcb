"""One worker of a run whose last rank differs from the others in what the first argument says.

usage: disagreeing_run.py config|data CONFIG FOLDER. For `data` every rank reads the prepared rows `train` of its own
current folder, FOLDER/rank_<r>, under one and the same path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mindgspo.config import DataSourceSection, ExperimentConfig, load_config
from mindgspo.launch.worker import run_worker
from mindgspo.parallel.platform import worker_process


def body(what: str, config: Path, folder: Path) -> int:
    experiment = load_config(config)
    rank = worker_process.launched_rank()
    is_last = rank == experiment.plans.train.world_size - 1
    if what == "config" and is_last:
        optimizer = experiment.optimizer.model_copy(update={"lr": 2 * experiment.optimizer.lr})
        experiment = experiment.model_copy(update={"optimizer": optimizer})
    if what == "data":
        os.chdir(folder / f"rank_{rank}")
        experiment = _with_own_rows(experiment)
    from mindgspo.trainer.loop import run_experiment

    run_experiment(experiment)
    return 0


def _with_own_rows(experiment: ExperimentConfig) -> ExperimentConfig:
    train = DataSourceSection(format="prepared", path=Path("/proc/self/cwd/train"))
    return experiment.model_copy(update={"data": experiment.data.model_copy(update={"train": train}), "warmup": None})


if __name__ == "__main__":
    run_worker(lambda: body(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
