"""environment.jsonl: versions, command line and machine of each start of a run, one line per start.

Environment variables are not written, because they hold keys and passwords.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import mindgspo
from mindgspo.metrics.files import ENVIRONMENT_FILE, LogFile, read_records
from mindgspo.metrics.redaction import redacted_words
from mindgspo_kernels.build import instruction_set

PACKAGES = ("mindgspo", "mindspore", "numpy", "tokenizers", "math-answers", "math-verify")
_CANN_DEFAULT = Path("/usr/local/Ascend/ascend-toolkit/latest")
_GIT_SECONDS = 10


def record_start(run_dir: Path, *, step: int, device: str, hub: Mapping[str, str] | None = None) -> None:
    """Append a line. step: training steps done so far. hub: {repository: commit} of models and data sets that are named
    on a hub. Raises WriteError."""
    named = {"hub": dict(hub)} if hub else {}
    LogFile(run_dir / ENVIRONMENT_FILE).append([{"step": step, "device": device, **named, **environment()}])


def processor_warning(run_dir: Path) -> str | None:
    """A line if the run's last start was on a processor with other instructions, whose sums may round in another way;
    None if it was on one like this, or none is recorded."""
    recorded = [row["instructions"] for row in read_records(run_dir / ENVIRONMENT_FILE) if "instructions" in row]
    if not recorded or recorded[-1] == instruction_set():
        return None
    return (
        f"warning: this run last used a processor with {recorded[-1]}; this one has {instruction_set()}. Results may "
        "no longer be bit for bit those that the other one would give"
    )


def environment() -> dict[str, object]:
    """This process: time, machine, its instructions, command line, versions, and the commit where the package lies in a
    git checkout."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs",
        "instructions": instruction_set(),
        "command": command_line(sys.argv),
        "versions": versions(),
        "git": git_state(Path(mindgspo.__file__).resolve().parents[1]),
    }


def command_line(words: list[str]) -> str:
    """The command line as it would be typed, without what may be a secret. words: as in sys.argv."""
    if words[0].endswith(("/mindgspo", "/__main__.py")):
        words = ["mindgspo", *words[1:]]
    return shlex.join(redacted_words(words))


def versions() -> dict[str, str]:
    """{name: version} of Python, the packages that decide what a run computes, and CANN; absent ones are left out.

    MindSpore for Ascend may bear another distribution's name, and then says its version itself once it is imported."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = getattr(sys.modules.get(name), "__version__", None)
            if isinstance(version, str):
                found[name] = version
    cann = cann_release()
    return found if cann is None else {**found, "cann": cann}


def cann_release(default: Path = _CANN_DEFAULT) -> str | None:
    """Version of the CANN toolkit that the environment names, else of the one in its usual place; None without one."""
    named = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    root = Path(named) if named else default
    for name in ("compiler/version.info", "toolkit/version.info", "runtime/version.info", "version.info"):
        if (root / name).is_file():
            text = (root / name).read_bytes()[:4096].decode(errors="replace")
            if found := re.search(r"^Version\s*=\s*(\S+)", text, re.MULTILINE):
                return found[1]
    return None


def git_state(root: Path) -> dict[str, object] | None:
    """{"commit": ..., "dirty": whether tracked files differ from it}; None if root is no checkout of its own, and
    where git cannot be asked: a run does not depend on it."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    commit, dirty, _ = done.stdout.strip().partition("-dirty")
    return {"commit": commit, "dirty": bool(dirty)}
