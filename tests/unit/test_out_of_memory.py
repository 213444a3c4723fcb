"""A process whose memory or open files are at their end: it says so and ends; no thread that cannot be made is waited
for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import environment, python

# Where there is memory for a thread's stack and no more, the thread dies before it says that it runs.
STILLBORN = """
import sys, threading
from pathlib import Path
import numpy as np
from mindgspo.checkpoint.store import Retention, save_checkpoint
threading._start_new_thread = lambda *arguments: 1
save_checkpoint(Path(sys.argv[1]), step=1, parameters={"w": np.zeros(64, np.float32)}, optimizer={}, state={},
                keep=Retention(last=1))
"""
NO_MEMORY_LEFT = """
import resource, sys
from pathlib import Path
import numpy as np
from mindgspo.checkpoint.store import Retention, save_checkpoint
from mindgspo.errors import MindGSPOError
weights = {"w": np.zeros(1 << 20, np.float16)[::-1]}  # copied when it is written
def save(step):
    save_checkpoint(Path(sys.argv[1]), step=step, parameters=weights, optimizer={}, state={}, keep=Retention(last=9))
save(1)
if sys.argv[2] == "background":
    from mindgspo.trainer.checkpoints import Saver
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
kept = []
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    while True:
        kept.append(bytes(1 << 18))
except MemoryError:
    pass
try:
    save(2) if sys.argv[2] == "run" else Saver._start(Saver.__new__(Saver), lambda: save(2))
except (MindGSPOError, MemoryError) as error:
    kept.clear()
    print(type(error).__name__, error)
"""


def test_a_checkpoint_waits_for_no_thread_that_never_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STILLBORN, str(tmp_path)]
    subprocess.run(command, env=environment(), timeout=30, check=True)
    assert (tmp_path / "step_00000001" / "manifest.json").is_file()


@pytest.mark.parametrize(("how", "said"), [
    ("run", "CheckpointError .*step_00000002: cannot be written: out of memory in .*older checkpoints are untouched"),
    ("background", "MemoryError"),
])  # fmt: skip
def test_a_checkpoint_without_memory_ends_and_the_older_one_stays(tmp_path: Path, how: str, said: str) -> None:
    done = python("-c", NO_MEMORY_LEFT, tmp_path, how, env=environment(), timeout=60)
    assert re.match(said, done.stdout), done.stdout + done.stderr[-2000:]
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    code = """
import resource, sys
from pathlib import Path
from mindgspo.io import read_json
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (32 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
print(read_json(Path(sys.argv[1])))
"""
    done = python("-c", code, tmp_path / "a.json", env=environment(), timeout=60)
    assert done.stdout == "[1]\n", done.stderr


def test_a_command_without_memory_says_where(tmp_path: Path) -> None:
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "a.ckpt").touch()
    (tmp_path / "checkpoint.json").write_text(json.dumps({"a": ["x" * 9] * 3_000_000}))
    code = """
import resource, sys
from pathlib import Path
from mindgspo.cli import main
main(["checkpoint", "list", "/nowhere"])
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (48 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
sys.exit(main(["checkpoint", "list", sys.argv[1]]))
"""
    done = python("-c", code, tmp_path, env=environment(), timeout=60)
    said = done.stderr.splitlines()
    assert done.returncode == 1 and len(said) == 2 and said[1].startswith("error: out of memory in "), done.stderr
    assert "mindgspo/io.py, line " in said[1] and "ulimit -v" in said[1]


def test_a_command_without_files_names_the_limit(tmp_path: Path) -> None:
    """A pipe to a child process has no name."""
    code = """
import os, resource, sys
from mindgspo.cli import main
from mindgspo.cli.program import app
main(["checkpoint", "list", "/nowhere"])
app.command("pipes")(lambda: [os.pipe() for _ in range(100)])
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
sys.exit(main(["pipes"]))
"""
    done = python("-c", code, env=environment(), timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["error: too many open files: the limit is 20 (ulimit -n); set 4096 or more"]
