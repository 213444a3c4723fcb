"""Each rule fires on the run it is meant for, and only there."""

from __future__ import annotations

import re

import pytest

from mindgspo.config.messages import known_keys
from mindgspo.metrics import unknown_names
from mindgspo.metrics.diagnosis import accuracy_span, diagnose
from mindgspo.metrics.finding import Level
from mindgspo.metrics.run_folder import RunRecord


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
        name="run",
        metrics=tuple(rows),
        first_samples=(),
        last_samples=(),
        summary=summary or {},
        config_text=f"algorithm:\n  name: {algorithm}\n" if algorithm else "",
    )


@pytest.mark.parametrize(
    ("name", "value", "level", "words"),
    [
        ("response_length__clip_ratio", 0.6, Level.ALARM, "60.0% of the responses were cut"),
        ("response_length__clip_ratio", 0.2, Level.WARN, "20.0% of the responses were cut"),
        ("response_length__clip_ratio", 0.05, Level.GOOD, "5.0% of the responses were cut"),
        ("reward__zero_signal_group_ratio", 0.95, Level.ALARM, "equal rewards"),
        ("reward__zero_signal_group_ratio", 0.5, Level.GOOD, "equal rewards"),
        ("reward__no_answer_ratio", 0.3, Level.WARN, "no recognisable answer"),
        ("reward__invalid_ratio", 0.0, Level.GOOD, "could not be judged"),
        ("reward__invalid_ratio", 0.01, Level.WARN, "could not be judged"),
        ("reward__timeout_ratio", 0.05, Level.WARN, "5.0% of the responses ran out of time"),
        ("reward__timeout_ratio", 0.3, Level.ALARM, "ran out of time"),
        ("reward__error_ratio", 0.03, Level.WARN, "3.0% of the responses got no reward from a function that failed"),
        ("reward__error_ratio", 0.5, Level.ALARM, "failed or abstained"),
        ("actor__pg_clipfrac_seq", 0.0, Level.WARN, "clipped ratio"),
        ("actor__pg_clipfrac_seq", 0.01, Level.WARN, "clipped ratio"),
        ("actor__pg_clipfrac_seq", 0.3, Level.GOOD, "clipped ratio"),
        ("actor__pg_clipfrac", 0.7, Level.WARN, "clipped ratio"),
        ("actor__pg_clipfrac_lower", 0.0, Level.GOOD, "dual clip"),
        ("actor__pg_clipfrac_lower", 0.01, Level.WARN, "1.0% of the tokens were capped by the dual clip"),
        ("actor__kl", 0.05, Level.GOOD, "0.05 nat per token"),
        ("actor__kl", 0.5, Level.WARN, "0.5 nat per token"),
        ("critic__kl", 3.0, Level.ALARM, "3 nat per token"),
        ("actor__kl", -0.001, Level.GOOD, "-0.001 nat per token"),
        ("rollout_corr__ess", 0.97, Level.GOOD, "sample size of 97.0%"),
        ("rollout_corr__ess", 0.4, Level.WARN, "sample size of 40.0%"),
        ("rollout_corr__ess", 0.05, Level.ALARM, "sample size of 5.0%"),
        ("actor__grad_share_length_decile__10", 0.1, Level.GOOD, "had 10% of the gradient"),
        ("actor__grad_share_length_decile__10", 0.45, Level.WARN, "had 45% of the gradient"),
        ("actor__first_ratio_error_max", 1e-6, Level.GOOD, "differed from 1"),
        ("actor__first_ratio_error_max", 0.3, Level.ALARM, "differed from 1"),
    ],
)
def test_a_steady_value(name: str, value: float, level: Level, words: str) -> None:
    (finding,) = diagnose(run_with(**{name: [value] * 5}))
    assert finding.level is level
    assert words in finding.text
    assert bool(finding.advice) == (level is not Level.GOOD)


@pytest.mark.parametrize(
    ("k3", "gap", "level"),
    [
        (1e-9, 1e-6, Level.GOOD),
        (0.002, 0.004, Level.GOOD),
        (0.02, 0.004, Level.WARN),
        (0.002, 0.03, Level.WARN),
        (0.5, 0.03, Level.ALARM),
    ],
)
def test_a_sampler_that_disagrees_with_the_trainer(k3: float, gap: float, level: Level) -> None:
    series = {"rollout_corr__k3_kl": [k3] * 5, "training__rollout_probs_diff_mean": [gap] * 5}
    (finding,) = diagnose(run_with(**series))
    assert finding.level is level and f"{k3:.2g} nat per token" in finding.text
    assert bool(finding.advice) == (level is not Level.GOOD)


@pytest.mark.parametrize(
    ("algorithm", "series", "level", "words"),
    [
        ("gspo", {"actor__pg_clipfrac_seq": 0.01}, Level.WARN, "1.0% of the responses"),
        ("grpo", {"actor__pg_clipfrac_seq": 0.01, "actor__pg_clipfrac": 0.0012}, Level.GOOD, "0.12% of the tokens"),
        ("dapo", {"actor__pg_clipfrac_seq": 0.3, "actor__pg_clipfrac": 0.2}, Level.WARN, "usual for dapo: below 5%"),
        ("gspo", {"actor__pg_clipfrac_seq": 0.0, "actor__updates": 1}, Level.GOOD, "nothing can be clipped"),
        ("gspo", {"actor__pg_clipfrac_seq": 0.0, "actor__updates": 4}, Level.WARN, "0.0% of the responses"),
        ("unheard_of", {"actor__pg_clipfrac_seq": 0.3}, Level.GOOD, "healthy for gspo"),
    ],
)
def test_clipping_is_judged_by_the_algorithm(
    algorithm: str, series: dict[str, float], level: Level, words: str
) -> None:
    values = {name: [value] * 5 for name, value in series.items()}
    (finding,) = diagnose(run_with(algorithm=algorithm, **values))
    assert finding.level is level
    assert words in finding.text


def test_only_the_last_steps_count() -> None:
    (finding,) = diagnose(run_with(response_length__clip_ratio=[1.0] * 50 + [0.0] * 20))
    assert finding.level is Level.GOOD


@pytest.mark.parametrize(("last", "level"), [(0.9, Level.GOOD), (0.1, Level.WARN)])
def test_trends(last: float, level: Level) -> None:
    (finding,) = diagnose(run_with(critic__score__mean=[0.5] * 6 + [last] * 3))
    assert finding.level is level
    (finding,) = diagnose(run_with(summary={"accuracy_before": 0.5, "accuracy_after": last}, x=[1.0]))
    assert finding.level is level
    (finding,) = diagnose(run_with(actor__entropy=[2.0] * 6 + [last - 0.05] * 3))
    assert finding.level is level


def test_growing_memory() -> None:
    (finding,) = diagnose(run_with(perf__cpu_memory_used_gb=[2.0 + 0.1 * step for step in range(20)]))
    assert finding.level is Level.WARN
    (finding,) = diagnose(run_with(perf__cpu_memory_used_gb=[1.0] * 5 + [3.0] * 15))
    assert finding.level is Level.GOOD


def test_the_gravest_comes_first_and_nothing_recorded_says_nothing() -> None:
    findings = diagnose(
        run_with(
            actor__pg_clipfrac_seq=[0.3] * 3,
            reward__no_answer_ratio=[0.9] * 3,
            reward__invalid_ratio=[0.01] * 3,
        )
    )
    assert [finding.level for finding in findings] == [Level.ALARM, Level.WARN, Level.GOOD]
    assert diagnose(run_with(training__epoch=[1.0])) == []


def test_accuracy_comes_from_the_summary_or_else_from_the_evaluations() -> None:
    values = {"val-core__math__acc__mean@1": [0.2, 0.4, 0.6]}
    assert accuracy_span(run_with(**values)) == (0.2, 0.6)
    assert accuracy_span(run_with(summary={"accuracy_after": 0.7}, **values)) == (0.2, 0.7)
    assert accuracy_span(run_with(x=[1.0])) == (None, None)


def test_timeouts_and_errors_are_named_with_what_to_do_and_only_where_there_are_many() -> None:
    rare = run_with(reward__invalid_ratio=[0.01], reward__timeout_ratio=[0.01], reward__error_ratio=[0.0])
    assert [finding.level for finding in diagnose(rare)] == [Level.WARN]
    often = run_with(reward__invalid_ratio=[0.5], reward__timeout_ratio=[0.2], reward__error_ratio=[0.3])
    overall, timeouts, errors = diagnose(often)
    assert {overall.level, timeouts.level, errors.level} == {Level.ALARM}
    assert "reward.workers.timeout_s" in timeouts.advice
    assert all("samples.jsonl" in finding.advice for finding in (overall, timeouts, errors))


def test_settings_and_metrics_of_the_verdict_rules_exist() -> None:
    settings = {path for path, _ in known_keys()}
    everything = {f"reward__{name}_ratio": [1.0] for name in ("no_answer", "invalid", "timeout", "error")}
    findings = diagnose(run_with(**everything))
    assert len(findings) == 4
    named = {word for finding in findings for word in re.findall(r"reward\.[a-z_.]*[a-z_]", finding.advice)}
    assert named == {"reward.workers.timeout_s", "reward.workers.memory_mb"} and named <= settings
    assert unknown_names(name.replace("__", "/") for name in everything) == []
