"""Each rule about an evaluation fires on the run it is meant for; the verdict says it in a few lines."""

from __future__ import annotations

import re

import pytest

from mindgspo.config.eval_section import CHANGE, OVERALL
from mindgspo.config.messages import known_keys
from mindgspo.metrics import unknown_names, verdict_lines
from mindgspo.metrics.best_evaluation import best_evaluation
from mindgspo.metrics.diagnosis import diagnose
from mindgspo.metrics.finding import Level
from mindgspo.metrics.recorded import RunHistory, accuracies

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


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ((0.004, -0.019, 0.027), Level.WARN, "+0.4 points, 95 % interval -1.9 .. +2.7): no change can be claimed"),
        ((0.1, 0.04, 0.16), Level.GOOD, "went from 40.0% to 50.0% (+10.0 points, 95 % interval +4.0 .. +16.0)"),
        ((-0.1, -0.16, -0.04), Level.ALARM, "went from 60.0% to 50.0% (-10.0 points"),
        ((0.0, 0.0, 0.0), Level.WARN, "no change can be claimed"),
    ],
)
def test_a_change_is_judged_by_its_interval(change: tuple[float, float, float], level: Level, words: str) -> None:
    (finding,) = diagnose(moved(*change))
    assert finding.level is level and words in finding.text
    if level is Level.WARN and change[0]:
        assert "show changes of 2.3 points or more" in finding.advice


@pytest.mark.parametrize(
    ("aux", "level", "words"),
    [
        (
            {"response_length__clip_ratio": 0.62},
            Level.ALARM,
            "62% of the evaluation's answers to gsm8k were cut at 256 t",
        ),
        ({"response_length__clip_ratio": 0.2}, Level.WARN, "20% of the evaluation's answers"),
        ({"no_answer_ratio": 0.9}, Level.ALARM, "no answer was recognised in 90%"),
        ({"no_answer_ratio": 0.3}, Level.WARN, "no answer was recognised in 30%"),
        ({"failed_ratio": 0.01}, Level.WARN, "1.0% of the evaluation's answers to gsm8k could not be judged"),
        ({"failed_ratio": 0.2}, Level.ALARM, "20.0% of the evaluation's answers"),
        ({"num_problems": 30, "accuracy": 0.0}, Level.WARN, "none of the 30 problems of gsm8k is solved"),
        ({"num_problems": 30, "accuracy": 1.0}, Level.WARN, "all 30 problems of gsm8k are solved"),
    ],
)
def test_an_evaluation_that_needs_attention(aux: dict[str, float], level: Level, words: str) -> None:
    (finding,) = diagnose(evaluated(**aux))
    assert finding.level is level and words in finding.text and finding.advice


@pytest.mark.parametrize(
    "aux",
    [
        {"response_length__clip_ratio": 0.1},
        {"no_answer_ratio": 0.2},
        {"no_answer_ratio": 0.05, "response_length__clip_ratio": 0.05},
        {"failed_ratio": 0.0},
        {"num_problems": 7, "accuracy": 0.0},
        {"num_problems": 30, "accuracy": 1 / 30},
    ],
)
def test_an_evaluation_that_is_in_order_says_nothing(aux: dict[str, float]) -> None:
    assert diagnose(evaluated(**aux)) == []


def test_answers_that_were_cut_are_not_blamed_on_their_form() -> None:
    """80 % without an answer, 70 % cut: 10 % were whole, which is usual."""
    findings = diagnose(evaluated(no_answer_ratio=0.8, response_length__clip_ratio=0.7))
    assert ["were cut" in finding.text for finding in findings] == [True]


def test_the_worst_of_several_sets_is_named() -> None:
    run = evaluated(part="easy", response_length__clip_ratio=0.2)
    run.add(0, {"val-core/hard/acc/mean@1": 0.2, "val-aux/hard/response_length/clip_ratio": 0.6})
    (finding,) = diagnose(run)
    assert "60% of the evaluation's answers to hard" in finding.text
    assert list(accuracies(run)) == ["easy", "hard"], "all problems together are no set"


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


def test_the_longest_response_is_named_where_it_is_known() -> None:
    run = RunHistory(CONFIG)
    run.add(1, {"response_length/clip_ratio": 0.62})
    (finding,) = diagnose(run)
    assert finding.text == "62.0% of the responses were cut at 256 tokens"


# ----- the verdict


def test_a_verdict_with_nothing_to_say_is_one_line() -> None:
    run = moved(0.1, 0.04, 0.16)
    run.add(20, {f"{OVERALL}/low": 0.45, f"{OVERALL}/high": 0.55})
    assert verdict_lines(run, step=20, best="best 50.0% here") == [
        "evaluation at step 20: accuracy 50.0% (95 % interval 45.0% .. 55.0%), +10.0 points since the first "
        "(95 % interval +4.0 .. +16.0); best 50.0% here; nothing needs attention"
    ]


def test_no_change_is_said_once() -> None:
    (line,) = verdict_lines(moved(0.004, -0.019, 0.027), step=20, best="best")
    assert "-1.9 .. +2.7: no change can be claimed" in line


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


def test_no_evaluation_no_verdict() -> None:
    run = RunHistory()
    run.add(1, {"reward/zero_signal_group_ratio": 1.0})
    assert verdict_lines(run, step=1, best="") == []


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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(0, 0.5), (2, 0.75), (4, 0.75)], (2, 0.75)),
        ([(0, 0.9), (0, 0.5), (2, 0.75)], (2, 0.75)),
        ([(0, 0.5), (2, 0.25)], (0, 0.5)),
    ],
    ids=["first of equals", "a warm-up's second counts", "before training"],
)
def test_the_best_evaluation(values: list[tuple[int, float]], expected: tuple[int, float]) -> None:
    run = RunHistory("eval:\n  best_metric: val-core/aime/acc/mean@8\n")
    for step, value in values:
        run.add(step, {"val-core/aime/acc/mean@8": value, OVERALL: 1 - value})
    best = best_evaluation(run)
    assert (best.step, best.value, best.is_only) == (*expected, False)


def test_without_an_evaluation_nothing_is_best() -> None:
    assert best_evaluation(RunHistory("not: [yaml")) is None
