"""Settings as bare words, and their completion: in this process and in a real bash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import PROJECT, python

from mindgspo.cli import main
from mindgspo.cli.options import complete_setting

QUICKSTART = str(PROJECT / "examples" / "arithmetic" / "gspo.yaml")


@pytest.mark.parametrize("words", [
    [QUICKSTART, "sede=2"], [QUICKSTART, "--set", "sede=2"], [QUICKSTART, "--set=sede=2"],
    ["--set", "sede=2", QUICKSTART], [QUICKSTART, "seed=7", "--set", "device=CPU", "sede=2"],
])  # fmt: skip
def test_a_bare_setting_is_one_with_set(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["check", *words]) == 1
    assert "sede: unknown key; did you mean seed?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ["rollout.temperature=0.5", "--set", "rollout.temperature=-1"],
    ["--set", "rollout.temperature=0.5", "rollout.temperature=-1"],
])  # fmt: skip
def test_the_last_of_bare_and_other_settings_wins(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["check", QUICKSTART, *words]) == 1
    assert "rollout.temperature: must be >= 0, got -1" in capsys.readouterr().err
    assert main(["check", QUICKSTART, *words, "rollout.temperature=1"]) == 0


def test_values_of_options_are_no_settings(capsys: pytest.CaptureFixture) -> None:
    """The folder of --rates is told from the settings around it."""
    words = ["seed=2", "--rates", "no_such=run", "seed=3"]
    assert main(["plan", QUICKSTART, *words]) == 1
    said = capsys.readouterr().err
    assert "no_such=run" in said and "unknown key" not in said


@pytest.mark.parametrize(("words", "said"), [
    (["run", QUICKSTART, "seed"], "'seed' is no setting: write KEY=VALUE, e.g. trainer.max_steps=20"),
    (["run", QUICKSTART, "overwrite"], "did you mean --overwrite?"),
    (["serve", QUICKSTART, "second.yaml"], "'second.yaml' is no setting"),
    (["eval", "model", "seed=2"], "give either --data"),
    (["report", "run", "seed=2"], "unexpected extra argument"),
])  # fmt: skip
def test_a_word_that_is_no_setting_is_a_wrong_command_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_usage_line_shows_settings(capsys: pytest.CaptureFixture) -> None:
    assert main(["eval", "-h"]) == 0
    assert re.match(r"Usage: mindgspo eval \[OPTIONS\] \{model_dir\} \[KEY=VALUE\]\.\.\.\n", capsys.readouterr().out)


@pytest.mark.parametrize(("begun", "offered"), [
    ("algorithm.kl.reference.mo", {"algorithm.kl.reference.mode="}), ("algorithm.k", {"algorithm.kl."}),
    ("swap.enabled=", {"swap.enabled=true", "swap.enabled=false"}),
    ("device=", {"device=CPU", "device=Ascend"}), ("resume=n", {"resume=never"}),
    ("seed=", set()), ("model.path=", set()), ("nowhere.x", set()), ("seed.x", set()), ("nowhere=", set()),
])  # fmt: skip
def test_keys_and_values_of_settings_are_completed(begun: str, offered: set[str]) -> None:
    assert {word for word, _ in complete_setting(begun) if word.startswith(begun)} == offered


def test_every_key_is_offered_with_a_text() -> None:
    todo, found = [""], []
    while todo:
        for word, text in complete_setting(todo.pop()):
            assert text, word
            (todo if word.endswith(".") else found).append(word)
    assert len(found) > 150 and "algorithm.kl.reference.mode=" in found


def test_completion_imports_no_mindspore() -> None:
    program = (
        "import sys; from mindgspo.cli import main; code = main([]); "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'mindspore']; sys.exit(code)"
    )
    asked = {"COMP_WORDS": "mindgspo\nrun\nx.yaml\ntrainer.max_steps", "COMP_CWORD": "3"}
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "_MINDGSPO_COMPLETE": "complete_bash", **asked}
    done = python("-c", program, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trainer.max_steps=\n", "")


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    program = tmp_path / "mindgspo"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={PROJECT} exec {sys.executable} -m mindgspo.cli "$@"\n')
    program.chmod(0o755)
    # As readline calls the function: words broken at COMP_WORDBREAKS, the last one unfinished.
    asked = {
        "mindgspo chec": "check|checkpoint|", "mindgspo run x.yaml": "",
        "mindgspo run x.yaml --set optimizer.l": "nospace optimizer.lr=|",
        "mindgspo run x.yaml seed=2 algorithm.name=gs": "algorithm.name=gspo|algorithm.name=gspo_token|",
        "mindgspo run x.yaml swap.enabled=": "swap.enabled=true|swap.enabled=false|",
    }  # fmt: skip
    lines = ['source "$1"', "compopt() { printf 'nospace '; }", "[[ $COMP_WORDBREAKS != *=* ]] || exit 1"]
    for line in asked:
        lines += [
            f"COMP_WORDS=({line}) COMP_CWORD={len(line.split()) - 1}",
            '_mindgspo_completion "$2"; for one in "${COMPREPLY[@]}"; do printf "%s|" "$one"; done; echo',
        ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines), "bash", tmp_path / "script", program],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (list(asked.values()), "")
