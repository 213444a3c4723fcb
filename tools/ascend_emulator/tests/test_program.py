"""A MindSpore program that knows nothing of the emulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

import mindspore as ms
from mindspore import Tensor, nn, ops

ms.set_device("Ascend")


class Net(nn.Cell):
    def construct(self, x):
        return ops.matmul(x, x) + 1


print(sys.argv[1:], ms.get_context("device_target"), Net()(Tensor([[1.0, 2.0], [3.0, 4.0]])).asnumpy().tolist())
"""


@pytest.mark.slow
def test_it_runs_on_a_card(cards: None, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "ascend_emulator", "program.py", "--epochs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "['--epochs', '1'] Ascend [[8.0, 11.0], [16.0, 23.0]]"


def test_usage() -> None:
    command = [sys.executable, "-m", "ascend_emulator"]
    usage = "usage: python -m ascend_emulator [-h] script ..."
    for arguments, problem in ([], "arguments are required"), (["missing.py"], "missing.py: no such file"):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and usage in done.stderr and problem in done.stderr
    assert usage in subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
