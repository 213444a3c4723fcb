"""environment.jsonl: what a start records of its machine, and what it must not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from mindgspo.metrics import RunLog, environment, write_report
from mindgspo.metrics.environment import cann_release, command_line, git_state, processor_warning, record_start


def test_every_start_appends_a_line_that_the_report_shows(tmp_path: Path) -> None:
    with RunLog(tmp_path, progress=False, console=Console(quiet=True)) as log:
        log.log_metrics(1, {"critic/score/mean": 0.5})
    record_start(tmp_path, step=0, device="CPU")
    record_start(tmp_path, step=4, device="CPU", hub={"model o/m": "abc"})
    lines = [json.loads(line) for line in (tmp_path / "environment.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 4]
    assert [line.get("hub") for line in lines] == [None, {"model o/m": "abc"}]
    assert {"time", "host", "machine", "command", "versions", "git", "device", "instructions"} < lines[0].keys()
    assert lines[0]["versions"].keys() >= {"python", "numpy"}
    page = write_report(tmp_path).read_text()
    assert "Starts, versions and command lines" in page and f"numpy {lines[0]['versions']['numpy']}" in page


def test_a_start_on_another_processor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor_warning(tmp_path) is None, "a new run"
    (tmp_path / "environment.jsonl").write_text('{"step": 0, "host": "recorded before instructions were"}\n')
    assert processor_warning(tmp_path) is None
    for name, warning in (
        ("avx2 fma", None),
        ("avx2 fma avx512f", "last used a processor with avx2 fma; this one has avx2 fma avx512f."),
    ):
        monkeypatch.setattr(environment, "instruction_set", lambda name=name: name)
        found = processor_warning(tmp_path)
        assert found is None if warning is None else warning in str(found)
        record_start(tmp_path, step=0, device="CPU")
    assert processor_warning(tmp_path) is None, "the last start was here"


def test_a_command_line_keeps_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_PASS", "hidden-word")
    words = ["/x/mindgspo/cli/__main__.py", "run", "a b.yaml", "--set", "rollout.servers.urls=[http://me:pass@h:80]",
             "--set", "api_key=abc", "--set", "trainer.max_tokens_per_micro_batch=64", "--api-key=geheim", "--token",
             "geheim", "--set", "run_dir=/a/hidden-word/b", "--set", "rollout.servers.api=vllm",
             "--set", "reward.url=https://h/judge?key=geheim&n=1"]  # fmt: skip
    assert command_line(words) == (
        "mindgspo run 'a b.yaml' --set 'rollout.servers.urls=[http://***@h:80]' --set 'api_key=***' "
        "--set trainer.max_tokens_per_micro_batch=64 '--api-key=***' --token '***' --set 'run_dir=/a/***/b' "
        "--set rollout.servers.api=vllm --set 'reward.url=https://h/judge?key=***&n=1'"
    )


def test_cann_is_found_where_the_toolkit_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
    assert cann_release() is None
    path = tmp_path / "cann" / "compiler" / "version.info"
    path.parent.mkdir(parents=True)
    path.write_text("Version=8.2.RC1\nversion_dir=8.2.RC1\n")
    assert cann_release() == "8.2.RC1"
    monkeypatch.delenv("ASCEND_HOME_PATH")
    assert cann_release(tmp_path / "cann") == "8.2.RC1", "in its usual place"


def test_the_commit_of_a_checkout_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    found = git_state(tmp_path)
    assert found is not None and len(str(found["commit"])) == 40 and found["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == {**found, "dirty": True}
