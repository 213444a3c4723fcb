"""What TensorBoard, SwanLab and Weights & Biases write without a network, and what becomes of one that fails."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from mindgspo.errors import ConfigError
from mindgspo.metrics import RunLog
from mindgspo.metrics.tracking import TrackedRun, _within, check_installed, open_trackers

PROJECT = Path(__file__).resolve().parents[3]
RUN_ID = "0123456789abcdef0123456789abcdef"


SCRIPT = """
import sys
from pathlib import Path
from rich.console import Console
from mindgspo.errors import ConfigError
from mindgspo.metrics import RunLog
from mindgspo.metrics.tracking import TrackedRun, open_trackers

name, folder = sys.argv[1], Path(sys.argv[2])
config = {"seed": 1, "rollout": {"servers": {"urls": ["http://me:pass@host:80"]}}}
run = TrackedRun(folder=folder, run_id="RUN_ID", name="tiny", config=config)
try:
    trackers = open_trackers([name, name], run)
except ConfigError as error:
    sys.exit(str(error))
with RunLog(folder, progress=False, trackers=trackers, console=Console()) as log:
    log.truncate_after(4)
    log.log_metrics(5, {"critic/score/mean": 0.25})
    log.log_metrics(6, {"critic/score/mean": 0.75, "val-core/x/acc/mean@1": 0.5})
"""
SECRETS = ("WANDB_MODE", "WANDB_API_KEY", "SWANLAB_MODE", "SWANLAB_API_KEY")


def two_steps(folder: Path, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Logged in a process of its own, since these libraries keep a state per process; without keys."""
    kept = {key: value for key, value in os.environ.items() if key not in SECRETS}
    environment = {**kept, "HOME": str(folder), "PYTHONPATH": str(PROJECT), **variables}
    command = [sys.executable, "-c", SCRIPT.replace("RUN_ID", RUN_ID), name, str(folder)]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )


def test_tensorboard_events_hold_the_scalars(tmp_path: Path) -> None:
    assert two_steps(tmp_path, "tensorboard").returncode == 0
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"critic/score/mean" in events.read_bytes()


@pytest.mark.parametrize(("name", "file", "texts"), [
    ("wandb", "offline-run-*/run-{}.wandb", (b"0.25", b"0.75", b"rollout", b"***@host")),
    ("swanlab", "run-*-{0}/run-{0}.swanlab", ()),
])  # fmt: skip
def test_offline_metrics_and_settings_are_held_without_secrets(
    tmp_path: Path, name: str, file: str, texts: tuple[bytes, ...]
) -> None:
    pytest.importorskip(name, reason=f"needs the extra {name}")
    done = two_steps(tmp_path, name, **{f"{name.upper()}_MODE": "offline"})
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout + done.stderr
    (path,) = (tmp_path / name).glob(file.format(RUN_ID))
    written = path.read_bytes()
    assert b"me:pass" not in written
    for text in (b"critic/score/mean", b"val-core/x/acc/mean@1", *texts):
        assert text in written, text
    if name == "swanlab":
        settings = (path.parent / "files" / "config.yaml").read_text()
        assert "seed" in settings and "***@host" in settings and "me:pass" not in settings


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_tracker_without_a_key_says_what_to_do_before_the_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name, reason=f"needs the extra {name}")
    done = two_steps(tmp_path, name)
    assert done.returncode == 1 and f"logging.trackers: {name} cannot begin (" in done.stderr
    assert f"run `{name} login`, set {name.upper()}_MODE=offline to keep it in the run folder" in done.stderr
    assert not (tmp_path / "metrics.jsonl").exists()


class Failing:
    """Takes one line, then its network is gone."""

    name = "failing"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def resume_at(self, step: int) -> None:
        self.calls.append(f"resume {step}")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(f"write {step}")
        if step > 1:
            raise ConnectionError("the network\nis gone")

    def close(self, *, failed: bool) -> None:
        self.calls.append(f"close {failed}")


def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    screen, broken, whole = io.StringIO(), Failing(), Failing()
    whole.write = lambda step, metrics: whole.calls.append(f"write {step}")
    console = Console(file=screen, width=500)
    with pytest.raises(KeyError), RunLog(tmp_path, progress=False, trackers=[broken, whole], console=console) as log:
        log.truncate_after(0)
        for step in (1, 2, 3):
            log.log_metrics(step, {"x": 1.0})
        raise KeyError("the run's own error")
    assert broken.calls == ["resume 0", "write 1", "write 2"]
    assert whole.calls == ["resume 0", "write 1", "write 2", "write 3", "close True"]
    said = [line for line in screen.getvalue().splitlines() if "failing" in line]
    assert said == [
        "warning: logging.trackers: failing failed and gets nothing more (ConnectionError: the network is gone); the "
        "run goes on, and metrics.jsonl has everything"
    ]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_an_end_that_hangs_is_not_waited_for() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match="nothing more was sent"):
        _within(0.05, never.wait)
    never.set()
    with pytest.raises(ZeroDivisionError):
        _within(5.0, lambda: 1 / 0)


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    check_installed(["tensorboard", "wandb"], lambda name: True)
    with pytest.raises(ConfigError, match=r"wandb needs the package wandb, .*pip install 'mindgspo\[wandb\]'"):
        check_installed(["tensorboard", "wandb"], lambda name: name != "wandb")
    with pytest.raises(ConfigError, match=r"pip install 'tensorboardX'"):
        check_installed(["tensorboard"], lambda name: False)


def test_a_run_that_goes_on_does_so_without_a_tracker_that_cannot_begin(tmp_path: Path) -> None:
    (tmp_path / "swanlab").write_text("a file where its folder would be")
    run, said = TrackedRun(folder=tmp_path, run_id=RUN_ID, name="tiny"), []
    assert [tracker.name for tracker in open_trackers(["swanlab", "tensorboard"], run, said.append)] == ["tensorboard"]
    (line,) = said
    assert line.startswith("warning: logging.trackers: swanlab can") and line.endswith("the run goes on without it")
    with pytest.raises(ConfigError, match="swanlab"):
        open_trackers(["swanlab"], run)
