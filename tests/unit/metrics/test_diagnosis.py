"""Each rule of the diagnosis fires on the run it is meant for, and only there."""

from __future__ import annotations

import math
import re

import pytest

from mindgspo.config.data import CHANGE, OVERALL
from mindgspo.config.messages import known_keys
from mindgspo.metrics import diagnosis, unknown_names, verdict_lines
from mindgspo.metrics.diagnosis import ALARM, GOOD, WARN, FindingLevel, RunFinding, Threshold, thresholds
from mindgspo.metrics.pages import chinese
from mindgspo.metrics.run_folder import HELD_OUT_ACCURACY, RunHistory, RunRecord, accuracies, best_evaluation


def diagnose(run: RunHistory | RunRecord) -> list[RunFinding]:
    """The findings; each is also said in Chinese, with nothing but names and settings of the English left."""
    findings = diagnosis.diagnose(run)
    for finding in findings:
        for text in filter(None, (finding.text, finding.advice)):
            said = chinese(text)
            assert said is not None, text
            assert not re.search(r"[a-z]{2,} [a-z]{2,}", said.replace("mindgspo plan", "")), f"{text}: {said}"
    return findings


def run_with(
    summary: dict[str, object] | None = None, algorithm: str | None = None, **series: list[float]
) -> RunRecord:
    """A record whose metrics are the given lists, "__" in a name standing for "/"."""
    length = max((len(values) for values in series.values()), default=0)
    rows = [
        {"step": i + 1} | {name.replace("__", "/"): values[i] for name, values in series.items() if i < len(values)}
        for i in range(length)
    ]
    return RunRecord(
        name="run", metrics=tuple(rows), summary=summary or {},
        config_text=f"algorithm:\n  name: {algorithm}\n" if algorithm else "",
    )  # fmt: skip


ROWS = [(group, row) for group, rows in thresholds().items() for row in rows]


@pytest.mark.parametrize(("group", "row"), ROWS, ids=[row.keys[0] for _, row in ROWS])
def test_a_row_of_the_table(group: str, row: Threshold) -> None:
    """Healthy at its limits, a warning and an alarm beyond them, each with its number."""
    sign, limits = -1 if row.is_low_bad else 1, [row.warn, *([row.alarm] if row.alarm < math.inf else [])]
    for limit, level, worse in zip(limits, (GOOD, WARN), (WARN, ALARM), strict=False):
        for value, expected in ((limit, level), (limit + sign * 1e-3, worse)):
            if group == "evaluation":
                name = row.keys[0].replace("<part>", "math").replace("val-aux/math/", "").replace("/", "__")
                findings = diagnose(evaluated(part="math", **{name: value}))
            else:
                findings = diagnose(run_with(**{row.keys[-1].replace("/", "__"): [value] * 5}))
            assert [one.level for one in findings] == ([] if expected is GOOD and row.is_silent else [expected])
            assert all(bool(one.advice) == (expected is not GOOD) for one in findings)


@pytest.mark.parametrize(("name", "value", "level", "words"), [
    ("reward__zero_signal_group_ratio", 0.95, ALARM, "95.0% of the groups had equal rewards"),
    ("reward__zero_signal_group_ratio", 0.5, GOOD, "equal rewards"),
    ("reward__error_ratio", 0.03, WARN, "3.0% of the responses got no reward from a function that failed"),
    ("actor__pg_clipfrac_seq", 0.0, WARN, "clipped ratio"), ("actor__pg_clipfrac_seq", 0.01, WARN, "clipped ratio"),
    ("actor__pg_clipfrac_seq", 0.3, GOOD, "clipped ratio"), ("actor__pg_clipfrac", 0.7, WARN, "clipped ratio"),
    ("critic__kl", 3.0, ALARM, "3 nat per token"), ("actor__kl", -0.001, GOOD, "-0.001 nat per token"),
    ("actor__grad_share_length_decile__10", 0.45, WARN, "had 45% of the gradient"),
    ("actor__first_ratio_error_max", 1e-6, GOOD, "differed from 1"),
    ("actor__first_ratio_error_max", 0.0, GOOD, "was exactly 1"),
    ("actor__first_ratio_error_max", 0.3, ALARM, "differed from 1"),
])  # fmt: skip
def test_a_steady_value(name: str, value: float, level: FindingLevel, words: str) -> None:
    (finding,) = diagnose(run_with(**{name: [value] * 5}))
    assert finding.level is level and words in finding.text
    assert bool(finding.advice) == (level is not GOOD)


@pytest.mark.parametrize(("entropies", "text"), [
    ([1.0] * 6, ""), ([1.0, 1.0, 1.0, 0.06, 0.06, 0.06], ""),
    ([1.0, 1.0, 1.0, 0.04, 0.04, 0.04], "entropy went from 1 to 0.04 nat per token"),
])  # fmt: skip
def test_a_collapse_is_a_fall_of_what_there_was(entropies: list[float], text: str) -> None:
    assert diagnosis.collapse(run_with(actor__entropy=entropies)) == text
    assert diagnosis.collapse(run_with(response_length__clip_ratio=[0.9] * 6)) == "", "an alarm of another kind"


@pytest.mark.parametrize(("k3", "gap", "level"), [
    (1e-9, 1e-6, GOOD), (0.002, 0.004, GOOD), (0.02, 0.004, WARN), (0.002, 0.03, WARN),
    (0.5, 0.03, ALARM), (0.0, 0.0, GOOD),
])  # fmt: skip
def test_a_sampler_that_disagrees_with_the_trainer(k3: float, gap: float, level: FindingLevel) -> None:
    series = {"rollout_corr__k3_kl": [k3] * 5, "training__rollout_probs_diff_mean": [gap] * 5}
    (finding,) = diagnose(run_with(**series))
    words = f"{k3:.2g} nat per token" if k3 else "sampler and trainer agree exactly on the same tokens"
    assert finding.level is level and words in finding.text
    assert bool(finding.advice) == (level is not GOOD)


@pytest.mark.parametrize(("algorithm", "series", "level", "words"), [
    ("gspo", {"actor__pg_clipfrac_seq": 0.01}, WARN, "1.0% of the responses"),
    ("grpo", {"actor__pg_clipfrac_seq": 0.01, "actor__pg_clipfrac": 0.0012}, GOOD, "0.12% of the tokens"),
    ("dapo", {"actor__pg_clipfrac_seq": 0.3, "actor__pg_clipfrac": 0.2}, WARN, "usual for dapo: below 5%"),
    ("gspo", {"actor__pg_clipfrac_seq": 0.0, "actor__updates": 1}, GOOD, "nothing can be clipped"),
    ("gspo", {"actor__pg_clipfrac_seq": 0.0, "actor__updates": 4}, WARN, "0.0% of the responses"),
    ("unheard_of", {"actor__pg_clipfrac_seq": 0.3}, GOOD, "healthy for gspo"),
])  # fmt: skip
def test_clipping_is_judged_by_the_algorithm(
    algorithm: str, series: dict[str, float], level: FindingLevel, words: str
) -> None:
    values = {name: [value] * 5 for name, value in series.items()}
    (finding,) = diagnose(run_with(algorithm=algorithm, **values))
    assert finding.level is level
    assert words in finding.text


@pytest.mark.parametrize(("seconds", "says"), [(3.1, True), (2.9, False)])
def test_an_environment_is_slow_beside_the_generation(seconds: float, says: bool) -> None:
    findings = diagnose(run_with(env__seconds__mean=[seconds] * 5, timing_s__gen=[10.0] * 5))
    assert [one.text for one in findings] == (
        ["an episode spends 3.1 s in its environment, of 10 s of generation"] if says else []
    )
    assert diagnose(run_with(env__seconds__mean=[seconds] * 5)) == []


def test_settings_that_advice_on_episodes_names_exist() -> None:
    advice = " ".join(row.advice for row in thresholds()["episodes"])
    advice += " ".join(one.advice for one in diagnose(run_with(env__seconds__mean=[1.0], timing_s__gen=[1.0])))
    named = set(re.findall(r"(?:environment|rollout)\.[a-z_.]*[a-z_]", advice))
    assert named <= {path for path, _ in known_keys()} and len(named) >= 8


def test_only_the_last_steps_count_growing_memory_is_told_and_the_gravest_comes_first() -> None:
    ratios = {"actor__pg_clipfrac_seq": 0.3, "reward__no_answer_ratio": 0.9, "reward__invalid_ratio": 0.01}
    for series, levels in (
        ({"response_length__clip_ratio": [1.0] * 50 + [0.0] * 20}, [GOOD]),
        ({"perf__cpu_memory_used_gb": [2.0 + 0.1 * step for step in range(20)]}, [WARN]),
        ({"perf__cpu_memory_used_gb": [1.0] * 5 + [3.0] * 15}, [GOOD]),
        ({name: [ratio] * 3 for name, ratio in ratios.items()}, [ALARM, WARN, GOOD]), ({"training__epoch": [1.0]}, []),
    ):  # fmt: skip
        assert [finding.level for finding in diagnose(run_with(**series))] == levels


@pytest.mark.parametrize(("last", "level"), [(0.9, GOOD), (0.1, WARN)])
def test_trends(last: float, level: FindingLevel) -> None:
    for run in (
        run_with(critic__score__mean=[0.5] * 6 + [last] * 3), run_with(actor__entropy=[2.0] * 6 + [last - 0.05] * 3),
        run_with(summary={"accuracy_before": 0.5, "accuracy_after": last}, x=[1.0]),
    ):  # fmt: skip
        assert [finding.level for finding in diagnose(run)] == [level]


def test_the_span_of_the_accuracy() -> None:
    values = {"val-core__math__acc__mean@1": [0.2, 0.4, 0.6]}
    assert HELD_OUT_ACCURACY.span(run_with(**values)) == (0.2, 0.6)
    assert HELD_OUT_ACCURACY.span(run_with(summary={"accuracy_after": 0.7}, **values)) == (0.2, 0.7)
    assert HELD_OUT_ACCURACY.span(run_with(x=[1.0])) == (None, None)


CONFIG = "rollout:\n  max_new_tokens: 256\nalgorithm:\n  name: gspo\n"


def evaluated(config: str = CONFIG, part: str = "gsm8k", accuracy: float = 0.5, **aux: float) -> RunHistory:
    """A run with one evaluation of one part. aux: names below val-aux/<part>, "__" standing for "/"."""
    run = RunHistory(config)
    named = {f"val-aux/{part}/{name.replace('__', '/')}": value for name, value in aux.items()}
    run.add(0, {OVERALL: accuracy, f"val-core/{part}/acc/mean@1": accuracy, **named})
    return run


def moved(change: float, low: float, high: float, accuracy: float = 0.5) -> RunHistory:
    run = evaluated(accuracy=accuracy - change)
    run.add(20, {OVERALL: accuracy, CHANGE: change, f"{CHANGE}/low": low, f"{CHANGE}/high": high})
    return run


@pytest.mark.parametrize(("change", "level", "words"), [
    ((0.004, -0.019, 0.027), WARN, "+0.4 points, 95 % interval -1.9 .. +2.7): no change can be claimed"),
    ((0.1, 0.04, 0.16), GOOD, "went from 40.0% to 50.0% (+10.0 points, 95 % interval +4.0 .. +16.0)"),
    ((-0.1, -0.16, -0.04), ALARM, "went from 60.0% to 50.0% (-10.0 points"),
    ((0.0, 0.0, 0.0), WARN, "no change can be claimed"),
])  # fmt: skip
def test_a_change_is_judged_by_its_interval(
    change: tuple[float, float, float], level: FindingLevel, words: str
) -> None:
    (finding,) = diagnose(moved(*change))
    assert finding.level is level and words in finding.text
    if level is WARN and change[0]:
        assert "show changes of 2.3 points or more" in finding.advice


@pytest.mark.parametrize(("aux", "level", "words"), [
    ({"response_length__clip_ratio": 0.62}, ALARM, "62% of the evaluation's answers to gsm8k were cut at 256 t"),
    ({"no_answer_ratio": 0.9}, ALARM, "no answer was recognised in 90%"),
    ({"no_answer_ratio": 0.3}, WARN, "no answer was recognised in 30%"),
    ({"failed_ratio": 0.01}, WARN, "1.0% of the evaluation's answers to gsm8k could not be scored"),
    ({"num_problems": 30, "accuracy": 0.0}, WARN, "none of the 30 problems of gsm8k is solved"),
    ({"num_problems": 30, "accuracy": 1.0}, WARN, "all 30 problems of gsm8k are solved"),
])  # fmt: skip
def test_an_evaluation_that_needs_attention(aux: dict[str, float], level: FindingLevel, words: str) -> None:
    (finding,) = diagnose(evaluated(**aux))
    assert finding.level is level and words in finding.text and finding.advice


@pytest.mark.parametrize("aux", [
    {"response_length__clip_ratio": 0.1}, {"no_answer_ratio": 0.2},
    {"no_answer_ratio": 0.05, "response_length__clip_ratio": 0.05}, {"failed_ratio": 0.0},
    {"num_problems": 7, "accuracy": 0.0}, {"num_problems": 30, "accuracy": 1 / 30},
])  # fmt: skip
def test_an_evaluation_that_is_in_order_says_nothing(aux: dict[str, float]) -> None:
    assert diagnose(evaluated(**aux)) == []


def test_cut_answers_are_not_blamed_on_their_form_and_the_worst_set_is_named() -> None:
    # 80 % without an answer, 70 % cut: 10 % were whole, which is usual.
    findings = diagnose(evaluated(no_answer_ratio=0.8, response_length__clip_ratio=0.7))
    assert ["were cut" in finding.text for finding in findings] == [True]
    run = evaluated(part="easy", response_length__clip_ratio=0.2)
    run.add(0, {"val-core/hard/acc/mean@1": 0.2, "val-aux/hard/response_length/clip_ratio": 0.6})
    (finding,) = diagnose(run)
    assert "60% of the evaluation's answers to hard" in finding.text
    assert list(accuracies(run)) == ["easy", "hard"], "all problems together are no set"
    run = RunHistory(CONFIG)
    run.add(1, {"response_length/clip_ratio": 0.62})
    (finding,) = diagnose(run)
    assert finding.text == "62.0% of the responses were cut at 256 tokens"


@pytest.mark.parametrize(("gain", "says"), [(-0.02, True), (0.02, False)])
def test_responses_that_grow_without_being_better(gain: float, says: bool) -> None:
    run = moved(0.03, gain, 0.08)
    for step in range(1, 13):
        run.add(step, {"response_length/mean": 100.0 if step < 9 else 151.0})
    texts = [finding.text for finding in diagnose(run) if "grew" in finding.text]
    assert texts == (["responses grew from 100 to 151 tokens, and the accuracy did not"] if says else [])


@pytest.mark.parametrize(
    ("solved", "words"),
    [(0.95, "95% of the responses are correct: choose harder"), (0.02, "easier"), (0.5, "sometimes")],
)
def test_groups_without_signal_are_explained(solved: float, words: str) -> None:
    run = RunHistory()
    run.add(1, {"reward/zero_signal_group_ratio": 0.91, "reward/correct_ratio": solved})
    (finding,) = diagnose(run)
    assert "91.0% of the groups had equal rewards" in finding.text and words in finding.advice


# ----- the verdict


def test_verdicts_of_one_line_or_none() -> None:
    run = moved(0.1, 0.04, 0.16)
    run.add(20, {f"{OVERALL}/low": 0.45, f"{OVERALL}/high": 0.55})
    assert verdict_lines(run, step=20, best="best 50.0% here") == [
        "evaluation at step 20: accuracy 50.0% (95 % interval 45.0% .. 55.0%), +10.0 points since the first "
        "(95 % interval +4.0 .. +16.0); best 50.0% here; nothing needs attention"
    ]
    (line,) = verdict_lines(moved(0.004, -0.019, 0.027), step=20, best="best")
    assert "-1.9 .. +2.7: no change can be claimed" in line
    run = RunHistory()
    run.add(1, {"reward/zero_signal_group_ratio": 1.0})
    assert verdict_lines(run, step=1, best="") == []


def test_only_the_gravest_findings_are_printed() -> None:
    run = evaluated(
        response_length__clip_ratio=0.62, no_answer_ratio=1.0, failed_ratio=0.01, num_problems=9, accuracy=0
    )
    run.add(1, {"reward/zero_signal_group_ratio": 0.95})
    headline, *lines = verdict_lines(run, step=0, best="best 0.0% here")
    assert headline == "evaluation at step 0: accuracy 0.0%; best 0.0% here"
    assert [line.split(":")[0].strip() for line in lines[:-1]] == ["alarm", "alarm", "warn"]
    assert "62% of the evaluation's answers" in lines[1] and "Raise rollout.max_new_tokens." in lines[1]
    assert lines[-1] == "  and 2 more, in the report"


def test_names_and_settings_that_the_rules_speak_of_exist() -> None:
    run = evaluated(response_length__clip_ratio=0.62, no_answer_ratio=1.0, failed_ratio=0.01, num_problems=9)
    run.add(
        1, {CHANGE: 0.0, f"{CHANGE}/low": 0.0, f"{CHANGE}/high": 0.0, f"{OVERALL}/low": 0.0, f"{OVERALL}/high": 1.0}
    )
    assert unknown_names(run.names()) == []
    advice = " ".join(finding.advice for finding in diagnose(run)) + " reward.overlong reward.length data.eval"
    named = set(re.findall(r"(?:reward|rollout|data)\.[a-z_.]*[a-z_]", advice))
    assert named <= {path for path, _ in known_keys()} and len(named) >= 4


# ----- the best


@pytest.mark.parametrize(("values", "expected"), [
    ([(0, 0.5), (2, 0.75), (4, 0.75)], (2, 0.75)), ([(0, 0.9), (0, 0.5), (2, 0.75)], (2, 0.75)),
    ([(0, 0.5), (2, 0.25)], (0, 0.5)),
], ids=["first of equals", "a warm-up's second counts", "before training"])  # fmt: skip
def test_the_best_evaluation(values: list[tuple[int, float]], expected: tuple[int, float]) -> None:
    run = RunHistory("eval:\n  best_metric: val-core/aime/acc/mean@8\n")
    for step, value in values:
        run.add(step, {"val-core/aime/acc/mean@8": value, OVERALL: 1 - value})
    best = best_evaluation(run)
    assert (best.step, best.value, best.is_only) == (*expected, False)
    assert best_evaluation(RunHistory("not: [yaml")) is None
