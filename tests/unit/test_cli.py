"""The command line in this process: what each command parses, prints and returns. Whole runs: tests/integration."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from markdown_pages import COMMANDS
from running import PROJECT, imported_by, python

from mindgspo.cli import main

QUICKSTART = PROJECT / "examples" / "arithmetic" / "gspo.yaml"


def test_every_help_text_is_made_of_sentences(capsys: pytest.CaptureFixture) -> None:
    texts = {" ".join(words): command.help for words, command in COMMANDS.items()}
    for words, command in COMMANDS.items():
        parameters = [param for param in command.params if param.name != "help"]
        texts |= {" ".join((*words, param.opts[0])): param.help for param in parameters}
    assert len(texts) > 150
    assert {name: text for name, text in texts.items() if not re.match(r"[A-Z].*\.$", text or "", re.DOTALL)} == {}
    for words in [(), *(words for words, command in COMMANDS.items() if hasattr(command, "commands"))]:
        assert main([*words, "--help"]) == 0
        assert re.findall(r"^  .*\.\.\.$", capsys.readouterr().out, re.MULTILINE) == [], (
            "a list of commands is cut short"
        )


def test_h_is_help_everywhere(capsys: pytest.CaptureFixture) -> None:
    assert ("run",) in COMMANDS and ("data", "prepare") in COMMANDS
    for words in [(), *COMMANDS]:
        assert main([*words, "-h"]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"Usage: {' '.join(('mindgspo', *words))} "), text
        assert len(text.splitlines()) > 6, text


def test_version_names_what_a_bug_report_needs(capsys: pytest.CaptureFixture) -> None:
    assert main(["--version"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("mindgspo ") and "MindSpore 2." in printed and "Python 3." in printed


@pytest.mark.parametrize(("arguments", "said"), [
    (["run"], "Missing argument"), (["run", "x.yaml", "--sett", "a=b"], "No such option"),
    (["trian", "x.yaml"], "No such command"), (["eval", "model"], "give either --data"),
    (["train", "x.yaml"], "No such command: train; it is called run here"),
    (["run", "x.yaml", "--optimizer.lr=1e-5"], "settings are written without dashes: optimizer.lr=VALUE"),
    (["check", "x.yaml", "--optimizer.lr", "1e-5"], "settings are written without dashes: optimizer.lr=VALUE"),
    (["plan", "x.yaml", "--cards", "8"], "No such option: --cards (Possible options: --card)"),
    (["run", "x.yaml", "--cards", "8", "seed=2"], "No such option: --cards"),
    (["plan", "x.yaml", "--card", "A100"], "'A100' is not one of 'A2', 'A3'"),
    (["eval", "model", "--data", "gsm8k", "--config", "x.yaml"], "give either --data"),
    (["eval", "model", "--data", "gsm8k", "--pass-at-k", "1,x"], "expected whole numbers, e.g. 1,4,8, got '1,x'"),
    (["eval", "model", "--data", "gsm8k", "--pass-at-k", "9" * 5000], "expected whole numbers"),
    (["convert", "weights", "model", "out", "--max-shard-size", "9" * 400], "is not a size; write 5GB"),
    (["eval", "model", "--config", "x.yaml", "--format", "math"], "--format and --columns go with --data"),
    (["generate", "model", "--env", "x.yaml", "--prompt", "x", "--row", "1"], "--env goes with either"),
    (["generate", "model", "--row", "1"], "--row goes with --env"),
    (["logprobs", "model"], "Missing option '--input'"),
    (["data", "prepare", "--format", "csv", "--output", "x"], "'csv'"),
    (["data", "inspect", "x", "--rows", "-1"], "--rows"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_a_wrong_command_line_exits_with_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and said in printed.err


@pytest.mark.parametrize(("arguments", "said"), [
    (["run", "nowhere.yaml"], "error: nowhere.yaml: no such file"),
    (["generate", "Qwen/Qwen3-8B", "--prompt", "x"],
     "error: Qwen/Qwen3-8B: no such folder here; to fetch it, pip install 'mindgspo[huggingface]'"),
    (["logprobs", "modelscope:Qwen/Qwen3-8B", "--input", "x"], "to fetch it, pip install 'mindgspo[modelscope]'"),
    (["generate", "runs/none", "--prompt", "x"], "error: runs/none: no such folder; give a Hugging Face model folder"),
    (["generate", QUICKSTART, "--prompt", "x"], "gspo.yaml: is a file; give a Hugging Face model folder"),
    (["check", "."], "error: .: is a folder; give the YAML file of an experiment; `mindgspo init` writes one"),
    (["runs", QUICKSTART], "gspo.yaml: is a file; runs are in runs/ unless run_dir says otherwise"),
    (["replay", "."], "error: .: no dumped step (it holds no step.json); --set trainer.dump_step=5"),
    (["run", QUICKSTART, "--set", "seed"], "error: --set seed: expected section.key=value"),
    (["check", QUICKSTART, "--set", "sed=2"], "did you mean seed?"),
    (["sft", QUICKSTART, "--set", "warmup="], "error: warmup: missing"),
    (["eval", "nowhere", "--config", QUICKSTART], "error: nowhere: no such folder; give a Hugging Face model folder"),
    (["eval", "nowhere", "--data", "gsm8k"], "error: nowhere: no such folder; give a Hugging Face model folder"),
    (["report", "nowhere"], "error: nowhere: no metrics.jsonl here"),
    (["data", "inspect", "nowhere"], "error: nowhere: no such prepared data set"),
    (["data", "prepare", "--format", "gsm8k", "--output", "x"], "error: "),
    (["logprobs", "nowhere", "--input", "x"], "error: nowhere: no such folder; give a Hugging Face model folder"),
], ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "")  # fmt: skip
def test_a_users_mistake_is_one_message_with_exit_code_1(
    arguments: list[object], said: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in ("huggingface_hub", "modelscope_hub"):
        monkeypatch.setitem(sys.modules, package, None)  # not installed
    assert main([str(argument) for argument in arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and said in printed.err
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_ctrl_c_is_one_line_and_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: BaseException) -> None:
        raise error

    monkeypatch.setattr("mindgspo.metrics.plot_run", lambda _: raising(AssertionError("an invariant")))
    with pytest.raises(AssertionError, match="an invariant"):
        main(["report", "x"])
    program = (
        "import signal, sys; from mindgspo import metrics; from mindgspo.cli import main;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a shell's background jobs ignore it
        "metrics.plot_run = lambda _: signal.raise_signal(signal.SIGINT); sys.exit(main(['report', 'x']))"
    )
    done = python("-c", program, cwd=PROJECT)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_code_of_cann_is_explained_behind_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("Malloc failed\nEL0004: [PID: 7] Failed to allocate memory.")

    monkeypatch.setattr("mindgspo.trainer.check.check_experiment", fail)
    assert main(["check", str(QUICKSTART)]) == 1
    said = capsys.readouterr().err
    assert said.index("Traceback") < said.index("EL0004: the card has not the memory") < said.index("  fix ")


def test_a_run_without_mindspore_says_how_to_install_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['mindspore'] = None; from mindgspo.cli import main; sys.exit(main(sys.argv[1:]))"
    done = python("-c", code, "run", QUICKSTART, "--set", f"run_dir={tmp_path / 'run'}", cwd=PROJECT)
    assert done.returncode == 1
    assert done.stderr.startswith("error: MindSpore is not installed: pip install 'mindgspo[mindspore]'"), done.stderr


def test_check_answers_without_mindspore() -> None:
    program = (
        "import sys; from mindgspo.cli import main; code = main(['check', sys.argv[1]]); "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'mindspore']; sys.exit(code)"
    )
    done = python("-c", program, QUICKSTART, cwd=PROJECT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "ok"


def test_data_is_prepared_inspected_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare = ["data", "prepare", "--format", "arithmetic", "--output", "rows", "--max-rows", "9"]
    assert main([*prepare, "--max-prompt-length", "32", "--seed", "3"]) == 0
    assert "rows       9 in, 9 out" in capsys.readouterr().out
    assert main(["data", "inspect", "rows", "--rows", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("<|im_start|>user\n") == 2 and shown.count("--- solution: ") == 2
    settings = ["--set", "data.train={format: prepared, path: rows}", "--set", "trainer.max_steps="]
    assert main(["check", str(QUICKSTART), *settings, "--set", "rollout.prompts_per_step=8"]) == 0
    assert "data.train: 9 prepared rows" in capsys.readouterr().out
    assert main([*prepare, "--seed", "4"]) == 1
    assert "rows: was prepared from other inputs and is not overwritten" in capsys.readouterr().err


def test_report_is_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lines = [{"step": step, "critic/score/mean": 0.1 * step} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert (tmp_path / "reward.png").is_file() and (tmp_path / "report.html").is_file()


def test_putting_the_commands_together_reads_no_configuration_and_no_package_beside_this_one() -> None:
    heavy = {"pydantic", "mindgspo.config", "mindgspo_migrate.convert", "mindgspo_conformance.run"}
    assert not heavy & imported_by("import mindgspo.cli.program")


@pytest.mark.parametrize(("points", "words", "said"), [
    ([], ["conformance", "--x"], "mindgspo conformance is not installed: pip install 'mindgspo[conformance]'"),
    ([], ["convert", "config", "verl.sh"], "mindgspo convert config is not installed: pip install 'mindgspo[migrate]'"),
    (["broken = no_such_module:command"], ["broken", "x"],
     "mindgspo broken cannot be imported (ModuleNotFoundError: No module named 'no_such_module'); install its again"),
    (["broken = no_such_module:command"], ["runs", "nowhere"], "nowhere: no such folder"),
])  # fmt: skip
def test_a_command_that_is_not_there_is_one_line_and_breaks_no_other(
    points: list[str], words: list[str], said: str, tmp_path: Path
) -> None:
    program = (
        "import importlib.metadata as m, sys, types; before, to = m.entry_points, types.SimpleNamespace(name='its')\n"
        f"m.entry_points = lambda group: [m.EntryPoint(*p.split(' = '), group)._for(to) for p in {points}]\n"
        f"import mindgspo.cli.program; m.entry_points = before; sys.exit(mindgspo.cli.main({words}))"
    )
    done = python("-c", program, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT)})
    assert done.returncode == 1 and done.stderr.startswith(f"error: {said}") and done.stderr.count("\n") == 1
