"""A run as a Python program asks for it: mappings, rows and functions become a request that any process can read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from running import read_lines, write_experiment

from mindgspo.config import load_config
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import ConfigError, DataError, RunFolderError
from mindgspo.trainer.from_python import python_request

FOUR = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo_4.yaml"
ROWS = [{"prompt": "1+1=", "answer": np.int64(2)}, {"prompt": "1+2=", "answer": 3, "hint": "add"}]


def module_level(**_: object) -> float:
    return 1.0


def request(config, overrides=(), reward=None, callbacks=(), *, overwrite: bool = False, **rows):
    made, run_dir = python_request(config, overrides, reward, callbacks, rows, overwrite=overwrite)
    return made, run_dir


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_experiment(tmp_path)
    monkeypatch.chdir(tmp_path)
    return path


def test_a_mapping_is_the_file_and_can_be_one_again(experiment: Path) -> None:
    mapping = parse_document(experiment.read_text()) | {"run_dir": experiment.parent / "run"}
    made, run_dir = request(mapping, {"trainer.max_steps": 2})
    config = made.experiment()
    assert config == load_config(experiment, ["trainer.max_steps=2", f"run_dir={run_dir}"])
    assert config.data.train.path == experiment.parent / "rows.jsonl", "paths count from the current folder"
    written = made.in_file(config)
    assert load_config(written.words()[0]) == config and written.words() == [str(run_dir / "logs/experiment.yaml")]
    with pytest.raises(ConfigError, match=r"config: 1 problem\n  rollout.top_p: must be <= 1, got 2"):
        request(mapping, {"rollout.top_p": 2})


def test_rows_are_a_file_of_the_run_folder_and_read_by_their_keys(experiment: Path) -> None:
    arithmetic = {"data.train": {"format": "arithmetic", "forgotten_carries": 0.5}, "warmup": None}
    made, run_dir = request(experiment, arithmetic, data=ROWS, eval_data=[ROWS[0] | {"data_source": "sums"}])
    config = made.experiment()
    train, held_out = config.data.train, config.data.eval
    assert (train.format, train.forgotten_carries, train.path.parent) == ("columns", 0.0, run_dir.absolute() / "data")
    assert train.columns.model_dump(exclude_none=True) == {
        "prompt": "prompt", "answer": "answer", "data_source_name": "rows", "extra_info": ("hint",),
    }  # fmt: skip
    assert read_lines(train.path) == [{"prompt": "1+1=", "answer": 2}, ROWS[1]]
    assert held_out.format == "gsm8k" and held_out.columns is None, "a format of files stays"
    again, _ = request(experiment, arithmetic, data=ROWS)
    assert again.experiment().data.train == train, "equal rows are the same file"


def test_rows_of_another_run_are_refused_and_a_run_is_moved_aside_once(experiment: Path) -> None:
    settings = {"run_dir": experiment.parent / "run", "data.train.format": "gsm8k"}
    rows = [{"question": "1+1=", "answer": "#### 2"}]
    made, run_dir = request(experiment, settings, data=rows)
    path = made.experiment().data.train.path
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(RunFolderError, match="already holds a begun run"):
        request(experiment, settings, data=rows)
    with pytest.raises(DataError, match="data.train: the run in .*/run has other rows; give it the same"):
        request(experiment, settings | {"resume": "auto"}, data=rows * 2)
    assert [one.name for one in (run_dir / "data").iterdir()] == [path.name]
    made, _ = request(experiment, settings | {"resume": "auto"}, data=rows)
    assert made.experiment().data.train.path == path
    made, _ = request(experiment, settings, data=rows * 2, overwrite=True)
    assert not made.overwrite and [one.name for one in (run_dir / "data").iterdir()] != [path.name]
    (aside,) = experiment.parent.glob("run.old-*")
    assert (aside / "data" / path.name).exists() and made.experiment().data.train.path.exists()


@pytest.mark.parametrize(("rows", "error", "said"), [
    ({"prompt": "1"}, DataError, "data: expected a list of rows, got dict"),
    ("1+1", DataError, "data: expected a list of rows, got str"),
    ([ROWS[0], {"prompt": object()}], ConfigError, r"data\[1\]: expected text, numbers, .*, got <object"),
])  # fmt: skip
def test_what_are_no_rows_is_named(experiment: Path, rows: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        request(experiment, data=rows)
    assert not (experiment.parent / "runs").exists()


def test_functions_get_names_and_take_the_place_of_the_settings(experiment: Path) -> None:
    weighted = {"reward.functions": ["gsm8k", "format"], "reward.weights": [1.0, 0.5]}
    path = experiment.with_name("weighted.yaml")
    path.write_text(f"include: tiny.yaml\nreward: {json.dumps({key[7:]: value for key, value in weighted.items()})}\n")
    made, _ = request(path, reward=lambda **_: 1.0)
    assert made.experiment().reward.functions == ("python:lambda",) == tuple(made.given.rewards)
    made, _ = request(path, {"reward.weights": [2.0, 0.5]}, reward=[module_level, "format"])
    found = made.experiment().reward
    assert (found.functions, found.weights) == (("python:module_level", "format"), (2.0, 0.5))
    assert found.is_own and made.experiment().eval.best_metric == "val-core/reward/mean@1"
    with pytest.raises(ConfigError, match=r"reward: is given, and overrides set .*=\['gsm8k', 'format'\]; leave"):
        request(path, weighted, reward=module_level)
    with pytest.raises(ConfigError, match="module_level stands there 2 times"):
        request(path, reward=[module_level, module_level])
    with pytest.raises(ConfigError, match="reward: expected a function, a name or a list of these, got 5"):
        request(path, reward=5)


def test_several_processes_need_names() -> None:
    class Plot:
        def on_step(self, record: object) -> None: ...

    def inner(**_: object) -> float:
        return 1.0

    for function, name in ((module_level, f"{__file__}:module_level"), (inner, "FILE.py:inner"),
                           (lambda **_: 1.0, "FILE.py:NAME")):  # fmt: skip
        said = f"reward: the plans need 4 processes, which import functions by name; write '{name}', got <function"
        with pytest.raises(ConfigError, match=said):
            request(FOUR, reward=function)
    with pytest.raises(ConfigError, match=r"callbacks: .* the plans need 4 others; read mindgspo.Run.load\('runs"):
        request(FOUR, callbacks=[Plot()])
