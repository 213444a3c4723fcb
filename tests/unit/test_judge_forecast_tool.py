"""tools/judge_forecast.py: arithmetic of the published runs, the fit, what is said of it, and the pages it writes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import judge_forecast as tool
import pytest

from mindgspo.planner.rank_work import whole_bytes
from mindgspo.planner.time.estimate import estimate_lines, estimate_step
from mindgspo.planner.time.roofline import FITTED, FittedRates, Load

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNS = {run.name: run for run in tool.read_runs()}


def test_mean_lengths_follow_from_throughput_and_seconds() -> None:
    """69.394 tokens per second x 64 dies x 1,738.03 s are 1,024 samples of 7,538 tokens."""
    assert RUNS["dapo_qwen3_32b"].mean_tokens == pytest.approx(7538.1, abs=0.05)
    for run in RUNS.values():
        assert round(run.mean_tokens) == run.published["mean_tokens"], run.name
        limits = run.experiment.data.max_prompt_length, run.experiment.rollout.max_new_tokens
        prompt = run.published["prompt_tokens"]
        assert prompt <= limits[0] and 0 < run.published["mean_tokens"] - prompt <= limits[1], run.name
        assert sum(run.published.get("phases", {}).values()) <= 1.01 * run.published["seconds"], run.name


@pytest.mark.parametrize(("name", "samples", "rate"), [("dppo", 256, 988.49), ("r3", 128, 882.78)])
def test_seconds_of_generation_follow_from_its_throughput(name: str, samples: int, rate: float) -> None:
    """Published as response tokens per second."""
    entry = RUNS[f"{name}_qwen3_30b_a3b"].published
    responses = samples * (entry["mean_tokens"] - entry["prompt_tokens"])
    assert entry["phases"]["generation"] == pytest.approx(responses / rate, abs=0.05)


def test_what_engines_move_by_hand() -> None:
    """Of FSDP's 12 bytes per weight, 4 move before every phase; of Megatron's 14, 2."""
    moved = {name: {phase: loads[-1].host_bytes for phase, loads in run.loads.items()} for name, run in RUNS.items()}
    weights = whole_bytes(RUNS["gspo_qwen3_8b"].experiment.model) / 4 / 8  # of a card
    found = moved["gspo_qwen3_8b"]
    assert found["update"] == pytest.approx(2 * 12 * weights, rel=1e-3)
    assert found["old log-probs"] == found["weights"] == pytest.approx(2 * 4 * weights, rel=1e-3)
    weights = whole_bytes(RUNS["dppo_qwen3_30b_a3b"].experiment.model) / 4
    assert moved["dppo_qwen3_30b_a3b"]["update"] == pytest.approx(2 * 14 * weights / 4, rel=0.05), "4 stages"
    assert set(moved["cispo_qwen2_5_0_5b"].values()) == {0.0}, "no offload"


def test_a_fit_finds_the_rates_that_made_the_seconds() -> None:
    made = FittedRates(peak_share=0.4, decode_layer=6e-4, train_layer=4e-3, host=5e9)
    runs = [
        tool.Run(name=str(number), published={"seconds": load.seconds(made)}, experiment=None,
                 loads={"all": [load]}, assumed={})
        for number, load in enumerate([Load(operations=8.0), Load(operations=2.0, decode_layers=1e5),
                                       Load(train_layers=2e4), Load(host_bytes=2e11, operations=1.0)])
    ]  # fmt: skip
    assert asdict(tool.fit(runs)) == pytest.approx(asdict(made), rel=0.01)


def test_the_rates_of_the_roofline_are_those_of_the_fit() -> None:
    fitted = asdict(tool.fit(tool.read_runs()))
    assert asdict(FITTED) == pytest.approx(fitted, rel=0.01)
    assert all(low < rate < high for low, rate, high in zip(tool.LOWEST, fitted.values(), tool.HIGHEST, strict=True))


def test_forecasts_stay_as_good_as_they_are_said_to_be() -> None:
    """Those far off have a reason, and `plan` gives the numbers of the page."""
    found = tool.summary()
    assert found["median"] <= 30
    for run, other in zip(tool.read_runs(), tool.left_out(), strict=True):
        of_phases = run.phase_ratios(other).values()
        is_far = tool.largest([run.ratio(other)]) > 1.5 or any(tool.largest([ratio]) > 2 for ratio in of_phases)
        assert is_far == ("why_off" in run.published), run.name
    experiment = RUNS["dapo_qwen3_32b"].experiment
    said = " ".join(estimate_lines(experiment, estimate_step(experiment, card="A3")))
    assert f"{found['number']} runs of verl" in said
    assert f"{found['median']:.0f} % off (median), at most {found['worst']:.1f} times" in said


def test_a_run_left_out_does_not_judge_itself() -> None:
    """Its published seconds do not change the rates that judge it."""
    runs = tool.read_runs()
    first, *rest = runs
    assert tool.left_out()[0] == tool.fit(rest) != tool.fit([first, *rest])


@pytest.mark.parametrize(("page", "language"), tool.PAGES.items())
def test_the_pages_are_up_to_date(page: str, language: str) -> None:
    _, found, end = (DOCS / page).read_text(encoding="utf-8").partition(tool.MARKER)
    assert found and end.strip() == tool.tables(language).strip(), "run `python tools/judge_forecast.py`"
