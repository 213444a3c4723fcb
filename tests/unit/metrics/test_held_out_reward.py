"""A run whose held-out reward rises while no answer counts as right: every screen shows the reward beside the accuracy.

Twelve problems; the reward is a form that is learned, from 0.04 to 0.50.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.checkpoint.runs import overview, run_table
from mindgspo.checkpoint.store import Retention, save_checkpoint
from mindgspo.checkpoint.verify import list_lines
from mindgspo.config import load_config
from mindgspo.config.data import CHANGE, OVERALL, OVERALL_REWARD, REWARD_CHANGE
from mindgspo.metrics import verdict_lines
from mindgspo.metrics.compare import compare_runs, outcome_rows
from mindgspo.metrics.diagnosis import FindingLevel, diagnose
from mindgspo.metrics.report import headlines
from mindgspo.metrics.run_folder import RunHistory, best_evaluation, held_out_figures, read_run, reward_text
from mindgspo.metrics.run_log import step_line

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
OWN = f"eval:\n  best_metric: {OVERALL_REWARD}\n"
OURS = f"eval:\n  best_metric: {OVERALL}\n"
PART = "val-core/own/"


def evaluations(accuracies=(0.0, 0.0), rewards=(0.04, 0.5)) -> list[dict[str, float]]:
    """At steps 0 and 5; the reward's change is known within 0.2, the accuracy's within 0.14."""
    lines = []
    for step, accuracy, reward in zip((0, 5), accuracies, rewards, strict=True):
        figures = {"acc/mean@1": accuracy, "reward/mean@1": reward}
        line = {f"{place}{name}": value for place in ("val-core/", PART) for name, value in figures.items()}
        line |= {f"{PART}reward/mean@1/low": reward - 0.03, f"{PART}reward/mean@1/high": reward + 0.03}
        if step:
            for name, values, half in ((CHANGE, accuracies, 0.14), (REWARD_CHANGE, rewards, 0.2)):
                change = values[1] - values[0]
                line |= {name: change, f"{name}/low": change - half, f"{name}/high": change + half}
        lines.append({"step": step, "val-aux/own/num_problems": 12, **line})
    return lines


def history(config: str, **figures: tuple[float, float]) -> RunHistory:
    run = RunHistory(config)
    for line in evaluations(**figures):
        run.add(line["step"], line)
    return run


def write_run(folder: Path, config: str, **figures: tuple[float, float]) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"run_id": "1"}')
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations(**figures)))
    return folder


@pytest.mark.parametrize(("functions", "metric"), [
    ("[own.py:score]", OVERALL_REWARD), ("[own.py:score, format]", OVERALL_REWARD), ("[own.py:score, math]", OVERALL),
    ("[auto, own.py:score]", OVERALL), ("[auto]", OVERALL), ("[gsm8k, format]", OVERALL), ("[format]", OVERALL),
])  # fmt: skip
def test_the_best_step_of_a_reward_of_ones_own_is_chosen_by_it(functions: str, metric: str) -> None:
    config = load_config(QUICKSTART, [f"reward.functions={functions}"], check_files=False)
    assert config.eval.best_metric == metric
    other = ["eval.best_metric=val-core/arithmetic/acc/mean@1", f"reward.functions={functions}"]
    assert load_config(QUICKSTART, other, check_files=False).eval.best_metric == "val-core/arithmetic/acc/mean@1"


def test_the_verdict_on_a_form_that_is_learned() -> None:
    run = history(OWN)
    assert verdict_lines(run, step=5, best="best reward 0.5 here") == [
        "evaluation at step 5: reward 0.500, +0.460 since the first (95 % interval +0.260 .. +0.660); accuracy 0.0%, "
        "+0.0 points since the first (95 % interval -14.0 .. +14.0: no change can be claimed); best reward 0.5 here; "
        "nothing needs attention"
    ]
    judged, beside = diagnose(run)
    assert (judged.level, beside.level) == (FindingLevel.GOOD, FindingLevel.GOOD)
    assert judged.text == "held-out reward went from 0.04 to 0.500 (+0.460, 95 % interval +0.260 .. +0.660)"
    assert beside.text.startswith("held-out accuracy went from 0.0% to 0.0% (+0.0 points")
    best = best_evaluation(run)
    assert (best.step, best.value) == (5, 0.5)


def test_a_verifier_of_ours_beside_it_still_judges_by_the_accuracy() -> None:
    changed, none, reward = diagnose(history(OURS))
    assert (changed.level, none.level, reward.level) == (FindingLevel.WARN, FindingLevel.WARN, FindingLevel.GOOD)
    assert changed.advice.startswith("The held-out reward rose")
    assert none.text == "none of the 12 problems of own is solved, though the reward rose from 0.04 to 0.500"
    assert reward.text.startswith("held-out reward went from 0.04 to 0.500")
    assert verdict_lines(history(OURS), step=5, best="")[0].index("accuracy") < 40


def test_a_reward_that_says_what_the_accuracy_says_warns_once() -> None:
    """1 for a right answer, -1 for another, as math_dapo pays."""
    findings = diagnose(history(OURS, accuracies=(0.8, 0.3), rewards=(0.6, -0.4)))
    assert [finding.level for finding in findings] == [FindingLevel.ALARM, FindingLevel.GOOD]


@pytest.mark.parametrize(("config", "figures", "words"), [
    (OWN, {"rewards": (0.5, 0.1)}, "alarm: held-out reward went from 0.500 to 0.100"),
    (OWN, {"rewards": (0.5, 0.5)}, None),  # the headline says that no change can be claimed
    (OWN, {"accuracies": (1.0, 1.0)}, None),  # a reward above 0 counts as solved, and the reward still tells
    (OWN, {"accuracies": (0.6, 0.2)}, "warn: held-out accuracy went from 60.0% to 20.0%"),
    (OURS, {"accuracies": (0.1, 0.5), "rewards": (0.5, 0.1)}, "warn: held-out reward went from 0.500 to 0.100"),
    (OURS, {"rewards": (-1.0, -1.0)}, "warn: none of the 12 problems of own is solved."),
])  # fmt: skip
def test_other_courses(config: str, figures: dict, words: str | None) -> None:
    headline, *lines = verdict_lines(history(config, **figures), step=5, best="best")
    assert "reward" in headline and "accuracy" in headline
    assert any(words in line for line in lines) if words else lines == [], lines


def test_a_reward_that_is_the_accuracy_is_not_shown_twice() -> None:
    run = history(OURS, accuracies=(0.2, 0.4), rewards=(0.2, 0.4))
    assert [one.name for one in held_out_figures(run)] == ["accuracy"]
    assert "reward" not in " ".join(verdict_lines(run, step=5, best=""))


def test_the_step_line_has_rewards_that_are_another_number() -> None:
    first, last = evaluations(rewards=(0.0, 0.5))
    assert step_line(0, 8, first) == "step     0/8  val-core/own/acc/mean@1 0.0000"
    assert step_line(5, 8, last) == "step     5/8  val-core/own/acc/mean@1 0.0000  val-core/own/reward/mean@1 0.5000"


def test_the_list_of_runs(tmp_path: Path) -> None:
    own, plain = write_run(tmp_path / "own", OWN), write_run(tmp_path / "plain", OURS, rewards=(0.0, 0.0))
    assert overview(own).verdicts == ("nothing needs attention",)
    header, row, other = run_table([overview(own), overview(plain)])
    assert header.split()[:5] == ["run", "state", "step", "accuracy", "reward"]
    assert row.split()[3:8] == ["0.0%", "0.500", "0.500", "at", "5"] and "0.0%  " in other
    assert "reward" not in run_table([overview(plain)])[0]


def test_the_comparison_and_the_report(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "own", OWN), write_run(tmp_path / "plain", OURS, rewards=(0.0, 0.0))]
    header, own, plain = outcome_rows(compare_runs(runs))
    assert header[4:6] == ["reward, last", "best"]
    assert own[2:6] == ["0.0% at 5", "0.0% at 0", "0.500 at 5", "0.500 at 5"] and plain[4:6] == ["-", "-"]
    tiles = {tile.label: tile for tile in headlines(read_run(runs[0]))}
    assert list(tiles)[:3] == ["Held-out reward", "Held-out accuracy", "Best evaluation"]
    assert tiles["Held-out reward"].value == "0.04 \u2192 0.500"
    assert tiles["Best evaluation"].value == "0.500"


def test_the_list_of_checkpoints(tmp_path: Path) -> None:
    for step, accuracy, reward, value in ((1, 0.0, 0.04, 0.04), (2, 0.25, 0.5, 0.7), (3, 0.25, 0.25, 0.25)):
        progress = {"accuracy": accuracy, "reward": reward, "latest": {"step": step, "value": value}}
        arrays = {"parameters": {}, "optimizer": {}}
        save_checkpoint(tmp_path, step=step, state={"progress": progress}, keep=Retention(last=9), **arrays)
    _, one, two, three = list_lines(tmp_path)
    assert "  accuracy 0.0000, reward 0.0400  " in one
    assert "  0.7000 (accuracy 0.2500, reward 0.5000)  " in two and "  0.2500  " in three


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.500"), (0.041666, "0.0417"), (-1.25, "-1.250"), (4e-17, "0.000")])
def test_rewards_as_text(value: float, text: str) -> None:
    assert reward_text(value) == text
