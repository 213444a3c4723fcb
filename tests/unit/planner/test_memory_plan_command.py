"""`mindgspo plan` as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.cli import main

PROJECT = Path(__file__).resolve().parents[3]
SEVEN_BILLION = PROJECT / "examples" / "gsm8k" / "gspo_qwen2_5_7b.yaml"
ARITHMETIC = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
FOUR_PROCESSES = PROJECT / "examples" / "arithmetic" / "gspo_4.yaml"


def planned(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_plan_shows_stages_parts_and_levels(capsys: pytest.CaptureFixture[str]) -> None:
    lines = planned(capsys, SEVEN_BILLION, "--memory-gb", "1000")
    text = "\n".join(lines)
    assert "ranks 0-3, layers 0-13, GiB" in text and "ranks 4-7, layers 14-27, GiB" in text
    for words in ("trained weights", "AdamW's moments", "key/value cache", "activations", "reshard bucket"):
        assert words in text
    assert sum("swap, reshard_level" in line for line in lines) == 2
    assert "An estimate" in text
    assert lines[-1].startswith("fits: update needs ") and lines[-1].endswith(" of 1,000.00 GiB")


def test_a_plan_that_does_not_fit_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    lines = planned(capsys, SEVEN_BILLION, "--memory-gb", "50")
    assert lines[-1].startswith("does not fit: update needs ")
    settings = lines[-1].split(": ")[-1].split()
    again = planned(capsys, SEVEN_BILLION, "--memory-gb", "50", *settings)
    assert again[-1].startswith("fits: ")


def test_a_card_of_nothing_fits_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = planned(capsys, SEVEN_BILLION, "--memory-gb", "0.5")
    assert lines[-1].endswith("nothing that was tried fits: take more cards or a smaller model")


def test_small_runs_are_told_in_mebibytes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = planned(capsys, ARITHMETIC, "--memory-gb", "16")
    assert any(line.startswith("rank 0, layers 0-2, MiB") for line in lines)
    assert lines[-1].startswith("fits: update needs ") and lines[-1].endswith(" of 16,384 MiB")


def test_processes_of_one_machine_share_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(4 processes together)" in planned(capsys, FOUR_PROCESSES, "--memory-gb", "16")[-1]
    assert planned(capsys, FOUR_PROCESSES, "--memory-gb", "1")[-1].startswith("does not fit")


def test_plans_are_made_without_mindspore() -> None:
    script = (
        "import sys\n"
        "from mindgspo.cli import main\n"
        f"code = main(['plan', {str(SEVEN_BILLION)!r}, '--memory-gb', '40'])\n"
        "assert 'mindspore' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", sorted(PROJECT.glob("examples/*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_shipped_experiment_can_be_planned(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    last = planned(capsys, path, "--memory-gb", "1024")[-1]
    assert last.startswith("fits: ")
