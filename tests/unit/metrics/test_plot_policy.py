"""The picture of the updates: drawn from what a run recorded, against the clip range of its own configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.image import imread

from mindgspo.metrics import write_report
from mindgspo.metrics.plot import draw
from mindgspo.metrics.plot_policy import draw_policy
from mindgspo.metrics.plot_style import DARK, LIGHT
from mindgspo.metrics.report import pictures
from mindgspo.metrics.run_folder import RunRecord, read_run
from mindgspo.metrics.run_settings import run_settings

PNG = b"\x89PNG\r\n\x1a\n"


def size(content: bytes) -> tuple[int, int]:
    assert content.startswith(PNG)
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def without(run: RunRecord, *prefixes: str) -> RunRecord:
    """The run as it would be had it never recorded metrics of these names."""
    rows = [{key: value for key, value in row.items() if not key.startswith(prefixes)} for row in run.metrics]
    return replace(run, metrics=tuple(rows))


NEW = ("actor/log_ratio_hist", "actor/grad_share")
OLD = ("actor/log_ratio_m", "actor/pg_clipfrac_")


def test_four_panels_two_panels_none(run_folder: Path) -> None:
    run = read_run(run_folder)
    width, height = size(draw_policy(run, LIGHT))
    assert width >= 1200
    for missing in (NEW, OLD):
        assert size(draw_policy(without(run, *missing), DARK)) == (width, pytest.approx(height / 2, abs=1))
    assert size(draw_policy(without(run, NEW[0]), LIGHT)) == (width, height), "three panels need two rows"
    assert draw_policy(without(run, *NEW, *OLD), LIGHT) is None


def test_the_place_of_a_missing_panel_is_empty(run_folder: Path) -> None:
    three = draw_policy(without(read_run(run_folder), NEW[0]), LIGHT)
    assert three is not None
    pixels = imread(BytesIO(three), format="png")
    height, width = pixels.shape[:2]
    corner = pixels[height * 6 // 10 :, width * 6 // 10 :]
    assert (corner == corner[-1, -1]).all(), "something is drawn where the fourth panel would be"


def test_the_same_run_gives_the_same_picture_and_themes_differ(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert draw_policy(run, LIGHT) == draw_policy(run, LIGHT) != draw_policy(run, DARK)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_few_steps(tmp_path: Path, build_run: Callable[..., Path], steps: int) -> None:
    size(draw_policy(read_run(build_run(tmp_path / "run", steps=steps, end=False)), LIGHT))


def test_a_run_that_never_clips_and_never_moves(run_folder: Path) -> None:
    run = read_run(run_folder)
    still = [
        {key: 0.0 if "clipfrac" in key or key.startswith("actor/log_ratio_m") else value for key, value in row.items()}
        for row in run.metrics
    ]
    size(draw_policy(replace(run, metrics=tuple(still)), LIGHT))
    size(draw(replace(run, metrics=tuple(still), config_text="algorithm: {name: grpo}\n"), LIGHT))


def test_an_old_run_still_has_a_report(run_folder: Path) -> None:
    path = run_folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    prefixes = (*NEW, *OLD)
    path.write_text(
        "".join(json.dumps({k: v for k, v in row.items() if not k.startswith(prefixes)}) + "\n" for row in rows)
    )
    (run_folder / "config.yaml").unlink()
    assert len(pictures(read_run(run_folder))) == 1
    assert "Last steps" in write_report(run_folder).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "algorithm", "clips_responses", "log_range"),
    [
        ("algorithm: {name: gspo, clip_low: 3e-4, clip_high: 4e-4}", "gspo", True, (-3.00045e-4, 3.9992e-4)),
        (
            "algorithm: {name: gspo_token, clip_low: 3e-4, clip_high: 4e-4}",
            "gspo_token",
            True,
            (-3.00045e-4, 3.9992e-4),
        ),
        ("algorithm: {name: grpo, clip_low: 0.2, clip_high: 0.27}", "grpo", False, (math.log(0.8), math.log(1.27))),
        ("algorithm: {name: gmpo, clip_low: 0.4, clip_high: 0.4}", "gmpo", False, (-0.4, 0.4)),
        ("algorithm: {name: cispo, clip_low: 1.0, clip_high: 4.0}", "cispo", False, None),
        ("algorithm: {name: gpg, clip_low: null, clip_high: null}", "gpg", False, None),
        ("algorithm: {name: of_tomorrow}", "of_tomorrow", None, None),
        ("algorithm: {name: [gspo], clip_low: x}", None, None, None),
        ("algorithm: gspo", None, None, None),
        ("- algorithm", None, None, None),
        ("a: b: c: {", None, None, None),
        ("", None, None, None),
    ],
)
def test_settings_that_change_how_metrics_are_read(
    text: str, algorithm: str | None, clips_responses: bool | None, log_range: tuple[float, float] | None
) -> None:
    run = RunRecord(name="run", metrics=({"step": 1},), first_samples=(), last_samples=(), summary={}, config_text=text)
    settings = run_settings(run)
    assert settings.algorithm == algorithm
    assert settings.clips_responses is clips_responses
    assert settings.log_clip_range == (None if log_range is None else pytest.approx(log_range, rel=1e-4))


def test_a_run_without_configuration_takes_the_algorithm_from_its_summary() -> None:
    run = RunRecord(
        name="run",
        metrics=({"step": 1},),
        first_samples=(),
        last_samples=(),
        summary={"algorithm": "grpo"},
        config_text="",
    )
    assert run_settings(run).clips_responses is False
