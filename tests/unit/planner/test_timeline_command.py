"""`mindgspo plan --timeline`: schedules and splits, rates, lengths, the picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from markdown_pages import tables
from planned_experiments import experiment_of, qwen2

from mindgspo.cli import main
from mindgspo.config import ExperimentConfig, dump_config, load_config
from mindgspo.errors import ConfigError, DataError, RunFolderError
from mindgspo.planner.forecast import Forecast, forecasts
from mindgspo.planner.lengths import length_source
from mindgspo.planner.rates import Speeds, speeds_of
from mindgspo.planner.roofline import CARDS
from mindgspo.planner.simulated_replicas import Rates
from mindgspo.planner.smallest_change import changed
from mindgspo.planner.timeline_plot import draw_timelines

PROJECT = Path(__file__).resolve().parents[3]
ARITHMETIC = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
SAID = ("--rates", "decode_step=0.001", "--rates", "train_step=0.1", "--rates", "push_weights=0.01")


@pytest.fixture(scope="module")
def eight_cards() -> ExperimentConfig:
    """On 8 cards: trained on all, sampled by 4 replicas of 2, 16 prompts x 4 responses of up to 512 tokens."""
    return experiment_of(qwen2(), train={"data_parallel": 4, "model_parallel": 2},
                         infer={"data_parallel": 4, "model_parallel": 2}, device="Ascend", rows=4, prompt=64,
                         response=512, slots=64, group=4, prompts=16)  # fmt: skip


def row_of(rows: Sequence[Forecast], schedule: str, infer_cards: int, staleness: int | None = None) -> Forecast:
    (found,) = (
        row for row in rows
        if row.layout.schedule == schedule and row.layout.infer_cards == infer_cards
        and staleness in (None, row.layout.max_staleness)
    )  # fmt: skip
    return found


# ----- Schedules and splits
def test_splits_are_whole_replicas_of_the_same_cards(eight_cards: ExperimentConfig, tmp_path: Path) -> None:
    """Constant work, in seconds: 100 decode steps of 0.1, and 4 of training on 8 cards; 0.5 of hand-over."""
    file = tmp_path / "lengths.txt"
    file.write_text("100\n")
    rates = ("decode_step=0.1", "train_step=4", "push_weights=0.5", "prompt_tokens=10", "prefill_token=0")
    rows = forecasts(eight_cards, lengths=str(file), rates=rates).rows
    assert {row.layout.cards for row in rows} == {"8", "6 + 2", "4 + 4", "2 + 6"}
    assert [row.layout.replicas for row in rows[:4]] == [4, 1, 2, 3]
    sync = row_of(rows, "sync", 0)
    assert sync.layout.is_configured and not any(row.layout.is_configured for row in rows[1:])
    # 16 slots per replica: the 64 responses of a step run at once on 4 replicas, on 2 in two rounds.
    assert sync.median == sync.mean == pytest.approx(10 + 4 + 0.5)
    assert (sync.trainer_idle, sync.rollout_idle) == pytest.approx((10 / 14.5, 4 / 14.5))
    half = row_of(rows, "one_step_off", 4)
    assert half.median == pytest.approx(20 + 0.5) and half.layout.is_planned
    assert (half.drawing, half.training, half.draining, half.push_weights) == pytest.approx((0, 8, 12, 0.5))
    assert (half.staleness_mean, half.staleness_max) == (1, 1)
    assert half.tokens_per_card == pytest.approx(64 * 110 / 20.5 / 8)
    assert all(row.staleness_max <= row.layout.max_staleness for row in rows)


def test_the_configured_split_is_among_them(eight_cards: ExperimentConfig) -> None:
    """6 cards train beside one replica of 2: 8 cards, whichever way."""
    settings = {"trainer.schedule": "bounded", "trainer.max_staleness": 3, "plans.infer.data_parallel": 1,
                "plans.train.data_parallel": 3}  # fmt: skip
    rows = forecasts(changed(eight_cards, settings)).rows
    assert {row.layout.cards for row in rows} == {"8", "6 + 2", "4 + 4", "2 + 6"}
    (own,) = (row for row in rows if row.layout.is_configured)
    assert (own.layout.schedule, own.layout.max_staleness, own.layout.cards) == ("bounded", 3, "6 + 2")
    assert {row.layout.max_staleness for row in rows} == {0, 1, 2, 3, 4}


def test_a_single_card_gets_another_one() -> None:
    experiment = load_config(ARITHMETIC, check_files=False)
    rows = forecasts(experiment, rates=("decode_step=0.001", "train_step=0.1")).rows
    assert [row.layout.cards for row in rows[:2]] == ["1", "1 + 1"]


def test_servers_elsewhere_are_the_replicas(eight_cards: ExperimentConfig) -> None:
    urls = ("http://10.0.0.2:8000", "http://10.0.0.3:8000", "http://10.0.0.4:8000")
    found = forecasts(changed(eight_cards, {"rollout.servers.urls": urls}))
    assert [row.layout.replicas for row in found.rows] == [3] * len(found.rows) and len(found.rows) == 5
    assert {row.layout.cards for row in found.rows} == {"8 + servers"} and found.rows[0].layout.is_configured
    assert draw_timelines(found).startswith(b"\x89PNG")


# ----- Rates
@pytest.fixture(scope="module")
def published() -> Sequence[Forecast]:
    """Qwen3-32B, 64 prompts x 16, 64 dies, 16 replicas of 4."""
    path = PROJECT / "examples" / "dapo_math" / "gspo_qwen3_32b.yaml"
    return forecasts(load_config(path, check_files=False), card="A3").rows


@pytest.mark.slow
@pytest.mark.parametrize("page", ["schedules.md", "schedules_cn.md"])
def test_the_table_of_the_docs_is_what_is_printed(page: str, published: Sequence[Forecast]) -> None:
    (table,) = (found for found in tables((PROJECT / "docs" / page).read_text()) if len(found[0]) == 7)
    for name, cards, *numbers in table[1:]:
        _, schedule, *_, staleness = name.split("`")
        row = row_of(published, schedule, int(cards.partition(" + ")[2] or 0), int(staleness) if staleness else None)
        seconds, speed, trainer_idle, rollout_idle, behind = numbers
        assert seconds == f"{row.mean:,.0f}" and float(speed) == round(published[0].mean / row.mean, 2), name
        assert (trainer_idle, rollout_idle) == (f"{row.trainer_idle:.0%}", f"{row.rollout_idle:.0%}"), name
        assert float(behind) == round(row.staleness_mean, 2), name


def speeds_with(experiment: ExperimentConfig, *given: str) -> Speeds:
    """For steps whose responses have 100 tokens."""
    return speeds_of(experiment, given, lengths_PG=np.full((64, 4), 100), card=CARDS["A2"])


def test_rates_that_are_said_replace_their_kind(eight_cards: ExperimentConfig, tmp_path: Path) -> None:
    of_card = speeds_with(eight_cards)
    assert of_card.rates.decode_sequence > 0 and of_card.train_cards == 8 and of_card.phases["update"] > 0
    file = tmp_path / "rates.yaml"
    file.write_text("decode_step: 0.05\ndecode_context: 1e-7\n")
    said = speeds_with(eight_cards, str(file), "decode_step=0.06", "train_step=8")
    assert said.rates == Rates(decode_step=0.06, decode_context=1e-7, train_step=8.0, train_token=0.0,
                               prefill_token=of_card.rates.prefill_token,
                               push_weights=of_card.rates.push_weights)  # fmt: skip
    assert not said.phases and said.on(2).train_step == 32 and said.on(2).decode_step == 0.06
    assert said.notes[-1] == "as said: decode_step=0.06, decode_context=1e-07, train_step=8"


@pytest.mark.parametrize("given, message", [
    ("decode=3", "--rates: unknown rate 'decode'; did you mean 'decode_step'?"),
    ("decode_step=fast", "--rates: decode_step=fast are no seconds; write a number from 0 to 1,000,000"),
    ("train_step=-1", "--rates: train_step=-1.0 are no seconds"),
    ("train_step=nan", "--rates: train_step=nan are no seconds"),
    ("prompt_tokens=inf", "--rates: prompt_tokens=inf are no tokens"),
    ("decode_context=1", "--rates: a decode step takes no time; set decode_step or decode_sequence above 0"),
    ("nowhere", "--rates: nowhere is no run folder, no file and no name=seconds"),
])  # fmt: skip
def test_rates_that_are_none_are_refused(eight_cards: ExperimentConfig, given: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        speeds_with(eight_cards, given)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize("content, message", [
    ("- 1\n", "holds no names and seconds; write e.g. decode_step: 0.04"),
    ("decode_step: [\n", "not YAML or JSON"),
    ("decode_step: true\n", "decode_step=True are no seconds"),
    ("1: 2\n", "not YAML or JSON"),
    (b"\xff\xfe", "not YAML or JSON"),
])  # fmt: skip
def test_files_of_rates_that_are_none_are_refused(
    eight_cards: ExperimentConfig, tmp_path: Path, content: str | bytes, message: str
) -> None:
    file = tmp_path / "rates.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as refused:
        speeds_with(eight_cards, str(file))
    assert str(refused.value).startswith(f"{file}: {message}") and "\n" not in str(refused.value)


def run_folder(folder: Path, overrides: Sequence[str] = (), **changes: float | None) -> Path:
    """Of six steps on one replica: 0.002 s per decode step, 1e-5 per token decoded and 3e-5 per token trained."""
    folder.mkdir()
    config = load_config(ARITHMETIC, overrides, check_files=False)
    (folder / "config.yaml").write_text(dump_config(config))
    rows = []
    for step, (steps, tokens) in enumerate([(80, 5000), (90, 5000), (80, 6000), (100, 5500), (85, 4000), (95, 6500)]):
        gen = 0.002 * steps + 1e-5 * tokens + (9.0 if step == 0 else 0.0)  # the first one compiles
        row = {"step": step + 1, "timing_s/gen": gen, "timing_s/step": gen + 3e-5 * (tokens + 6400) + 0.05,
               "timing_s/update_weights": 0.05, "timing_s/update_actor": 3e-5 * (tokens + 6400),
               "rollout/decode_steps": steps, "perf/gen_tokens_per_second": tokens / gen,
               "perf/total_num_tokens": tokens + 6400, "prompt_length/mean": 25.2}  # fmt: skip
        row |= changes
        rows.append(json.dumps({name: value for name, value in row.items() if value is not None}))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def test_rates_of_a_run(tmp_path: Path) -> None:
    experiment = load_config(ARITHMETIC, check_files=False)
    speeds = speeds_with(experiment, str(run_folder(tmp_path / "run")))
    assert speeds.rates.decode_step == pytest.approx(0.002) and speeds.rates.decode_sequence == pytest.approx(1e-5)
    assert speeds.rates.train_token == pytest.approx(3e-5) and speeds.rates.push_weights == pytest.approx(0.05)
    assert speeds.rates.prefill_token == pytest.approx(1e-5) and speeds.prompt_tokens == 25
    assert (speeds.train_cards, len(speeds.notes)) == (1, 1) and "5 steps" in speeds.notes[0]
    more = speeds_with(experiment, str(tmp_path / "run"), "push_weights=1")
    assert (more.rates.push_weights, more.rates.decode_step) == (1, speeds.rates.decode_step)


def test_runs_without_what_is_needed_are_refused(tmp_path: Path) -> None:
    experiment = load_config(ARITHMETIC, check_files=False)
    for name, options, message in (
        ("no_steps", {"rollout/decode_steps": None}, "not every step has rollout/decode_steps; give another run"),
        ("no_time", {"timing_s/gen": 0.0}, "not every step has timing_s/gen; give another run"),
        ("fed", {"overrides": ["trainer.schedule=bounded"]}, "its responses came from servers"),
    ):
        folder = run_folder(tmp_path / name, **options)
        with pytest.raises(RunFolderError, match=message):
            speeds_with(experiment, str(folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="no metrics.jsonl here"):
        speeds_with(experiment, str(tmp_path / "empty"))


# ----- Lengths
def drawn(given: str | None, experiment: ExperimentConfig, prompts: int = 500, group: int = 4) -> np.ndarray:
    return length_source(given, experiment).draw(np.random.default_rng(0), prompts, group)


def test_the_named_distribution_is_as_published(eight_cards: ExperimentConfig) -> None:
    """Mean 7,385, 3.9 % at 20,480; the means of 64 groups of 16 lie between 1,952 and 20,252."""
    experiment = changed(eight_cards, {"rollout.max_new_tokens": 20480, "model.max_position_embeddings": 32768})
    lengths = drawn("qwen3_32b_dapo", experiment, 6400, 16)
    assert lengths.mean() == pytest.approx(7385, rel=0.02)
    assert (lengths == 20480).mean() == pytest.approx(0.039, abs=0.004)
    means = lengths.mean(axis=1).reshape(100, 64)
    assert means.min(axis=1).mean() == pytest.approx(1952, rel=0.1)
    assert means.max(axis=1).mean() == pytest.approx(20252, rel=0.15)
    assert np.array_equal(lengths, drawn(None, experiment, 6400, 16))
    stretched = drawn(None, eight_cards)
    assert stretched.max() == 512 and stretched.mean() == pytest.approx(512 * 7385 / 20480, rel=0.1)


def test_lengths_of_a_run_stay_together_by_prompt(eight_cards: ExperimentConfig, tmp_path: Path) -> None:
    rows = [{"step": 1, "prompt_index": 7, "length": length} for length in (10, 11, 12, 13)]
    rows += [{"step": 1, "prompt_index": 8, "length": 700}, {"step": 2, "prompt_index": 7, "length": 50}]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lengths = drawn(str(tmp_path), eight_cards)
    assert {tuple(sorted(row)) for row in lengths.tolist()} == {(10, 11, 12, 13), (512,) * 4, (50,) * 4}
    note = length_source(str(tmp_path / "samples.jsonl"), eight_cards).note
    assert note.endswith("6 responses to 3 prompts, mean 133, longest 700; 1 cut off at rollout.max_new_tokens 512")


def test_lines_of_one_number_are_mixed_and_lists_are_not(eight_cards: ExperimentConfig, tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("3\n\n5\n")
    assert {tuple(sorted(row)) for row in drawn(str(file), eight_cards).tolist()} > {(3, 3, 3, 5)}
    file.write_text("[3, 3]\n[5, 5, 5]\n")
    assert {tuple(row) for row in drawn(str(file), eight_cards).tolist()} == {(3,) * 4, (5,) * 4}


@pytest.mark.parametrize("content, message", [
    ("", "holds no length; write the tokens of one response on each line"),
    ("12\nabc\n", "line 2: not JSON"),
    ("0\n", "line 1: 0 is no length"),
    ("12.5\n", "line 1: 12.5 is no length"),
    ("true\n", "line 1: True is no length"),
    ("[]\n", "line 1: [] is no length"),
    ('{"tokens": 5}\n', "line 1: None is no length"),
    ("9" * 5000 + "\n", "line 1: holds an integer of more than"),
    ("99999999999\n", "line 1: 99999999999 is no length"),
])  # fmt: skip
def test_files_that_hold_no_lengths_are_refused(
    eight_cards: ExperimentConfig, tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(content)
    with pytest.raises(DataError) as refused:
        length_source(str(file), eight_cards)
    assert message in str(refused.value) and str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_unknown_names_are_refused(eight_cards: ExperimentConfig) -> None:
    with pytest.raises(DataError, match="did you mean 'qwen3_32b_dapo'"):
        length_source("qwen3_32_dapo", eight_cards)


# ----- The command
def test_the_command_prints_a_table_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", str(ARITHMETIC), "--timeline", *SAID]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("expected seconds per step: 32 prompts x 8, 64 slots per replica, ")
    assert [line.split()[0] for line in lines[2:5]] == ["sync", "one_step_off", "bounded,"]
    assert lines[2].endswith("configured") and any(line.startswith("lengths: assumed: ") for line in lines)
    assert lines[-1] == "picture: arithmetic-gspo-timeline.png"
    picture = (tmp_path / "arithmetic-gspo-timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    assert main(["plan", str(ARITHMETIC), "--timeline", *SAID, "--json", "--picture", "other.png"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["picture"] == "other.png" and (tmp_path / "other.png").read_bytes() == picture
    assert [row["schedule"] for row in found["rows"]] == ["sync", "one_step_off", "bounded", "bounded", "bounded"]
    assert all(row["mean"] > 0 and row["staleness_max"] <= row["max_staleness"] for row in found["rows"])


def test_options_of_the_timeline_go_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ARITHMETIC), "--picture", "a.png"]) == 2
    assert "goes with --timeline" in capsys.readouterr().err
    assert main(["plan", str(ARITHMETIC), "--timeline"]) == 1
    assert "nothing is known about this machine; give a folder of a run, --probe, or" in capsys.readouterr().err
