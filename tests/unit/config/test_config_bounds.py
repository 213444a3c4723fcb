"""Files and overrides that are made to hang, to fill memory or to end in a traceback: one clear message, soon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mindgspo.config import load_config
from mindgspo.errors import ConfigError


@pytest.mark.parametrize(("content", "said"), [
    ("a: " + "[" * 20_000, "line 1, column 53: nested more than 50 deep"),
    ("a: " + "{a: " * 5_000, "nested more than 50 deep"),
    ("\n".join(" " * depth + "a:" for depth in range(300)), "line 50, column 50: nested more than 50 deep"),
    ("- " * 5_000, "nested more than 50 deep"),
    ("seed: " + "9" * 10_000, "line 1, column 7: a number of 10,000 digits; at most 400 are read"),
    ("a: " + "9" * 10_000 + ".5", "a number of 10,002 digits"),
    ('experiment: "\\ud800"', "line 1, column 13: half a surrogate pair, which is no character"),
    ('experiment: "\\U7FFFFFFF"', "bad.yaml: chr() arg not in range"),
    ('include: "a\\0b.yaml"', "include: 'a\\x00b.yaml': the character NUL can be in no file's name"),
    ("include: " + "r" * 5_000, "cannot be read: File name too long"),
    ("include: /dev/zero", "/dev/zero: cannot be read: is no regular file"),
    ("include: pipe.yaml", "pipe.yaml: cannot be read: is no regular file"),
    ("include: [twice.yaml, twice.yaml]", "include: more than 100 files in all"),
    ("experiment: x # " + "k" * 300_000, "cannot be read: has 300,016 bytes, and at most 262,144 are read"),
    ("".join(f"key{i}: 1\n" for i in range(10_000)), "  and 9,985 more"),
], ids=lambda value: value[:40])  # fmt: skip
def test_a_file_is_read_within_bounds(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "twice.yaml").write_text("include: [one.yaml, one.yaml]")
    (tmp_path / "one.yaml").write_text("include: [" + "leaf.yaml, " * 40 + "]")
    (tmp_path / "leaf.yaml").write_text("experiment: x")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert said in str(caught.value) and len(str(caught.value)) < 6_000, str(caught.value)[:300]


@pytest.mark.parametrize(("override", "said"), [
    (".".join("a" * 50_000) + "=1", "expected section.key=value"),
    ("reward.functions=" + "[" * 20_000, "nested more than 50 deep"),
    ("seed=" + "9" * 10_000, "a number of 10,000 digits"),
])  # fmt: skip
def test_an_override_is_read_within_bounds(override: str, said: str, experiment: Path) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(experiment, [override])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("override", "line"), [
    (f"seed={2**64}", "seed: must be <= 18,446,744,073,709,551,615, got 18446744073709551616"),
    ("trainer.max_steps=" + "9" * 23, "trainer.max_steps: must be <= 2,147,483,647, got " + "9" * 23),
    ("rollout.slots=1000000000000", "rollout.slots: must be <= 65,536, got 1000000000000"),
    ("reward.workers.count=100000000", "reward.workers.count: must be <= 1,024, got 100000000"),
    ("reward.workers.timeout_s=1e300", "reward.workers.timeout_s: must be <= 86400, got 1e+300"),
    ("model.num_hidden_layers=10000000", "model.num_hidden_layers: must be <= 1,000, got 10000000"),
    ("eval.pass_at_k=[1, 1000000]", "eval.pass_at_k[1]: must be <= 65,536, got 1000000"),
    ("data.train.max_rows=1000000000000", "data.train.max_rows: must be <= 2,147,483,647, got 1000000000000"),
    ("data.train.max_rows=200000", "data.train.max_rows: 200,000 rows of a task that has a few thousand problems; "
     "largest legal: 100,000"),
    ("resume=true", "resume: expected 'never', 'auto' or a path, got true"),
    ("resume=[a]", """resume: expected 'never', 'auto' or a path, got ["a"]"""),
    ("resume=/nowhere/run", "resume: /nowhere/run does not exist (nearest existing folder: /); set it with "
     "--set resume=..., or --set resume=auto"),
    ('run_dir="a\\0b"', "run_dir: 'a\\x00b': the character NUL can be in no file's name"),
    ("run_dir=" + "r" * 256, "run_dir: " + "r" * 197 + "...: a name of 256 bytes; a file's name has at most 255"),
    ("run_dir=" + "r/" * 2_500, "run_dir: " + ("r/" * 99)[:197] + "...: 4999 bytes; a path has at most 4095"),
    ("experiment=" + "e" * 300,
     "run_dir: runs/" + "e" * 192 + "...: a name of 300 bytes; a file's name has at most 255"),
    ('swap.path="/a\\0"', "swap.path: '/a\\x00': the character NUL can be in no file's name"),
], ids=lambda value: value[:40])  # fmt: skip
def test_a_value_beyond_reason_is_named_with_the_bound(problems, override: str, line: str) -> None:
    assert problems(override) == [line]


def test_the_widest_values_are_legal(load) -> None:
    assert load(f"seed={2**64 - 1}", "run_dir=" + "r" * 255).seed == 2**64 - 1


def test_a_run_folder_that_cannot_be_is_refused(problems, experiment: Path) -> None:
    line = f"run_dir: {experiment} is a file; choose a folder with --set run_dir=..."
    assert problems(f"run_dir={experiment}") == problems(f"run_dir={experiment}/below/it") == [line]
