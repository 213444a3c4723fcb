"""A resumed run must be the same experiment: its configuration is compared with the one in the run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mindgspo.checkpoint import RunFolder, RunStatus
from mindgspo.config import ExperimentConfig, config_mapping, load_config
from mindgspo.errors import ConfigError

# What may change between two processes of one run without changing what it computes, but for rounding: checkpoints are
# whole, so that any plan reads them.
_FREE = (
    "resume",
    "restore",
    "run_dir",
    "logging.",
    "trainer.save_every",
    "trainer.keep_",
    "trainer.save_in_background",
    "trainer.samples_per_micro_batch",
    "trainer.max_tokens_per_micro_batch",
    "trainer.packing",
    "trainer.balance_batches",
    "trainer.on_nonfinite",
    "trainer.max_nonfinite_skips",
    "rollout.slots",
    "eval.every",
    "eval.logged_problems",
    "plans.",
    "reshard.",
    "swap.",
    "watch.",
)


# What changes the course of a run, and may be meant: the run goes on, with a warning.
_WARNED = ("reward.",)
# A run that begins with another's checkpoint has its own name.
_FREE_ELSEWHERE = ("experiment",)


def check_config(config: ExperimentConfig, folder: RunFolder) -> list[str]:
    """Compare a run's configuration with the one in its folder, or with that of the run that it begins with.

    Returns warnings, one line each. Raises ConfigError naming every setting that differs and must not.
    """
    if folder.status is not RunStatus.NEW:
        return check_same_experiment(config, folder.config, warned=_WARNED)
    if folder.origin is None or folder.origin.restore == "weights":
        return []
    saved = folder.origin.config
    if saved is None:
        return [f"warning: {folder.origin.path} lies in no run folder, so no settings can be compared"]
    return check_same_experiment(config, saved, free=_FREE_ELSEWHERE, warned=_WARNED)


def check_same_experiment(
    config: ExperimentConfig, saved: Path, *, free: tuple[str, ...] = (), warned: tuple[str, ...] = ()
) -> list[str]:
    """Raises ConfigError naming every setting that differs from the saved configuration. free, warned: beginnings of
    keys that may differ, too; of the latter the warnings are returned."""
    if not saved.is_file():
        return []
    ours = dict(_flat(config_mapping(config)))
    theirs = dict(_flat(config_mapping(load_config(saved, check_files=False))))
    differing = {
        key: f"{key}: {ours.get(key)!r}, the run has {theirs.get(key)!r}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and not key.startswith((*_FREE, *free))
    }
    refused = [f"  {text}" for key, text in differing.items() if not key.startswith(warned)]
    if refused:
        raise ConfigError(
            f"{saved}: the run to be resumed has other settings:\n" + "\n".join(refused) + "\n"
            "Resume with the run's own settings, or start another run with `--set run_dir=...`"
        )
    return [f"warning: {text}; scores before and after this may not compare" for text in differing.values()]


def _flat(mapping: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
