"""`mindgspo dryrun` on the command line, as far as nothing is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.cli import main

CONFIG = str(Path(__file__).parents[3] / "examples" / "gsm8k" / "gspo_qwen2_5_7b.yaml")


def test_ranks_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dryrun", CONFIG, "--ranks", "0,last"]) == 2
    assert "'0,last' is no list of numbers such as 0,4" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        (["--ranks", "0,8"], "error: --ranks: 8; plans.train 1 x 4 x 2 has ranks 0 to 7"),
        (["--ranks", "0", "--all"], "error: --ranks and --all: give one of them"),
        (
            ["--graphs", "train,draw"],
            "error: --graphs: 'draw' is none of train, reference, prefill, decode, rollout, old_policy",
        ),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dryrun", CONFIG, *options]) == 1
    assert capsys.readouterr().err == f"{message}\n"
