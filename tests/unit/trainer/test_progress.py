"""What survives a stop beside weights, optimizer and data cursor; and that a resumed run is the same experiment."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from mindgspo.checkpoint.adapted import base_record
from mindgspo.checkpoint.run_folder import open_run_folder
from mindgspo.config import TokenizerSection, dump_config
from mindgspo.errors import CheckpointError, ConfigError, DataError, TrainingError
from mindgspo.tokenization import load_tokenizer
from mindgspo.trainer.checkpoints import _state_of
from mindgspo.trainer.loop import require_all_steps
from mindgspo.trainer.resume_checks import check_config, check_fingerprints, check_same_experiment, fingerprints
from mindgspo.trainer.validation import Best, Progress


def test_seconds_are_summed_over_processes() -> None:
    first = Progress(accuracy_before=0.25, accuracy=0.25, seconds_before=-1000.0)  # its clock read 1000 at the start
    first.advance({"perf/time_per_step": 3.0, "perf/total_num_tokens": 70})
    saved = json.loads(json.dumps(first.state(1010.0)))
    assert saved["seconds"] == 10.0
    second = Progress.from_state(saved, started=5.0)
    second.advance({"perf/time_per_step": 4.0, "perf/total_num_tokens": 30})
    second.accuracy = 0.5
    assert (second.step, second.training_seconds, second.tokens) == (2, 7.0, 100)
    assert second.seconds(7.5) == 12.5
    assert (second.accuracy_before, second.accuracy) == (0.25, 0.5)


@pytest.mark.parametrize("change", [
    {"step": "x"}, {"tokens": None}, {"accuracy": "x"}, {"reward": float("inf")}, {"training_seconds": []},
    {"best": {"a": 1}}, {"latest": {"step": 1, "value": float("nan")}}, {"best": 5},
], ids=str)  # fmt: skip
def test_a_forged_progress_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    """Digests of a checkpoint do not say who wrote it; `Resume` reads its state within `_state_of`."""
    with pytest.raises(CheckpointError, match=f"{tmp_path}: its state does not fit this run"), _state_of(tmp_path):
        Progress.from_state(Progress().state(0.0) | change, started=0.0)
    with pytest.raises(DataError, match="as it is"), _state_of(tmp_path):
        raise DataError("as it is")


def test_the_best_evaluation_and_the_accuracy_before() -> None:
    progress = Progress()
    found = []
    for value in (0.5, 0.25, 0.75, None, 0.75):
        progress.evaluated(accuracy=0.125, value=value)
        found.append(progress.best)
        progress.advance({"perf/time_per_step": 1.0, "perf/total_num_tokens": 1})
    first, third = Best(step=0, value=0.5), Best(step=2, value=0.75)
    assert found == [first, first, third, third, third]
    saved = json.loads(json.dumps(progress.state(0.0)))
    assert Progress.from_state(saved, started=0.0).best == third
    progress = Progress()
    assert Progress.from_state(json.loads(json.dumps(progress.state(0.0))), started=0.0).best is None
    progress.evaluated(0.75, 0.75)
    progress.evaluated(0.5, 0.5)
    assert (progress.accuracy_before, progress.accuracy, progress.best) == (0.75, 0.5, Best(step=0, value=0.5))
    late = Progress(step=4)
    late.evaluated(0.5, 0.5)
    assert late.accuracy_before is None, "nothing was evaluated before the first step"


@pytest.mark.parametrize(("min_delta", "values", "waited"), [
    (0.0, (0.5, 0.5, 0.25, 0.51, 0.5, None, 0.51), (0, 1, 2, 0, 1, 1, 2)),
    # Half a point above 0.5 is no gain of a point, and 0.51 over the last gain is one, to the last bit or not.
    (0.01, (0.5, 0.505, 0.509, 0.51, 0.515, 0.52), (0, 1, 2, 0, 1, 0)),
    (0.1, (0.5, 0.6, 0.7, 0.75, 0.8), (0, 0, 0, 1, 0)),
])  # fmt: skip
def test_evaluations_without_a_gain_by_hand(min_delta: float, values: tuple, waited: tuple[int, ...]) -> None:
    progress, found = Progress(), []
    for value in values:
        progress.evaluated(accuracy=0.125, value=value, min_delta=min_delta)
        found.append(progress.evaluations_without_gain)
        progress.advance({"perf/time_per_step": 1.0, "perf/total_num_tokens": 1})
        saved = json.loads(json.dumps(progress.state(0.0)))
        progress = Progress.from_state(saved, started=0.0)  # stopped and resumed after every evaluation
    assert tuple(found) == waited
    twice = Progress()
    twice.evaluated(0.75, 0.75)
    twice.evaluated(0.5, 0.5)
    assert (twice.gain, twice.evaluations_without_gain) == (Best(step=0, value=0.5), 0), "after the warm-up"


def test_settings_that_change_the_computation_are_all_named(load, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    check_same_experiment(load(), saved)  # a run that stopped before its configuration was written can go on
    saved.write_text(dump_config(load()))
    check_same_experiment(load(), saved)
    check_same_experiment(load("resume=auto", "run_dir=elsewhere", "trainer.save_every=7", "eval.every=1"), saved)
    check_same_experiment(load("logging.trackers=[tensorboard]", "trainer.keep_checkpoints=9"), saved)
    with pytest.raises(ConfigError) as caught:
        check_same_experiment(load("seed=2", "rollout.max_new_tokens=8", "logging.progress=false"), saved)
    assert "seed: 2, the run has 1" in str(caught.value)
    assert "rollout.max_new_tokens: 8, the run has 16" in str(caught.value)
    assert "progress" not in str(caught.value)


def test_a_run_with_fewer_steps_than_asked_is_not_finished(cpu_runtime: None) -> None:
    require_all_steps(Progress(step=4), 4)
    require_all_steps(Progress(step=3, stopped="no gain"), 4)
    with pytest.raises(TrainingError, match="ended at step 3 of 4: it is not finished"):
        require_all_steps(Progress(step=3), 4)


def test_a_reward_setting_that_differs_is_told_where_a_run_goes_on(load, tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "run", resume="never", overwrite=False)
    folder.config.write_text(dump_config(load()))
    folder.metrics.write_text("")
    folder.close()
    again = open_run_folder(tmp_path / "run", resume="auto", overwrite=False)
    (line,) = check_config(load("reward.workers.timeout_s=2"), again)
    assert line.startswith("warning: reward.workers.timeout_s: 2.0, the run has")
    assert check_config(load("trainer.keep_best=2", "trainer.save_in_background=true"), again) == []
    with pytest.raises(ConfigError, match="reward.workers.timeout_s"):
        check_same_experiment(load("reward.workers.timeout_s=2"), folder.config)  # as comparisons ask


REWARD = "def score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"


@pytest.fixture
def make(load, tmp_path: Path):
    """make(): fingerprints of an experiment with a tokenizer and a reward file of its own."""
    load_tokenizer(TokenizerSection()).save(tmp_path / "tokenizer")
    (tmp_path / "reward.py").write_text(REWARD)

    def made(digest: str = "aa", num_rows: int = 7):
        config = load(f'reward.functions=["{tmp_path}/reward.py:score"]')
        tokenizer = load_tokenizer(TokenizerSection(path=tmp_path / "tokenizer"))
        return json.loads(json.dumps(fingerprints(config, tokenizer, [None] * num_rows, digest=digest)))

    return made


def check(saved, ours, *, weights_only: bool = False) -> list[str]:
    return check_fingerprints(saved, ours, where="step_00000004", weights_only=weights_only)


def test_equal_inputs_are_silent_and_missing_ones_told(make) -> None:
    assert check(make(), make()) == []
    (line,) = check(None, make())
    assert "nothing is compared" in line


def test_another_tokenizer_is_refused_with_what_differs(make, tmp_path: Path) -> None:
    saved = make()
    path = next((tmp_path / "tokenizer").glob("*.json"))
    path.write_text(path.read_text() + " ")
    for weights_only in (False, True):
        with pytest.raises(CheckpointError) as caught:
            check(saved, make(), weights_only=weights_only)
        assert f"{path.name}: another content" in str(caught.value) and "tokenizer.path" in str(caught.value)
    larger = copy.deepcopy(saved)
    larger["tokenizer"] |= {"tokens": 9000, "eos_ids": [1, 2]}
    larger["tokenizer"]["files"]["merges.txt"] = "00"
    with pytest.raises(CheckpointError) as caught:
        check(larger, saved)
    for said in ("tokens: 9000 there", "EOS ids: [1, 2] there", "merges.txt: "):
        assert said in str(caught.value)


def test_other_rows_are_refused_and_a_changed_reward_file_is_told(make, tmp_path: Path) -> None:
    saved, ours = make(), make(digest="bb", num_rows=9)
    with pytest.raises(CheckpointError, match=r"other rows of data.train \(7, here 9"):
        check(saved, ours)
    assert check(saved, ours, weights_only=True) == []
    saved = make()
    (tmp_path / "reward.py").write_text(REWARD.replace("1.0", "0.5"))
    (line,) = check(saved, make())
    assert "reward.score is not the file any more" in line
    assert check(saved, make(), weights_only=True) == []


def test_adapters_are_resumed_on_their_own_base_alone(make, load, tmp_path: Path) -> None:
    def of(*overrides: str) -> dict:
        model = load("model.lora.rank=4", *overrides).model
        return make() | {"base": json.loads(json.dumps(base_record(model, 3)))}

    ours = of()
    assert check(ours, of("model.lora.targets=[attention]")) == [], "names and shapes tell that"
    cases = [
        (make(), ours, "holds every weight, and model.lora trains adapters beside a base; export it"),
        (ours, make(), "holds adapters alone, and without model.lora every weight is trained; export it with --merge"),
        (ours, of("model.lora.init=pissa"), "trained with model.lora.init not pissa, which changes the base; set init"),
        (ours, of("model.lora.alpha=8"), "trained at the scale 8, and model.lora says 2; set alpha, rank"),
        (ours, ours | {"base": ours["base"] | {"files": {"model.safetensors": "aa"}, "path": "/model"}},
         "another base than /model: model.safetensors: only here; set no model.path, and seed to 3"),
        (ours | {"base": ours["base"] | {"files": {"a": "1", "b": "2"}, "path": "/there"}},
         ours | {"base": ours["base"] | {"files": {"a": "1", "b": "3"}, "path": "/here"}},
         "another base than /here: b: another content; set model.path to the folder of that run as it was (/there)"),
    ]  # fmt: skip
    for saved, here, said in cases:
        for weights_only in (False, True):
            with pytest.raises(CheckpointError) as caught:
                check(saved, here, weights_only=weights_only)
            assert said in str(caught.value) and "\n" not in str(caught.value)
