"""tools/prepare_data.py as a user calls it."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from mindgspo.config.schema import DataFormat
from mindgspo.data import open_dataset
from mindgspo.data.command import prepare_from_options
from mindgspo.errors import ConfigError
from mindgspo.tokenization import Tokenizer

TOOL = Path(__file__).resolve().parents[3] / "tools" / "prepare_data.py"


def argument_parser() -> argparse.ArgumentParser:
    spec = importlib.util.spec_from_file_location("prepare_data_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.argument_parser()


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


def choices(annotation: object) -> tuple[str, ...] | None:
    """Of Annotated[Literal[...], ...]."""
    kind = get_args(annotation)[0]
    return get_args(kind) if get_origin(kind) is Literal else None


def test_the_command_and_the_tool_take_the_same_options():
    """Names, defaults and choices; both hand all of them to `prepare_from_options`."""
    from mindgspo.cli import data_prepare

    of_command = {
        name: (None if option.default is option.empty else option.default or None, choices(option.annotation))
        for name, option in inspect.signature(data_prepare, eval_str=True).parameters.items()
    }
    of_tool = {
        action.option_strings[-1].removeprefix("--").replace("-", "_"): (action.default or None, action.choices)
        for action in argument_parser()._actions
        if action.dest != "help"
    }
    assert of_command == of_tool
    assert {*of_tool, "eos_tokens"} - {"eos_token"} == set(inspect.signature(prepare_from_options).parameters)
    formats = of_tool["format"][1]
    assert {*formats, "prepared"} == set(get_args(DataFormat)) and len(formats) == len(set(formats))


def test_unknown_formats_are_refused(tmp_path: Path):
    done = run("--format", "gsm8", "--output", tmp_path / "out")
    assert done.returncode == 2 and "invalid choice: 'gsm8'" in done.stderr
    with pytest.raises(ConfigError, match="format: .* got 'gsm8'"):
        prepare_from_options(format="gsm8", output=tmp_path / "out")


def test_columns_dedup_and_workers_from_the_command_line(tmp_path: Path, tokenizer: Tokenizer):
    tokenizer.save(tmp_path / "tok")
    (tmp_path / "columns.yaml").write_text("prompt: ask\nanswer: meta.gold\ndata_source_name: gsm8k\n")
    rows = [{"ask": "2+2?", "meta": {"gold": gold}} for gold in (4, "4.0", 4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--format", "columns", "--input", tmp_path / "rows.jsonl", "--tokenizer", tmp_path / "tok")
    done = run(
        *options,
        *("--columns", tmp_path / "columns.yaml", "--dedup", "--workers", 2, "--instruction-prefix", "Solve: "),
        *("--output", tmp_path / "out"),
    )
    assert done.returncode == 0, done.stderr
    assert "rows       3 in, 1 out" in done.stdout and "2 prompt occurred before" in done.stdout
    (prompt,) = open_dataset(tmp_path / "out", tokenizer)
    assert "Solve: 2+2?" in prompt.text and (prompt.answer, prompt.data_source) == ("4", "gsm8k")
    without = run(*options, "--output", tmp_path / "out2")
    assert without.returncode == 1 and "columns: missing; format columns needs to know" in without.stderr


def test_workers_must_be_positive(tmp_path: Path):
    with pytest.raises(ConfigError, match="--workers: must be >= 1, got 0"):
        prepare_from_options(format="arithmetic", output=tmp_path / "out", workers=0)
