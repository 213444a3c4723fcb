"""Writes one step so that it can be run again elsewhere (`mindgspo replay`): inputs and results of its updates.

`run_dir/dumps/step_00000005/`:

    config.yaml                      of the run
    step.json                        versions, plan, learning rates; loss, norm and metrics of each update
    weights.safetensors              before the first update, under Hugging Face names
    optimizer.safetensors            moments before it, and the number of updates
    update_1_micro_batch_0.npz ...   fields of `types.Batch`, prompts and responses among them
    update_1_found.safetensors       log-probs of each micro-batch
    gradients.safetensors            of the first update, as clipped, recovered from the first moments
    weights_after.safetensors        after the last update
    trace.safetensors                outputs of all modules for the first micro-batch, in order; of one process only
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.algorithms.optim.updater import Updater, UpdateResult
from mindgspo.io import make_folder, publish_folder, temporary_path, write_file
from mindgspo.metrics.environment import versions
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.trace import is_traceable, trace_forward
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import is_first
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.tensor_files.writer import write_tensor_file
from mindgspo.trainer.updates import write_batches
from mindgspo.types import Batch

FORMAT = 1
MOMENT = "adamw.m."


class StepDump:
    """Dump of one step. All ranks call each method, `close` last; rank 0 writes, into a hidden folder until then."""

    def __init__(self, folder: Path, backend: Updater, *, step: int, beta1: float) -> None:
        """beta1: of AdamW."""
        self._folder, self._hidden, self._backend, self._beta1 = folder, temporary_path(folder), backend, beta1
        self._updates: list[dict[str, Any]] = []
        self._facts = {
            "format": FORMAT,
            "step": step,
            "device": runtime.current_device(),
            "is_emulated": runtime.is_emulated(),
            "world_size": runtime.world_size(),
            "machine": platform.machine(),
            "versions": versions(),
        }
        if is_first():
            shutil.rmtree(self._hidden, ignore_errors=True)
            make_folder(self._hidden)
            shutil.copyfile(folder.parents[1] / "config.yaml", self._hidden / "config.yaml")
        self._write("weights", self._weights())
        state = backend.state()
        self._moments = {name: array for name, array in state.items() if name.startswith(MOMENT)}
        self._write("optimizer", state)

    def before(self, batches: Sequence[Batch], *, lr: float, kl_coef: float) -> None:
        """Write the inputs of the next update."""
        number = len(self._updates) + 1
        self._updates.append({"micro_batches": len(batches), "lr": lr, "kl_coef": kl_coef})
        if is_first():
            write_batches(self._hidden, f"update_{number}", batches)
        if number == 1 and is_traceable(self._backend.policy):
            trace: dict[str, np.ndarray] = {}

            def note(name: str, operator: str, found: np.ndarray) -> None:
                trace[f"{len(trace):05} {name} | {operator}"] = found

            trace_forward(self._backend.policy, batches[0], note)
            self._write("trace", trace)

    def after(self, result: UpdateResult | None) -> None:
        """Write the result of the update; None if it was skipped."""
        number = len(self._updates)
        if result is None:
            self._updates[-1]["is_skipped"] = True
            return
        self._updates[-1] |= {
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "metrics": dict(result.metrics),
        }
        self._write(f"update_{number}_found", {f"logp/{i}": array for i, array in enumerate(result.logp_NK)})
        if number == 1:
            self._write("gradients", gradients_between(self._moments, self._backend.state(), self._beta1))

    def close(self) -> Path:
        """Give the folder its final name, and return it."""
        self._write("weights_after", self._weights())
        if is_first():
            facts = self._facts | {"updates": self._updates}
            write_file(self._hidden / "step.json", json.dumps(facts, indent=2).encode() + b"\n")
            publish_folder(self._hidden, self._folder)
        return self._folder

    def _weights(self) -> dict[str, np.ndarray]:
        policy = self._backend.policy
        assert isinstance(policy, PolicyLogProbs)
        model = policy.model
        return weights_as_numpy(model, model.config)

    def _write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        if is_first():
            write_tensor_file(self._hidden / f"{name}.safetensors", arrays)


def gradients_between(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], beta1: float
) -> dict[str, np.ndarray]:
    """{our name of a weight: its gradient as clipped}, from AdamW's m' = beta1 m + (1 - beta1) g; the gradients
    themselves are gone after an update, or held in parts."""
    return {
        name.removeprefix(MOMENT): ((after[name] - np.float32(beta1) * array) / np.float32(1 - beta1)).astype(
            np.float32
        )
        for name, array in before.items()
        if name in after
    }
