"""`data.eval` as one source and as sets with names: loading, dumping, overriding, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import dump_config, load_config
from mindgspo.config.rules import data_sources
from mindgspo.errors import ConfigError

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
NONE = "data.eval=null"
FIRST = "data.eval.easy={format: arithmetic, split: test, max_rows: 8}"
SECOND = "data.eval.gsm8k={format: gsm8k, path: held_out.jsonl}"
OTHERS = ("warmup=null", "tokenizer.path=vocabulary")


def load(*overrides: str):
    return load_config(QUICKSTART, [*OTHERS, *overrides], check_files=False)


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_one_source_has_the_keys_of_a_source() -> None:
    config = load("data.eval.max_rows=3")
    assert config.data.eval.max_rows == 3 and not config.data.names_eval_sets
    assert list(config.data.eval_sets) == ["eval"]
    assert [key for key, _ in data_sources(config)] == ["data.train", "data.eval"]


def test_sets_with_names_load_back_as_they_were_dumped(tmp_path: Path) -> None:
    config = load(NONE, FIRST, SECOND, "data.eval.gsm8k.max_rows=5")
    assert config.data.names_eval_sets
    assert {name: source.max_rows for name, source in config.data.eval_sets.items()} == {"easy": 8, "gsm8k": 5}
    assert config.data.eval_sets["gsm8k"].path == Path.cwd() / "held_out.jsonl", (
        "relative paths are resolved at any depth"
    )
    assert [key for key, _ in data_sources(config)] == ["data.train", "data.eval.easy", "data.eval.gsm8k"]
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_config(config))
    assert load_config(path, check_files=False) == config


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            [FIRST],
            "data.eval.easy: a set of held-out problems beside the keys of a single one; give that",
        ),
        (["data.eval.pth=x"], "data.eval.pth: unknown key; did you mean data.eval.path"),
        ([NONE, "data.eval.a.format=gsm9k"], "data.eval.a.format: expected 'gsm8k', 'verl'"),
        ([NONE, FIRST, "data.eval.easy.pth=x"], "data.eval.easy.pth: unknown key; did you mean data.eval.easy.path"),
        ([NONE, "data.eval.a.split=test"], "data.eval.a.format: missing; gsm8k: rows {question"),
        ([NONE, "data.eval.a b={format: arithmetic}"], "data.eval.a b: must match ^[A-Za-z0-9]"),
        ([NONE, "data.eval.a=5"], "data.eval.a: expected a section with keys of its own, got 5"),
        ([NONE], "data.eval: expected a section with keys of its own, got null (nothing)"),
        (["data.eval=[1]"], "data.eval: expected a section with keys of its own, got [1]"),
        ([NONE, SECOND, "data.eval.gsm8k.path=null"], "data.eval.gsm8k.path: missing; gsm8k rows are read from a file"),
        (
            [NONE, "data.eval.easy={format: arithmetic}"],
            "data.eval.easy.split: train is already the split of",
        ),
    ],
)
def test_what_is_refused_is_named_with_its_set(overrides: list[str], line: str) -> None:
    (found,) = problems(*overrides)
    assert found.startswith(line), found
