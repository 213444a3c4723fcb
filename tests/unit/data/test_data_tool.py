"""tools/prepare_data.py as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.data import open_dataset
from mindgspo.data.command import prepare_from_options
from mindgspo.errors import ConfigError
from mindgspo.tokenization import Tokenizer

TOOL = Path(__file__).resolve().parents[3] / "tools" / "prepare_data.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True, cwd=TOOL.parents[1]
    )


def test_prepares_and_prints_the_account(gsm8k_file: Path, tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tok")
    done = run(
        *(
            "--format",
            "gsm8k",
            "--input",
            gsm8k_file,
            "--output",
            tmp_path / "out",
            "--max-prompt-length",
            40,
        ),
        *("--tokenizer", tmp_path / "tok", "--truncation", "drop", "--max-rows", 2, "--system-prompt", "S"),
        *("--eos-token", "<|im_end|>", "--eos-token", "<|endoftext|>", "--instruction-suffix", "!"),
    )
    assert done.returncode == 0, done.stderr
    assert "rows       2 in, 1 out" in done.stdout and str(tmp_path / "out") in done.stdout
    assert open_dataset(tmp_path / "out", tokenizer)[0].text.startswith("<|im_start|>system\nS<|im_end|>")


def test_mistakes_give_one_line_and_exit_code_1(tmp_path: Path):
    done = run("--format", "gsm8k", "--input", tmp_path / "no.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == f"error: {tmp_path / 'no.jsonl'}: no such file\n"


def test_values_that_a_section_refuses(tmp_path: Path):
    with pytest.raises(ConfigError, match="max_prompt_length: .* got 0"):
        prepare_from_options(format="arithmetic", output=tmp_path / "out", max_prompt_length=0)


def test_options_of_the_generated_task(tokenizer: Tokenizer, tmp_path: Path):
    info = prepare_from_options(format="arithmetic", output=tmp_path / "out", split="test", max_rows=7, seed=5)
    assert (info.source.split, info.source.seed, info.counts.rows_out) == ("test", 5, 7)
    assert len(open_dataset(tmp_path / "out", tokenizer)) == 7
