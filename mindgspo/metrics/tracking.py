"""Trackers that show a run's metrics next to those of other runs: TensorBoard, SwanLab, Weights & Biases.

metrics.jsonl has everything; a tracker gets a copy of each line's numbers and the configuration, no prompt and no
response. Keys are the trackers' own business (`wandb login`, `swanlab login`, their environment variables); nothing of
them is read or written here. A run that goes on is the same run there, because its id is that of run.json.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from mindgspo.errors import ConfigError
from mindgspo.metrics.redaction import redacted
from mindgspo.text import shorten

_CLOSE_SECONDS = 120.0
"""Time to send the rest at the end; without a network it would never finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Identity of a run, as trackers record it."""

    folder: Path
    """The run's folder; trackers keep their files below it."""
    run_id: str
    """The id in run.json."""
    name: str
    project: str = "mindgspo"
    config: Mapping[str, Any] = field(default_factory=dict)
    """Nested JSON values."""


class Tracker(Protocol):
    """A started tracker. An error that it raises later is reported once, and it then receives nothing more."""

    @property
    def name(self) -> str: ...

    def resume_at(self, step: int) -> None:
        """Discard what was written beyond `step`; called before the first write of a resumed run."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of one line; several lines may share a step."""

    def close(self, *, failed: bool) -> None:
        """The end of the process, after an error or without one."""


class TensorBoard:
    """Event files below tensorboard/, made on the first write."""

    name = "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        self._make_writer = SummaryWriter
        self._folder = run.folder / "tensorboard"
        self._purge_step: int | None = None
        self._writer: Any = None

    def resume_at(self, step: int) -> None:
        """Tell TensorBoard to hide events beyond `step` that an earlier process wrote."""
        assert self._writer is None, "resume_at must come before the first write"
        self._purge_step = step + 1

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker`."""
        if self._writer is None:
            self._writer = self._make_writer(logdir=str(self._folder), purge_step=self._purge_step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, failed: bool) -> None:
        """See `Tracker`."""
        if self._writer is not None:
            self._writer.close()


class WandB:
    """Weights & Biases; files below wandb/. Steps that it already has are not sent again; they would be equal."""

    name = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # pyright: ignore[reportMissingImports] - an extra

        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(console="off", disable_git=True, save_code=False, silent=True, init_timeout=60),
        )

    def resume_at(self, step: int) -> None:
        """Does nothing: see the class."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log(dict(metrics), step=step)

    def close(self, *, failed: bool) -> None:
        """See `Tracker`."""
        _within(_CLOSE_SECONDS, lambda: self._run.finish(exit_code=int(failed)))


class SwanLab:
    """SwanLab; files below swanlab/."""

    name = "swanlab"

    def __init__(self, run: TrackedRun) -> None:
        import swanlab  # pyright: ignore[reportMissingImports] - an extra

        folder = run.folder / "swanlab"
        folder.mkdir(exist_ok=True)
        self._run = swanlab.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            log_dir=str(folder),
            config=dict(run.config),
            settings=swanlab.Settings(
                interactive=False,
                terminal=swanlab.Settings.Terminal(proxy_type="none"),
                probe=swanlab.Settings.Probe(git=False),
            ),
        )

    def resume_at(self, step: int) -> None:
        """Does nothing: steps that exist already are written again with equal numbers."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log(dict(metrics), step=step)

    def close(self, *, failed: bool) -> None:
        """See `Tracker`."""
        if failed:
            self._run.finish(state="crashed", error="the run ended with an error")
        else:
            self._run.finish()  # in this thread: it handles signals


_TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "swanlab": SwanLab,
    "wandb": WandB,
}
_PACKAGES = {"tensorboard": "tensorboardX", "swanlab": "swanlab", "wandb": "wandb"}
_OFFLINE = {"swanlab": "SWANLAB_MODE", "wandb": "WANDB_MODE"}


def check_installed(names: Sequence[str], has_package: Callable[[str], object] = find_spec) -> None:
    """Raises ConfigError for a tracker whose package is missing here; none is imported."""
    missing = [name for name in names if not has_package(_PACKAGES[name])]
    if missing:
        package = _PACKAGES[missing[0]]
        what = f"mindgspo[{missing[0]}]" if missing[0] in _OFFLINE else package
        raise ConfigError(
            f"logging.trackers: {missing[0]} needs the package {package}, which is not installed; "
            f"pip install '{what}', or leave it out"
        )


def open_trackers(names: Sequence[str], run: TrackedRun, warn: Callable[[str], object] | None = None) -> list[Tracker]:
    """Open each tracker once. Raises ConfigError if one cannot begin: not installed, not logged in, no network.

    warn: for a resumed run, which does not depend on a tracker; called instead, and the others are returned."""
    run = replace(run, config=_without_secrets(run.config))
    trackers = []
    for name in dict.fromkeys(names):
        try:
            trackers.append(_opened(name, run))
        except ConfigError as error:
            if warn is None:
                raise
            warn(f"warning: {error}; the run goes on without it")
    return trackers


def _opened(name: str, run: TrackedRun) -> Tracker:
    try:
        return _TRACKERS[name](run)
    except ImportError as error:
        raise ConfigError(
            f"logging.trackers: {name} cannot be imported ({error}); pip install 'mindgspo[{name}]', or leave it out"
        ) from error
    except Exception as error:  # whatever a third-party library raises when it has no key or no network
        offline = f", set {_OFFLINE[name]}=offline to keep it in the run folder" if name in _OFFLINE else ""
        raise ConfigError(
            f"logging.trackers: {name} cannot begin ({shorten(' '.join(str(error).split()), 200)}); run `{name} login`"
            f"{offline}, or leave it out"
        ) from error


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_secrets(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_without_secrets(below) for below in value]
    return redacted(value) if isinstance(value, str) else value


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Call it in a thread and wait at most this long. Raises what it raises, or TimeoutError."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if thread.is_alive():
        raise TimeoutError(f"nothing more was sent after {seconds:.0f} s")
