"""Evaluations from scripted answers, and during training: several sets, the change since the first, the log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mindgspo.config.data import CHANGE, REWARD_CHANGE
from mindgspo.errors import ConfigError
from mindgspo.evaluation.estimates import change_estimate
from mindgspo.evaluation.evaluator import check_best_metric
from mindgspo.metrics import RunLog, SilentLog
from mindgspo.rollout.protocol import Purpose, SamplingFilter
from mindgspo.trainer.validation import Baseline, Best, Progress

SETS = (
    "data.eval=null", "data.eval.a={format: arithmetic, split: dev}", "data.eval.b={format: arithmetic, split: test}",
)  # fmt: skip


@pytest.fixture
def log(tmp_path: Path):
    with RunLog(tmp_path, progress=False, console=Console(quiet=True)) as opened:
        yield opened


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sets_with_one_data_source_in_common_are_kept_apart(make_trainer, answer, prompts, evaluate) -> None:
    """Set a: prompts 0, 2 (arithmetic) right; set b: 4 (arithmetic) wrong, 5 (gsm8k) right, 7 (gsm8k) wrong."""
    trainer = make_trainer(lambda prompt, sample: answer("7" if prompt.index in (4, 7) else prompt.answer), *SETS)
    sets = {"a": [prompts[0], prompts[2]], "b": [prompts[4], prompts[5], prompts[7]]}
    evaluation = evaluate(trainer, sets, step=0)
    greedy = {name: value for name, value in evaluation.metrics.items() if name.endswith("acc/mean@1")}
    assert greedy == pytest.approx(
        {
            "val-core/acc/mean@1": 3 / 5, "val-core/a/acc/mean@1": 1, "val-core/b/acc/mean@1": 1 / 3,
            "val-core/b/arithmetic/acc/mean@1": 0, "val-core/b/openai/gsm8k/acc/mean@1": 1 / 2,
        }
    )  # fmt: skip
    assert evaluation.solved == (True, True, False, True, False)
    low, high = (evaluation.metrics[f"val-core/a/acc/mean@1/{end}"] for end in ("low", "high"))
    assert 0.3 < low < high == 1, "2 of 2 are not certainly all"


def test_the_reward_is_the_weighted_sum_that_training_uses(make_trainer, answer, prompts, evaluate) -> None:
    """Twice the verdict (1, 0, 1), three times the form, which nobody keeps: 4/3 where the accuracy is 2/3."""
    settings = ("reward.functions=[auto, format]", "reward.weights=[2.0, 3.0]")
    trainer = make_trainer(lambda prompt, sample: answer("7" if prompt.index == 4 else prompt.answer), *settings)
    evaluation = evaluate(trainer, {"eval": [prompts[0], prompts[4], prompts[2]]}, step=0)
    assert evaluation.rewards == (2.0, 0.0, 2.0)
    assert evaluation.metrics["val-core/reward/mean@1"] == pytest.approx(4 / 3)
    assert evaluation.metrics["val-core/acc/mean@1"] == pytest.approx(2 / 3)


@pytest.fixture
def asked(make_trainer, answer):
    """asked(*overrides): a trainer, and the sampling settings that its engine is asked with."""

    def make(*overrides: str):
        trainer, settings_seen = make_trainer(lambda prompt, sample: answer(prompt.answer), *overrides), []
        generate = trainer.engine.generate

        def remembered(prompts, settings, **kept):
            settings_seen.append(settings)
            return generate(prompts, settings, **kept)

        trainer.engine.generate = remembered
        return trainer, settings_seen

    return make


def test_samples_of_an_evaluation_depend_on_nothing_but_seed_and_step(asked, prompts, evaluate) -> None:
    trainer, seen = asked("eval.num_samples=2")
    evaluate(trainer, {"eval": prompts}, step=3)
    greedy, sampled = seen
    assert (greedy.temperature, greedy.num_samples) == (0.0, 1)
    assert (sampled.temperature, sampled.num_samples, sampled.sampling_filter) == (1.0, 2, SamplingFilter(0, 1.0))
    assert (sampled.stream.purpose, sampled.stream.step, sampled.stream.seed) == (Purpose.EVALUATION, 3, 1)


def test_one_drawn_answer_per_problem(asked, prompts, log: RunLog, tmp_path, evaluate, validate) -> None:
    trainer, seen = asked(
        "eval={do_sample: true, temperature: 0.7, top_p: 0.7, logged_problems: 1}", "rollout.top_k=20"
    )
    evaluation = evaluate(trainer, {"eval": prompts}, step=3)
    (drawn,) = seen
    assert (drawn.temperature, drawn.num_samples, drawn.stream.purpose) == (0.7, 1, Purpose.EVALUATION)
    assert drawn.sampling_filter == SamplingFilter(20, 0.7), "top_k is rollout's"
    assert evaluation.accuracy == 1 == evaluation.metrics["val-core/arithmetic/acc/mean@1"]
    validate(trainer, log, Progress())
    assert [line["sample"] for line in lines(tmp_path / "validation.jsonl")] == [0]


def test_what_an_evaluation_leaves_in_the_log(make_trainer, answer, log: RunLog, tmp_path: Path, validate) -> None:
    """At step 0 only prompt 0 is right, at step 4 all but prompt 0."""
    right = {0}
    settings = ("eval.logged_problems=2", "eval.num_samples=2")
    trainer = make_trainer(lambda prompt, sample: answer(prompt.answer if prompt.index in right else "7"), *settings)
    progress = Progress()
    validate(trainer, log, progress)
    assert (progress.accuracy_before, progress.best) == (1 / 8, Best(step=0, value=1 / 8))
    right.clear()
    right.update(range(1, 8))
    progress.step = 4
    validate(trainer, log, progress)
    assert (progress.accuracy, progress.best) == (7 / 8, Best(step=4, value=7 / 8))
    first, second = lines(tmp_path / "metrics.jsonl")
    assert "val-core/acc/change" not in first
    expected = change_estimate([1] + [0] * 7, [0] + [1] * 7)
    found = [second[f"val-core/acc/change{end}"] for end in ("", "/low", "/high")]
    assert found == [expected.value, expected.low, expected.high]
    told = lines(tmp_path / "validation.jsonl")
    of_step_0 = [(0, "greedy"), (1, "greedy"), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(line["step"], line["prompt_index"], line["sample"]) for line in told[:6]] == [
        (0, *one) for one in of_step_0
    ]
    assert [line["verdict"] for line in told if line["sample"] == "greedy"] == ["correct", "wrong", "wrong", "correct"]
    assert told[0]["set"] == "eval" and told[0]["response"].startswith("#### ") and told[0]["extracted"] == "10"


def test_the_best_goes_by_the_metric_of_choice(make_trainer, answer, prompts, log: RunLog, validate) -> None:
    settings = ("eval.num_samples=2", "eval.pass_at_k=[1, 2]", "eval.best_metric=val-core/arithmetic/acc/pass@2")
    trainer = make_trainer(lambda prompt, sample: answer(prompt.answer if sample == 1 else "7"), *settings)
    progress = Progress()
    validate(trainer, log, progress)
    assert (progress.accuracy, progress.best) == (0, Best(step=0, value=1.0))


def test_a_run_without_a_gain_is_stopped_and_says_why(make_trainer, answer, log: RunLog, validate) -> None:
    """Of 8 problems 3, 4, 4, 3 are solved, at steps 0 to 3."""
    right, settings = set(range(3)), ("eval.every=1", "eval.stop={patience: 2, min_delta: 0.05}")
    trainer = make_trainer(lambda prompt, sample: answer(prompt.answer if prompt.index in right else "7"), *settings)
    off = make_trainer(lambda prompt, sample: answer("7")).validation
    progress, found = Progress(), []
    for solved in (3, 4, 4, 3):
        right.clear()
        right.update(range(solved))
        validate(trainer, log, progress)
        trainer.validation.look_for_stop(log, progress)
        found.append(progress.stopped)
        progress.step += 1
    assert found == ["", "", "", "val-core/acc/mean@1 has not risen by 0.05 in 2 evaluations since 50.0% at step 1 "
                                 "(eval.stop.patience)"]  # fmt: skip
    progress.stopped = ""
    off.look_for_stop(log, progress)
    assert progress.stopped == "", "by default nothing stops a run"


def test_a_run_that_lost_what_it_had_is_stopped(make_trainer, answer, log: RunLog, validate) -> None:
    """All 8 problems are solved, then none."""
    right, progress, settings = {"all"}, Progress(), ("eval.every=1", "eval.stop.on_collapse=true")
    trainer = make_trainer(lambda prompt, sample: answer(prompt.answer if right else "7"), *settings)
    for stopped in (False, True):
        validate(trainer, log, progress)
        trainer.validation.look_for_stop(log, progress)
        assert bool(progress.stopped) is stopped
        right.clear()
        progress.step += 1
    assert progress.stopped.startswith("the policy has collapsed: held-out accuracy went from 100.0% to 0.0% (-100.0")
    assert progress.stopped.endswith("(eval.stop.on_collapse)")


def test_ranks_stop_where_the_first_one_does(over_ranks, make_trainer, answer, log: RunLog) -> None:
    """The others have no log, and what they counted is not asked."""
    validation = make_trainer(lambda *_: answer("7"), "eval.every=1", "eval.stop={patience: 2}").validation

    def work(rank: int) -> str:
        waited = 2 if rank == 0 else 0
        progress = Progress(step=9, gain=Best(step=5, value=0.5), evaluations_without_gain=waited)
        validation.look_for_stop(log if rank == 0 else SilentLog(), progress)
        return progress.stopped

    reasons = over_ranks(3, work)
    assert reasons[0] == "val-core/acc/mean@1 has not risen in 2 evaluations since 50.0% at step 5 (eval.stop.patience)"
    assert reasons == reasons[:1] * 3


def test_an_early_stop_needs_evaluations(load) -> None:
    with pytest.raises(ConfigError, match=r"eval.stop: there are no evaluations .*; set eval.every"):
        load("eval.stop.patience=2", "eval.every=null")


def test_a_best_metric_of_no_set_is_refused(load, prompts) -> None:
    config = load("eval.best_metric=val-core/aime/acc/mean@1")
    with pytest.raises(ConfigError, match="is not measured: data.eval holds arithmetic, openai/gsm8k"):
        check_best_metric(config.eval, {"eval": prompts}, names_sets=False)
    for settings in ((), ("eval.best_metric=val-core/openai/gsm8k/acc/mean@1",)):
        check_best_metric(load(*settings).eval, {"eval": prompts}, names_sets=False)


@pytest.mark.parametrize(("overrides", "words"), [
    (["eval.best_metric=accuracy"], "accuracy is no metric of an evaluation; e.g. val-core/acc/mean@1"),
    (["eval.best_metric=val-core/x/acc/pass@4"], "acc/pass@4 is not computed with eval.num_samples 1"),
    (["eval.num_samples=4", "eval.best_metric=val-core/x/acc/maj@2"],
     r"eval.pass_at_k \[1\]; nearest: val-core/x/acc/maj@4"),
    ([*SETS, "eval.best_metric=val-core/c/acc/mean@1"], "there is no set c under data.eval; there are a, b"),
])  # fmt: skip
def test_a_best_metric_that_cannot_be_measured_is_refused(load, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(*overrides)


@pytest.mark.parametrize("number", [1, 8, 13])
def test_the_baseline_survives_a_stop(number: int) -> None:
    first, solved = Baseline(), np.arange(number) % 3 == 0
    rewards = (np.arange(number) / 7).tolist()
    assert first.state() == {} and first.changes(solved, rewards) == {}
    second = Baseline()
    second.load_state(json.loads(json.dumps(first.state())))
    after = np.arange(number) % 2 == 0
    higher = [one + 0.5 for one in rewards]
    change = second.changes(after, higher)
    assert change == first.changes(after, higher)
    assert change[CHANGE] == change_estimate(solved, after) and change[REWARD_CHANGE].value == pytest.approx(0.5)


@pytest.mark.parametrize(
    "change", [{"problems": 10**12}, {"problems": -1}, {"solved": "zz"}, {"rewards": ["a"]}], ids=str
)
def test_a_forged_baseline_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Baseline().load_state({"problems": 3, "solved": "c0", "rewards": [1.0, 0.0, 0.5]} | change)


def test_other_problems_or_an_empty_checkpoint_are_another_baseline() -> None:
    baseline = Baseline()
    assert baseline.changes([True, False], [1, 0]) == {}
    assert baseline.changes([True, False, True], []) == {}
    assert baseline.changes([False, True, True], [0, 1, 1]) == {
        CHANGE: change_estimate([True, False, True], [False, True, True])
    }, "the first could not be scored"
    baseline = Baseline()
    baseline.changes([True, False], [1, 0])
    baseline.load_state({})
    assert baseline.changes([True, True], [1, 1]) == {}


def test_accuracy_by_source_and_over_all(make_trainer, answer, prompts, tokenizer, evaluate) -> None:
    """Prompts 0, 2, 4, 6 are arithmetic: two right, one wrong, one without an answer. The others are all right."""
    said = {2: answer("999"), 6: tokenizer.encode("Tom")}
    trainer = make_trainer(lambda prompt, sample: said.get(prompt.index, answer(prompt.answer)))
    evaluation = evaluate(trainer, {"eval": prompts}, step=3)
    assert evaluation.accuracy == 6 / 8
    assert trainer.validation.evaluator.greedy_figures(prompts, weight_version=0) == (6 / 8, 6 / 8)
    metrics = evaluation.metrics
    assert (metrics["val-core/arithmetic/acc/mean@1"], metrics["val-core/openai/gsm8k/acc/mean@1"]) == (2 / 4, 1)
    assert metrics["val-aux/arithmetic/no_answer_ratio"] == 1 / 4
    assert not any("pass@" in name for name in metrics), "num_samples is 1: greedy only"
    assert [group.prompt.index for group in evaluation.sets[0].single] == list(range(8))
    assert {response.temperature for group in evaluation.sets[0].single for response in group.responses} == {0.0}


def test_a_response_that_was_cut_counts_as_cut(make_trainer, prompts, tokenizer, evaluate) -> None:
    trainer = make_trainer(lambda prompt, sample: tokenizer.encode("pens " * 30))
    metrics = evaluate(trainer, {"eval": prompts}, step=0).metrics
    assert metrics["val-aux/arithmetic/response_length/clip_ratio"] == 1
    assert metrics["val-aux/arithmetic/response_length/mean"] == 16


def test_pass_at_k_of_sampled_answers(make_trainer, answer, prompts, evaluate) -> None:
    """Of 4 samples one is right for arithmetic, none for gsm8k; the greedy answer (sample 0) is right in neither."""

    def script(prompt, sample):
        return answer(prompt.answer if sample == 1 and prompt.data_source == "arithmetic" else "999")

    trainer = make_trainer(script, "eval.num_samples=4", "eval.pass_at_k=[1, 2, 4]")
    evaluation = evaluate(trainer, {"eval": prompts}, step=0)
    assert evaluation.accuracy == 0
    found = {name.removeprefix("val-core/arithmetic/acc/"): value for name, value in evaluation.metrics.items()}
    expected = {"mean@1": 0, "mean@4": 0.25, "pass@1": 0.25, "pass@2": 0.5, "pass@4": 1.0, "maj@2": 0.25, "maj@4": 0}
    figures = re.compile(r"\w+@\d")
    assert {name: value for name, value in found.items() if figures.fullmatch(name)} == pytest.approx(expected)
    assert evaluation.metrics["val-core/openai/gsm8k/acc/pass@4"] == 0


def test_after_a_resume_the_log_knows_what_was_before(tmp_path: Path) -> None:
    def opened() -> RunLog:
        return RunLog(tmp_path, progress=False, console=Console(quiet=True))

    with opened() as log:
        for step in range(4):
            log.log_metrics(step, {"a": step / 2})
    (tmp_path / "validation.jsonl").write_text('{"step": 2}\n{"step": 3}\n')
    with opened() as log:
        log.truncate_after(2)
        log.log_metrics(3, {"a": 7.0})
        series = log.history.series("a")
        assert (series.steps, series.values) == ((0, 1, 2, 3), (0.0, 0.5, 1.0, 7.0))
    assert lines(tmp_path / "validation.jsonl") == [{"step": 2}]
