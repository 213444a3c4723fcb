"""`mindgspo convert config` as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_cases.conversions import FILES
from running import imported_by

from mindgspo.cli import main

GSPO = FILES / "verl_gspo_gsm8k_3b.sh"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["convert", "config", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_result_goes_to_a_file_and_the_report_to_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = tmp_path / "gspo.yaml"
    code, said, report = run(capsys, GSPO, "--out", out, "--set", "seed=9", "--set", "tokenizer.path=tok")
    assert (code, said) == (0, "")
    text = out.read_text()
    assert "seed: 9 # --set" in text and f"path: {Path.cwd() / 'tok'} # --set" in text
    assert "prompts_per_step: 512 # data.train_batch_size" in text
    assert text.startswith("# Converted by mindgspo convert config from verl_gspo_gsm8k_3b.sh.\n")
    found = "actor_rollout_ref.model.path = Qwen/Qwen2.5-3B -> model.path, tokenizer.path: a name on a hub"
    assert found in report
    assert report.rstrip().endswith(f"next: mindgspo check {out}")
    assert [path.name for path in tmp_path.iterdir()] == ["gspo.yaml"]


def test_without_a_file_the_result_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, report = run(capsys, GSPO, "--set", "tokenizer.path=")
    assert code == 0 and "experiment: gsm8k-gspo-3b" in said and said.endswith("\n")
    assert "still to be set (1)" in report and "  tokenizer.path" in report
    assert report.splitlines()[-1].startswith("verl: 36 mapped, ")


def test_a_file_that_is_there_is_not_touched(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("mine")
    code, _, said = run(capsys, GSPO, "--out", out)
    assert (code, out.read_text()) == (1, "mine")
    assert said == f"error: {out}: is there already; give --out another name, or move it away\n"
    code, _, said = run(capsys, GSPO, "--out", tmp_path / "none" / "x.yaml")
    assert code == 1 and "cannot be written: No such file or directory" in said


def test_input_that_cannot_be_read_ends_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("a: 1\n")
    (tmp_path / "train.py").write_text("config = GRPOConfig(beta=0.0)\n")
    (tmp_path / "half.sh").write_text("python3 -m verl.trainer.main_ppo a.b='x\n")
    for arguments, message in (
        ((tmp_path / "none.yaml",), "none.yaml: cannot be read: No such file or directory"),
        ((tmp_path / "other.yaml",), "other.yaml: no key of MindFormers"),
        ((tmp_path / "half.sh",), "half.sh: line 1: a quote or bracket is not closed"),
        ((tmp_path / "train.py",), "train.py: Python is not read, as nothing is run; TRL is read from its YAML"),
        ((GSPO, "--set", "seed"), "--set seed: expected section.key=value"),
        ((GSPO, GSPO), "verl and verl do not go together"),
        ((FILES / "finetune_qwen2_5_7b.yaml",) * 2, "run_mode is finetune in both files"),
        ((FILES / "grpo_qwen2_5_7b.yaml", "--from", "verl"), "holds no override"),
    ):
        code, said, error = run(capsys, *arguments)
        assert (code, said) == (1, "") and error.startswith("error: ") and message in error, error


def test_from_says_whose_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text("seed: 3\n")
    assert run(capsys, path)[0] == 1
    code, said, _ = run(capsys, path, "--from", "mindformers")
    assert code == 0 and "seed: 3 # seed" in said
    assert run(capsys, path, "--from", "slime")[0] == 2


def test_a_conversion_needs_no_mindspore() -> None:
    program = "from mindgspo_migrate.convert import convert, report_lines; from pathlib import Path\n"
    assert not {"mindspore", "torch"} & imported_by(f"{program}list(report_lines(convert([Path({str(GSPO)!r})])))")
