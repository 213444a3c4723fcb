"""Checks of a resumed run, and of one that is extended by more steps. No MindSpore.

It must be the same experiment: its configuration is compared with that of the run folder, and hashes of everything it
learns from with those of the checkpoint (files that changed under one name). Its logs should still begin with what they
held when the checkpoint was saved.

Finished steps stay as they are. If more steps would stretch the learning-rate schedule, the user has to choose the
rates of the new steps (optimizer.schedule_steps).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindgspo.algorithms import learning_rate
from mindgspo.checkpoint.adapted import check_base
from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus
from mindgspo.checkpoint.store import steps_newest_first
from mindgspo.config import ExperimentConfig, config_mapping, dotted_items, load_config, planned_steps
from mindgspo.config.reward import file_function
from mindgspo.config.schema import OptimizerSection
from mindgspo.errors import CheckpointError, ConfigError
from mindgspo.io import unused_name
from mindgspo.metrics import read_summary, report_of_finished
from mindgspo.metrics.files import FileRecord, begins_with
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Prompt

# Keys that may change within a run without changing its results, except for rounding: checkpoints hold whole tensors,
# so any plan can read them.
_FREE = (
    "resume",
    "restore",
    "run_dir",
    "logging.",
    "profile.",
    "trainer.save_every",
    "trainer.keep_",
    "trainer.export",
    "trainer.save_in_background",
    "trainer.samples_per_micro_batch",
    "trainer.max_tokens_per_micro_batch",
    "trainer.packing",
    "trainer.balance_batches",
    "trainer.on_nonfinite",
    "trainer.max_nonfinite_skips",
    "trainer.dump_step",
    "trainer.require_exact_logprobs",
    "trainer.exact_logprobs_every",
    "rollout.slots",
    "rollout.cache_gb",
    "rollout.tokens_per_sync",
    "rollout.servers.",
    "eval.every",
    "eval.stop.",
    "eval.logged_problems",
    "plans.",
    "reshard.",
    "swap.",
    "watch.",
)
# Servers of teachers may move.
_FREE_OF_TEACHERS = re.compile(r"algorithm\.distillation\.teachers\[\d+\]\.(url|api_key_file)")
# Keys that change the course of a run, perhaps on purpose: the run continues, with a warning.
_WARNED = ("reward.",)
# A run that starts from another's checkpoint has its own name.
_FREE_ELSEWHERE = ("experiment",)


def check_config(config: ExperimentConfig, folder: RunFolder) -> list[str]:
    """Compare a run's configuration with the one in its folder, or with that of the run it starts from.

    Returns warnings, one line each. Raises ConfigError naming every setting that differs and must not.
    """
    if folder.status is not RunStatus.NEW:
        return check_same_experiment(config, folder.config, free=_free_length(config, folder.config), warned=_WARNED)
    if folder.origin is None or folder.origin.restore == "weights":
        return []
    saved = folder.origin.config
    if saved is None:
        return [f"warning: {folder.origin.path} lies in no run folder, so no settings can be compared"]
    return check_same_experiment(config, saved, free=(*_FREE_ELSEWHERE, *_free_length(config, saved)), warned=_WARNED)


def _free_length(config: ExperimentConfig, saved: Path) -> tuple[str, ...]:
    """Keys that may differ because the run is extended; it cannot be shortened."""
    is_longer = saved.is_file() and asks_for_more(config, load_config(saved, check_files=False))
    return LENGTH_KEYS if is_longer else ()


def check_same_experiment(
    config: ExperimentConfig, saved: Path, *, free: tuple[str, ...] = (), warned: tuple[str, ...] = ()
) -> list[str]:
    """Raises ConfigError naming every setting that differs from the saved configuration. free, warned: prefixes of keys
    that may also differ; for the latter, warnings are returned."""
    if not saved.is_file():
        return []
    before = load_config(saved, check_files=False)
    ours, theirs = (dict(dotted_items(config_mapping(one))) for one in (config, before))
    if config.data.train_names != before.data.train_names:  # one line, whatever the keys of the sources
        for settings, one in ((ours, config), (theirs, before)):
            for key in [key for key in settings if key.startswith(("data.train.", "data.train["))]:
                del settings[key]
            settings["data.train"] = ", ".join(one.data.train_names) or "one source"
    differing = {
        key: f"{key}: {ours.get(key)!r}, the run has {theirs.get(key)!r}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
        and not key.startswith((*_FREE, *free))
        and not _FREE_OF_TEACHERS.fullmatch(key)
    }
    refused = [f"  {text}" for key, text in differing.items() if not key.startswith(warned)]
    if refused:
        raise ConfigError(
            f"{saved}: the run to be resumed has other settings:\n" + "\n".join(refused) + "\n"
            "Resume with the run's own settings, or start another run with `--set run_dir=...`"
        )
    return [f"warning: {text}; scores before and after this may not compare" for text in differing.values()]


def fingerprints(
    config: ExperimentConfig,
    tokenizer: Tokenizer,
    rows: Sequence[Prompt],
    *,
    digest: str,
    base: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Hashes of everything the run learns from. digest: of the training rows. base: see `base_record`."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(tokenizer.files.contents.items())}
    own = [file for name in config.reward.functions if (file := file_function(name)) is not None]
    return {
        "tokenizer": {
            "name": tokenizer.name,
            "tokens": tokenizer.vocab_size,
            "eos_ids": list(tokenizer.eos_ids),
            "pad_id": tokenizer.pad_id,
            "files": files,
        },
        "data": {"rows": len(rows), "digest": digest},
        "reward": {file.label: hashlib.sha256(file.path.read_bytes()).hexdigest() for file in own},
        "base": base,
    }


def check_fingerprints(
    saved: Mapping[str, Any] | None, ours: Mapping[str, Any], *, where: object, weights_only: bool
) -> list[str]:
    """Warnings, one line each. saved: None in checkpoints that have none. weights_only: data and reward may differ.

    Raises CheckpointError for another tokenizer, whose ids do not match the weights, for another base of adapters, and
    for other training rows.
    """
    if not saved:
        return [f"{where} does not say with which tokenizer and data it was made; nothing is compared"]
    problems = list(_tokenizer_problems(saved["tokenizer"], ours["tokenizer"]))
    if problems:
        raise CheckpointError(
            f"{where}: its weights were trained with another tokenizer than {ours['tokenizer']['name']}:\n  "
            + "\n  ".join(problems)
            + f"\nSet tokenizer.path to the one it was trained with ({saved['tokenizer']['name']})"
        )
    check_base(saved.get("base"), ours.get("base"), where=where)
    if weights_only:
        return []
    if saved["data"]["digest"] != ours["data"]["digest"]:
        raise CheckpointError(
            f"{where}: it was trained on other rows of data.train ({saved['data']['rows']:,}, here "
            f"{ours['data']['rows']:,}, with other content, or prompts that another release rendered); its place in "
            "the data means nothing here. Resume with the former data, or take the weights alone into a new run with "
            "restore=weights"
        )
    return [
        f"reward.functions: {name} is not the file any more that it was when {where} was saved; rewards before and "
        "after may not compare"
        for name, digest in ours["reward"].items()
        if saved["reward"].get(name, digest) != digest
    ]


def intact_logs(run: Path, logs: Mapping[str, FileRecord] | None) -> dict[str, int]:
    """{name: bytes} of the logs of a run that still begin with what a checkpoint of it recorded."""
    return {name: log.size for name, log in (logs or {}).items() if begins_with(run / name, log)}


def log_warnings(
    run: Path, checkpoint: Path, logs: Mapping[str, FileRecord] | None, *, intact: Mapping[str, int]
) -> list[str]:
    """One line per log that lacks something, and one with the remedies. The run can continue all the same: its logs
    hold no state. logs: None in checkpoints that do not record them."""
    if logs is None:
        return [f"{checkpoint} does not record what the logs held when it was saved; they are not checked"]
    lines = [_log_problem(run / name, checkpoint, log.size) for name, log in logs.items() if name not in intact]
    if not lines:
        return []
    older = _last_step_with_logs(run, checkpoint)
    again = "" if older is None else f", or train these steps again with resume={older}, up to which nothing is missing"
    return [*lines, f"the run goes on without these records; to have them, restore the files from a copy{again}"]


def _log_problem(log: Path, checkpoint: Path, size: int) -> str:
    if not log.exists():
        return f"{log}: missing, with the {size:,} bytes that {checkpoint.name} covers"
    found = log.stat().st_size
    if found >= size:
        return f"{log}: its first {size:,} bytes are not what they were when {checkpoint.name} was saved"
    return f"{log}: {found:,} of the {size:,} bytes that {checkpoint.name} covers are there"


def _last_step_with_logs(run: Path, checkpoint: Path) -> Path | None:
    for path in steps_newest_first(checkpoint.parent):
        try:
            logs = verify(path, required=(), hashes=False).logs
        except CheckpointError:
            continue
        if logs is not None and len(intact_logs(run, logs)) == len(logs):
            return path
    return None


def rows_digest(rows: Iterable[Prompt]) -> str:
    """SHA-256 over everything of the rows that training reads."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.ids.tobytes())
        digest.update(json.dumps([row.index, row.answer, row.data_source, row.solution]).encode())
    return digest.hexdigest()


def _tokenizer_problems(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for key, what in (("tokens", "tokens"), ("eos_ids", "EOS ids"), ("pad_id", "pad id")):
        if saved[key] != ours[key]:
            yield f"{what}: {saved[key]} there, {ours[key]} here"
    for name in sorted(saved["files"].keys() | ours["files"].keys()):
        theirs, own = saved["files"].get(name), ours["files"].get(name)
        if theirs != own:
            yield f"{name}: " + ("only there" if own is None else "only here" if theirs is None else "another content")


LENGTH_KEYS = ("trainer.max_steps", "trainer.epochs", "optimizer.schedule_steps")
"""Keys that may differ from the run's own configuration where it is to become longer."""


def asks_for_more(config: ExperimentConfig, saved: ExperimentConfig) -> bool:
    """Whether config is of a longer run than the saved one."""
    ours, theirs = config.trainer, saved.trainer
    if ours.max_steps is None or theirs.max_steps is None:
        return ours.max_steps is theirs.max_steps and ours.epochs > theirs.epochs
    return ours.max_steps > theirs.max_steps


def is_complete(config: ExperimentConfig, folder: RunFolder) -> bool:
    """Whether the run is finished and no more of it is asked for: more steps or, if it stopped early, other rules."""
    if folder.status is not RunStatus.FINISHED or not folder.config.is_file():
        return folder.status is RunStatus.FINISHED
    saved = load_config(folder.config, check_files=False)
    if read_summary(folder.root).get("stopped_early"):
        return config.eval.stop == saved.eval.stop
    return not asks_for_more(config, saved)


def finished_line(folder: RunFolder) -> str:
    """Message for starting a run that is finished: where its report is, and how to continue."""
    summary = read_summary(folder.root)
    steps, reason = summary.get("steps", 0), summary.get("stopped_early")
    more = f"--set trainer.max_steps=N with N above {steps} continues it"
    if reason:
        more = f"it stopped early at step {steps}: {reason}; another setting of eval.stop continues it"
    return f"{folder.root}: this run is finished; its report is {report_of_finished(folder.root)}\n{more}"


def config_before(folder: RunFolder) -> ExperimentConfig | None:
    """Configuration that the run, or the run whose checkpoint it starts from, was started with; None if there is none,
    or if steps are counted from 0."""
    path = folder.config
    if folder.status is RunStatus.NEW:
        path = None if folder.origin is None or folder.origin.restore == "weights" else folder.origin.config
    return None if path is None or not path.is_file() else load_config(path, check_files=False)


def set_summary_aside(folder: RunFolder) -> Path | None:
    """Rename the summary of a run that is extended, because it marks the run as finished. Return its new path; None
    without one, or if the run goes back to an earlier step: the rollback moves the summary with everything later."""
    is_going_back = folder.origin is not None and folder.origin.is_same_run
    if is_going_back or not folder.summary.is_file():
        return None
    steps = read_summary(folder.root).get("steps", 0)
    aside = folder.root / f"summary_step_{steps}.json"
    aside = unused_name(aside) if aside.exists() else aside
    os.rename(folder.summary, aside)
    return aside


def new_learning_rates(
    config: ExperimentConfig, saved: ExperimentConfig, *, step: int, num_rows: int, updates_per_step: int
) -> str | None:
    """One line on the learning rates of the added steps; None if the run was not extended.

    step: steps done before the checkpoint. num_rows: of the training set. Raises ConfigError if the schedule leaves
    them open; the message gives both options with their numbers.
    """
    before, total = planned_steps(saved, num_rows), planned_steps(config, num_rows)
    assert before is not None and total is not None
    if total <= before:
        return None
    ours, told = config.optimizer, config.optimizer.schedule_steps
    kept = ours.model_copy(update={"schedule_steps": saved.optimizer.schedule_steps or before})
    stretched = ours.model_copy(update={"schedule_steps": told or total})

    per_step = updates_per_step

    def rates(section: OptimizerSection) -> Callable[[int], float]:
        return lambda update: learning_rate(update, total * per_step, section, updates_per_step=per_step)

    as_planned, now = rates(kept), rates(stretched)
    updates = range(step * per_step, total * per_step)
    if told is None and any(as_planned(update) != now(update) for update in updates):
        raise ConfigError(
            f"trainer: {total} steps, the run has {before}, over which its learning rate "
            f"({ours.schedule}) was planned. Say what the new steps learn with:\n"
            f"  --set optimizer.schedule_steps={kept.schedule_steps}   the schedule stays: "
            f"{_span(as_planned, updates, per_step)}\n"
            f"  --set optimizer.schedule_steps={total}   over all {total} steps: {_span(now, updates, per_step)}"
        )
    return f"the run goes on to step {total} instead of {before}; learning rate {_span(now, updates, per_step)}"


def _span(rate: Callable[[int], float], updates: range, per_step: int) -> str:
    first, last = rate(updates[0]), rate(updates[-1])
    ends = f"{first:.4g} at step {updates[0] // per_step + 1}"
    return f"{ends} and after" if first == last else f"{ends}, {last:.4g} at step {updates[-1] // per_step + 1}"
