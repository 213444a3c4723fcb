"""One worker of several plans of one world size: five updates each on one recorded rollout, then sampling.

usage: plan_numbers.py FOLDER. FOLDER/job.json names the plans; rank 0 writes FOLDER/<plan>.npz with losses, log-probs,
gradients of the first update, parameters, moments and sampled tokens.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from joined_ranks import run_joined

from mindgspo.parallel.platform import runtime


def body(folder: Path) -> None:
    """Every plan of the job, one after the other in one cluster."""
    from plan_results import results_of_plan

    from mindgspo.parallel.ops.device import composed_ops

    for entry in json.loads((folder / "job.json").read_text()):
        plans = (entry["train"], entry["infer"], entry["model"], entry["reference"])
        with composed_ops() if entry["is_composed"] else nullcontext():
            arrays = results_of_plan(*plans, is_packed=entry["is_packed"])
        if runtime.rank() == 0:
            np.savez(folder / f"{entry['name']}.npz", **arrays)


if __name__ == "__main__":
    run_joined(body)
