"""tools/prepare_data.py as a user calls it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from mindgspo.cli.data import data_prepare
from mindgspo.config.data import DataFormat
from mindgspo.data.dataset import open_dataset
from mindgspo.errors import ConfigError
from mindgspo.tokenization import Tokenizer

TOOL = Path(__file__).resolve().parents[3] / "tools" / "prepare_data.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True, cwd=TOOL.parents[1]
    )


def test_prepares_and_prints_the_account(gsm8k_file: Path, tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tok")
    done = run(*("--format", "gsm8k", "--input", gsm8k_file, "--output", tmp_path / "out", "--max-prompt-length", 40),
               *("--tokenizer", tmp_path / "tok", "--truncation", "drop", "--max-rows", 2, "--system-prompt", "S"),
               *("--eos-token", "<|im_end|>", "--eos-token", "<|endoftext|>", "--instruction-suffix", "!"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows       2 in, 1 out" in done.stdout and str(tmp_path / "out") in done.stdout
    assert open_dataset(tmp_path / "out", tokenizer)[0].text.startswith("<|im_start|>system\nS<|im_end|>")


@pytest.mark.parametrize(("option", "message"), [
    ({"max_prompt_length": 0}, "max_prompt_length: .* got 0"),
    ({"format": "gsm8"}, "format: .* got 'gsm8'"),
    ({"format": "gsm8k", "input": Path("rows.jsonl")},
     "--tokenizer: missing; .* only the arithmetic task, but --format is gsm8k"),
])  # fmt: skip
def test_values_that_are_refused(tmp_path: Path, option: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        data_prepare(**{"format": "arithmetic", "output": tmp_path / "out", **option})


def test_options_of_the_generated_task(tokenizer: Tokenizer, tmp_path: Path):
    data_prepare(format="arithmetic", output=tmp_path / "out", split="test", max_rows=7, seed=5)
    info = open_dataset(tmp_path / "out", tokenizer).info
    assert (info.source.split, info.source.seed, info.counts.rows_out) == ("test", 5, 7)


def test_the_command_takes_all_formats_of_the_configuration_but_prepared():
    options = inspect.signature(data_prepare, eval_str=True).parameters
    formats = get_args(get_args(options["format"].annotation)[0])
    assert {*formats, "prepared"} == set(get_args(DataFormat)) and len(formats) == len(set(formats))


def test_the_words_of_mindrlhf(gsm8k_file: Path, tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tok")
    files = ("--vocab_path", tmp_path / "tok" / "vocab.json", "--merges_file_path", tmp_path / "tok" / "merges.txt")
    done = run("--format", "gsm8k", "--file_path", gsm8k_file, *files, "--output_path", tmp_path / "theirs")
    assert done.returncode == 0, done.stderr
    ours = ("--input", gsm8k_file, "--tokenizer", tmp_path / "tok", "--output", tmp_path / "ours")
    assert run("--format", "gsm8k", *ours).returncode == 0
    theirs, wanted = (open_dataset(tmp_path / name, tokenizer) for name in ("theirs", "ours"))
    assert [prompt.text for prompt in theirs] == [prompt.text for prompt in wanted] and len(theirs) > 0


def test_files_of_a_tokenizer_that_do_not_go_together(gsm8k_file: Path, tokenizer: Tokenizer, tmp_path: Path):
    for name in ("tok", "other"):
        tokenizer.save(tmp_path / name)
    folder, merges = tmp_path / "tok", tmp_path / "tok" / "merges.txt"
    (folder / "words.json").write_bytes((folder / "vocab.json").read_bytes())
    for vocab, merges_file, more, message in (
        (folder / "vocab.json", None, {}, "^--merges_file_path: missing; --vocab_path names one of"),
        (None, merges, {}, "^--vocab_path: missing; --merges_file_path names one of"),
        (folder / "vocab.json", tmp_path / "other" / "merges.txt", {},
         "^--merges_file_path: .*other/merges.txt is not the file .*tok/merges.txt; put both into one folder$"),
        (folder / "vocab.json", merges, {"tokenizer": folder},
         "^--tokenizer: .*tok, but --vocab_path and --merges_file_path name a tokenizer too; drop one$"),
        (folder / "words.json", merges, {},
         "^--vocab_path: .*words.json is not the file .*tok/vocab.json; put both into one folder$"),
        (tmp_path / "none" / "vocab.json", merges, {}, "^--vocab_path: .*none/vocab.json is not the file"),
    ):  # fmt: skip
        files = {"vocab_path": vocab, "merges_file_path": merges_file, **more}
        with pytest.raises(ConfigError, match=message):
            data_prepare(format="gsm8k", input=gsm8k_file, output=tmp_path / "out", **files)
    assert not (tmp_path / "out").exists()


def test_problems_of_the_columns_name_the_option_or_its_file(gsm8k_file: Path, tmp_path: Path):
    columns = tmp_path / "columns.yaml"
    columns.write_text("prompt: question\nanswer: answer\n")
    for format, mapping, message in (
        ("columns", None, "^--columns: missing; format columns needs"),
        ("math", columns, "^--columns: read with format columns only, .* set --format columns$"),
        ("columns", columns, f"^{columns}: data_source_name: missing; give one name"),
    ):
        with pytest.raises(ConfigError, match=message):
            data_prepare(format=format, input=gsm8k_file, columns=mapping, output=tmp_path / "out")


def test_mistakes_give_one_line_and_exit_code_1_and_the_tool_is_the_command(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tok")
    options = ("--format", "gsm8k", "--output", tmp_path / "out", "--tokenizer", tmp_path / "tok")
    done = run(*options, "--input", tmp_path / "no.jsonl")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == f"error: {tmp_path / 'no.jsonl'}: no such file\n"
    done = run("--format", "gsm8", "--output", tmp_path / "out")
    assert done.returncode == 2 and "'gsm8' is not one of 'gsm8k', 'verl'" in done.stderr
    done = run("--help")
    assert done.returncode == 0 and "mindgspo data prepare [OPTIONS]" in done.stdout and "--dedup" in done.stdout


def test_columns_dedup_and_workers_from_the_command_line(jsonl, tmp_path: Path, tokenizer: Tokenizer):
    tokenizer.save(tmp_path / "tok")
    (tmp_path / "columns.yaml").write_text("prompt: ask\nanswer: meta.gold\ndata_source_name: gsm8k\n")
    path = jsonl({"ask": "2+2?", "meta": {"gold": gold}} for gold in (4, "4.0", 4))
    options = ("--format", "columns", "--input", path, "--tokenizer", tmp_path / "tok")
    done = run(*options,
               *("--columns", tmp_path / "columns.yaml", "--dedup", "--workers", 2, "--instruction-prefix", "Solve: "),
               *("--output", tmp_path / "out"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows       3 in, 1 out" in done.stdout and "2: prompt occurred before" in done.stdout
    (prompt,) = open_dataset(tmp_path / "out", tokenizer)
    assert "Solve: 2+2?" in prompt.text and (prompt.answer, prompt.data_source) == ("4", "gsm8k")
    without = run(*options, "--output", tmp_path / "out2")
    assert without.returncode == 1 and without.stderr.startswith(
        "error: --columns: missing; format columns needs to know"
    )
