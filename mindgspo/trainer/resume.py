"""A resumed run must be the same experiment: its configuration is compared with the one in the run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mindgspo.config import ExperimentConfig, config_mapping, load_config
from mindgspo.errors import ConfigError

# What may change between two processes of one run without changing what it computes, but for rounding: checkpoints are
# whole, so that any plan reads them.
_FREE = (
    "resume",
    "run_dir",
    "logging.",
    "trainer.save_every",
    "trainer.keep_checkpoints",
    "trainer.samples_per_micro_batch",
    "trainer.on_nonfinite",
    "trainer.max_nonfinite_skips",
    "rollout.slots",
    "eval.every",
    "plans.",
    "reshard.",
    "swap.",
    "watch.",
)


def check_same_experiment(config: ExperimentConfig, saved: Path) -> None:
    """Raises ConfigError naming every setting that differs from the run's own configuration."""
    if not saved.is_file():
        return
    ours = dict(_flat(config_mapping(config)))
    theirs = dict(_flat(config_mapping(load_config(saved, check_files=False))))
    differing = [
        f"  {key}: {ours.get(key)!r}, the run has {theirs.get(key)!r}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and not key.startswith(_FREE)
    ]
    if differing:
        raise ConfigError(
            f"{saved}: the run to be resumed has other settings:\n" + "\n".join(differing) + "\n"
            "Resume with the run's own settings, or start another run with `--set run_dir=...`"
        )


def _flat(mapping: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
