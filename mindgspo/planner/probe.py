"""`mindgspo plan --probe`: how fast this machine is, by some steps of the experiment itself in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import ConfigError
from mindgspo.io import parse_json, read_bytes
from mindgspo.planner.lengths import Recorded
from mindgspo.text import counted

_MODULE = "mindgspo.trainer.probe"
_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What `trainer.probe.probe` found. steps: metrics. alone: steps, tokens, prompt_tokens and seconds of generations
    of few sequences. lengths: of responses, by prompt."""

    steps: tuple[Mapping[str, float], ...]
    alone: tuple[Mapping[str, float], ...]
    lengths: tuple[NDArray[np.int64], ...]

    @property
    def length_source(self) -> Recorded:
        """The lengths for a forecast."""
        whole = np.concatenate(self.lengths)
        kind = "worked solutions, which the warm-up teaches" if max(map(len, self.lengths)) == 1 else "the model's own"
        note = f"{kind}: {counted(whole.size, 'response')}, mean {whole.mean():,.0f}, longest {whole.max():,}"
        return Recorded(groups=self.lengths, note=note)


def probe_machine(experiment: ExperimentConfig, config: Path, overrides: Sequence[str]) -> Probe:
    """A quarter of a minute on an idle machine, half of it until MindSpore has started and compiled. experiment: that
    of config and overrides. Raises ConfigError with what the process said, or after some minutes."""
    if experiment.device != "CPU":
        raise ConfigError(f"--probe: measures device CPU; device is {experiment.device}, whose rates --card stands for")
    if experiment.plans.train.world_size > 1 or experiment.has_servers:
        raise ConfigError(
            "--probe: measures one process; with several, or with servers that generate, give --rates the folder of a "
            "short run"
        )
    load_config(config, overrides)  # looks for the files, before MindSpore starts
    with tempfile.TemporaryDirectory(prefix="mindgspo-plan-") as folder:
        out = Path(folder) / "probe.json"
        command = [sys.executable, "-m", _MODULE, str(config), str(out), *overrides]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"--probe: no steps within {_SECONDS:,.0f} s; set fewer rollout.prompts_per_step, or give --rates"
            ) from None
        if done.returncode or not out.exists():
            said = done.stderr.strip() or f"exit code {done.returncode}"
            raise ConfigError(f"--probe: {said if done.returncode == 1 else said.splitlines()[-1]}")
        found = parse_json(read_bytes(out).decode("utf-8"))
    return Probe(
        steps=tuple(found["steps"]),
        alone=tuple(found["alone"]),
        lengths=tuple(np.array(lengths, np.int64) for lengths in found["lengths"]),
    )
