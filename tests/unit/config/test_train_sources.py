"""`data.train` as a list: its forms, its rules, what a table says of it, and what a resumed run may not change."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config import batch_table, dump_config, load_config, notes
from mindgspo.errors import ConfigError
from mindgspo.evaluation.datasets import check_curriculum, check_distinct_prompts, training_prompts
from mindgspo.trainer.resume_checks import check_same_experiment
from mindgspo.types import Prompt

PLAIN = {"format": "arithmetic", "max_rows": 60, "name": "plain", "weight": 3}
EXTRA = {"format": "arithmetic", "split": "dev", "max_rows": 20, "name": "extra", "weight": 1}
EIGHT = "rollout.prompts_per_step=8"


@pytest.fixture
def mixed(experiment: Path):
    """mixed(sources, overrides): the small experiment with these training sources."""
    return lambda sources, *overrides: load_config(experiment, [f"data.train={json.dumps(sources)}", *overrides])


def without(source: dict, *keys: str) -> dict:
    return {key: value for key, value in source.items() if key not in keys}


def shares(config, *rows: int) -> list[tuple[str, Fraction]]:
    return [(one.name, one.share) for one in config.data.mixture(rows)]


def test_shares_are_the_weights_and_without_them_the_rows(mixed, experiment) -> None:
    assert shares(mixed([PLAIN, EXTRA]), 60, 20) == [("plain", Fraction(3, 4)), ("extra", Fraction(1, 4))]
    decimal = mixed([{**PLAIN, "weight": 0.3}, {**EXTRA, "weight": 0.7}])
    assert shares(decimal, 60, 20) == [("plain", Fraction(3, 10)), ("extra", Fraction(7, 10))]
    by_rows = mixed([without(PLAIN, "weight"), without(EXTRA, "weight")])
    assert shares(by_rows, 60, 20) == [("plain", Fraction(3, 4)), ("extra", Fraction(1, 4))]
    assert shares(by_rows, 30, 30) == [("plain", Fraction(1, 2)), ("extra", Fraction(1, 2))]
    alone = load_config(experiment)
    assert alone.data.mixture([60]) == () and alone.data.train_names == ()
    assert mixed([without(PLAIN, "name", "weight")]).data.train_names == ("arithmetic",)


def test_a_list_loads_back_and_its_paths_are_those_of_its_file(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    text = 'include: "{}"\ndata: {{train: [{{format: prepared, path: rows, name: a}}, {{format: arithmetic}}]}}\n'
    (tmp_path / "mixed.yaml").write_text(text.format(experiment))
    config = load_config(tmp_path / "mixed.yaml")
    assert [source.path for source in config.data.train_sources] == [tmp_path / "rows", None]
    (tmp_path / "dumped.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "dumped.yaml") == config


@pytest.mark.parametrize(("sources", "lines"), [
    ([], ["data.train: needs at least 1 entry, got []"]),
    ([{**PLAIN, "weigth": 2}], ["data.train[0].weigth: unknown key; did you mean data.train[0].weight?"]),
    ([PLAIN, {**EXTRA, "weight": 0}], ["data.train[1].weight: must be > 0, got 0"]),
    ([PLAIN, {"name": "b"}], ["data.train[1].format: missing; gsm8k: rows {question, answer with '#### n'}"]),
    ([PLAIN, {**EXTRA, "name": "a/b"}], ["data.train[1].name: must match"]),
    ([PLAIN, {**EXTRA, "name": "plain"}],
     ["data.train[1].name: plain is the name of data.train[0]; give each a name of its own"]),
    ([PLAIN, without(EXTRA, "weight")],
     ["data.train[1].weight: missing, but data.train[0] has one; give each source a weight, or none"]),
    ([PLAIN, {**EXTRA, "path": "."}], ["data.train[1].path: arithmetic rows are generated"]),
    ([PLAIN, {**EXTRA, "split": "train"}], ["data.train[1].split: train is already the split of data.train[0]"]),
    ([{**PLAIN, "operation": "+"}, {**EXTRA, "split": "train", "operation": "-"}, {**PLAIN, "name": "all"}],
     ["data.train[2].split: train is already the split of data.train[0]"]),
    ([PLAIN, {"format": "prepared", "path": ".", "operation": "+", "weight": 1}],
     ["data.train[1].operation: + selects generated arithmetic rows; remove it from prepared"]),
    ([PLAIN, {"format": "prepared", "path": "/nowhere/x", "weight": 1}], ["data.train[1].path: /nowhere/x does not"]),
])  # fmt: skip
def test_a_mistake_is_named_with_its_entry(mixed, sources, lines) -> None:
    with pytest.raises(ConfigError) as caught:
        mixed(sources)
    _, *problems = str(caught.value).splitlines()
    assert len(problems) == len(lines), problems
    assert all(problem.strip().startswith(line) for problem, line in zip(problems, lines, strict=True)), problems
    assert "--set data.train[" not in str(caught.value), "an entry of a list cannot be set alone"


def test_the_table_says_what_each_source_gives(mixed) -> None:
    config = mixed([PLAIN, EXTRA], "trainer.max_steps=10", EIGHT, "trainer.prompts_per_mini_batch=8")
    table = dict(batch_table(config, 80, config.data.mixture([60, 20])))
    assert table["source plain"] == "60 rows, 75.0% of the prompts: 6 of 8 per step, 1 epochs in the run"
    assert table["source extra"] == "20 rows, 25.0% of the prompts: 2 of 8 per step, 1 epochs in the run"


def test_no_source_gives_a_draw_the_same_prompt_twice(mixed) -> None:
    """Of 8 prompts, 6 come from plain; where a draw begins between two of its turns, 7."""
    config = mixed([PLAIN, EXTRA], EIGHT, "trainer.prompts_per_mini_batch=8")
    check_distinct_prompts(config, 7, 3)
    message = r"of 8 prompts up to 7 are drawn from data.train\[0\] \(plain\), which has 6 rows.*; largest legal: 7"
    with pytest.raises(ConfigError, match=f"rollout.prompts_per_step: {message}"):
        check_distinct_prompts(config, 6, 3)
    alone = mixed([PLAIN], EIGHT, "trainer.prompts_per_mini_batch=8")
    check_distinct_prompts(alone, 8)
    with pytest.raises(ConfigError, match="of 8 prompts up to 8 .* largest legal: 7"):
        check_distinct_prompts(alone, 7)


def test_another_list_is_refused_in_one_line(mixed, experiment, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(mixed([PLAIN, EXTRA])))
    check_same_experiment(mixed([PLAIN, EXTRA]), saved)
    for other, line in (
        (mixed([PLAIN, {**EXTRA, "weight": 2}]), "data.train[1].weight: 2.0, the run has 1.0"),
        (mixed([PLAIN]), "data.train: 'plain', the run has 'plain, extra'"),
        (mixed([EXTRA, PLAIN]), "data.train: 'extra, plain', the run has 'plain, extra'"),
        (load_config(experiment), "data.train: 'one source', the run has 'plain, extra'"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_same_experiment(other, saved)
        assert str(caught.value).splitlines()[1:-1] == [f"  {line}"]


def test_rows_are_numbered_through_and_know_their_source(mixed) -> None:
    def rows(number: int) -> list[Prompt]:
        ids = np.ones(1, np.int32)
        return [Prompt(index=n, ids=ids, text=str(n), answer="1", data_source="math") for n in range(number)]

    joined = training_prompts([rows(2), rows(3)], ("a", "b"))
    assert [(row.index, row.text, row.source) for row in joined] == [
        (0, "0", "a"), (1, "1", "a"), (2, "0", "b"), (3, "1", "b"), (4, "2", "b"),
    ]  # fmt: skip
    assert [(row.index, row.source) for row in training_prompts([rows(2)], ())] == [(0, ""), (1, "")]


@pytest.mark.parametrize(("overrides", "line"), [
    (["data.curriculum.min_pass_rate=0.6", "data.curriculum.max_pass_rate=0.5"],
     "data.curriculum.min_pass_rate: 0.6 is not below max_pass_rate 0.5, so every row would rest"),
    (["data.curriculum={}", "reward.functions=[overlong]"],
     "data.curriculum: none of reward.functions (overlong) says whether an answer is right"),
    (["data.curriculum={}", "rollout.num_generations=1", "algorithm.advantage.estimator=remax"],
     "data.curriculum: with rollout.num_generations 1 every row counts as always or never solved"),
    (["data.curriculum.max_rest_epochs=0"], "data.curriculum.max_rest_epochs: must be >= 1, got 0"),
])  # fmt: skip
def test_a_curriculum_that_cannot_tell_rows_apart_is_refused(experiment, overrides, line) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(experiment, overrides)
    assert line in str(caught.value)


def test_a_curriculum_needs_rows_whose_turn_comes_twice(mixed, experiment) -> None:
    words = ("data.curriculum={}", "trainer.max_steps=10", EIGHT, "trainer.prompts_per_mini_batch=8")
    config = load_config(experiment, words)
    check_curriculum(config, 79)
    with pytest.raises(ConfigError, match="the run draws 80 prompts from 80 rows, none of them twice"):
        check_curriculum(config, 80)
    check_curriculum(mixed([PLAIN, EXTRA], *words), 60, 19)  # 20 prompts from its 19 rows
    with pytest.raises(ConfigError, match="80 prompts from 80 rows"):
        check_curriculum(mixed([PLAIN, EXTRA], *words), 60, 20)
    refill = ("algorithm.filter_groups.metric=reward", "algorithm.filter_groups.refill=true")
    check_curriculum(load_config(experiment, [*words, *refill]), 80)
    check_curriculum(load_config(experiment, words[1:]), 80)


def test_notes_about_the_curriculum_and_about_trained_problems(experiment, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def score(*args):\n    return 1\n")
    config = load_config(experiment, ["data.curriculum={}", f"reward.functions=[{tmp_path}/own.py:score]"])
    assert any("an answer is right if your function's `acc` or `verdict` says so" in line for line in notes(config))
    assert not any("curriculum" in line for line in notes(load_config(experiment)))
