"""Sweeps: the runs of a file, its mistakes, and their processes, which train nothing here."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mindgspo.config import dump_config
from mindgspo.config.load import override_of
from mindgspo.errors import ConfigError
from mindgspo.sweep import Sweep, SweepRun, cards_of_jobs, load_sweep, run_all

PROJECT = Path(__file__).resolve().parents[2]
SWEEPS = PROJECT / "examples/arithmetic/sweeps"
QUICKSTART = f"experiment: {PROJECT / 'examples/arithmetic/gspo.yaml'}\n"
FOUR = "settings: {optimizer.lr: [1e-6, 5e-5], seed: [1, 2], trainer.max_steps: 4}\n"
FOUR_NAMES = ["lr-1e-06_seed-1", "lr-1e-06_seed-2", "lr-5e-05_seed-1", "lr-5e-05_seed-2"]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sweep]:
    """sweep(text): the sweep of a file with this text beside the quickstart's name."""
    monkeypatch.chdir(tmp_path)

    def load(text: str, experiment: str = QUICKSTART) -> Sweep:
        (tmp_path / "mine.yaml").write_text(experiment + text)
        return load_sweep(tmp_path / "mine.yaml")

    return load


# ----- the file


def test_the_full_product_by_hand(sweep, tmp_path: Path) -> None:
    found = sweep(FOUR)
    assert [run.name for run in found.runs] == FOUR_NAMES
    assert [run.variant for run in found.runs] == ["lr-1e-06"] * 2 + ["lr-5e-05"] * 2
    assert [(run.config.optimizer.lr, run.config.seed) for run in found.runs] == [
        (1e-6, 1), (1e-6, 2), (5e-5, 1), (5e-5, 2),
    ]  # fmt: skip
    assert {run.config.trainer.max_steps for run in found.runs} == {4}, "one value is the same for all runs"
    assert [run.config.experiment for run in found.runs] == FOUR_NAMES
    first = found.runs[0]
    assert (found.folder, first.folder) == (Path("runs/mine"), tmp_path / "runs/mine" / FOUR_NAMES[0])
    assert first.arguments()[:2] == ["run", str(PROJECT / "examples/arithmetic/gspo.yaml")]
    assert "optimizer.lr=1e-06" in first.arguments() and "resume=auto" not in first.arguments()
    first.folder.mkdir(parents=True)
    assert first.arguments()[-2:] == ["--set", "resume=auto"]


def test_variants_have_names_of_their_own_and_meet_every_combination(sweep) -> None:
    found = sweep(
        "runs:\n- {experiment: few}\n- {experiment: many, trainer.prompts_per_mini_batch: 2,\n"
        "   trainer.samples_per_micro_batch: 16}\n- {algorithm: {name: grpo}}\nsettings: {seed: [1, 2]}\n"
    )
    assert [run.name for run in found.runs][:5] == ["few_seed-1", "few_seed-2", "many_seed-1", "many_seed-2",
                                                    "algorithm--name-grpo-_seed-1"]  # fmt: skip
    assert [run.variant for run in found.runs] == [n for n in ("few", "many", "algorithm--name-grpo-") for _ in "12"]
    assert [run.config.trainer.prompts_per_mini_batch for run in found.runs] == [8, 8, 2, 2, 8, 8]
    assert found.runs[-1].config.algorithm.name == "grpo"


def test_one_seed_more_keeps_the_names_and_seeds_alone_are_one_variant(sweep) -> None:
    (one,) = sweep("settings: {seed: [1]}\n").runs
    first, second = sweep("settings: {seed: [1, 2]}\n").runs
    assert (one.name, first.name, second.name) == ("seed-1", "seed-1", "seed-2")
    assert first.variant == second.variant == "gspo"


def test_names_that_would_mean_two_settings_say_which_and_long_ones_are_cut(sweep) -> None:
    settings = "optimizer.schedule: [cosine], trainer.schedule: [sync], data.instruction_suffix: [SUFFIX]"
    name = sweep(f"settings: {{{settings}}}\n").runs[0].name
    assert name == "optimizer.schedule-cosine_trainer.schedule-sync_instruction_suffix-SUFFIX"
    one, two = (sweep(f"settings: {{{settings.replace('SUFFIX', 'x' * 90 + end)}}}\n").runs[0].name for end in "ab")
    assert len(one) == len(two) == 80 and one[:72] == two[:72] and one != two
    (odd,) = sweep('settings: {data.instruction_suffix: ["../a b/\\u00e9"]}\n').runs
    assert odd.name == "instruction_suffix-..-a-b-" and odd.folder.parent == Path.cwd() / "runs/mine"


def test_paths_count_from_the_file_and_a_shipped_experiment_is_found(sweep, tmp_path: Path) -> None:
    assert override_of("swap.path", "here", tmp_path) == f'swap.path="{tmp_path}/here"'
    assert override_of("data.train", [{"path": "rows.jsonl"}], tmp_path) == (
        f'data.train=[{{"path": "{tmp_path}/rows.jsonl"}}]'
    )
    assert sweep("settings: {seed: [3]}\n", "experiment: quickstart\n").runs[0].config.seed == 3
    (tmp_path / "own.yaml").write_text(f"include: {PROJECT}/examples/arithmetic/gspo.yaml\nseed: 7\n")
    assert sweep("run_dir: out\n", "experiment: own.yaml\n").runs[0].folder == tmp_path / "out/own"


@pytest.mark.parametrize(("text", "words"), [
    ("settings: {optimizer.lrr: [1, 2]}\n",
     "optimizer.lrr: unknown key; did you mean optimizer.lr? (in lrr-1 and 1 more)"),
    ("settings: {optimizer.lr: [1e-6, fast]}\n", "optimizer.lr: expected a number, got 'fast' (in lr-fast)"),
    ("settings: {seed: []}\n", "settings.seed: an empty list; give it values, or leave it out"),
    ("settings: {run_dir: x}\n", "settings.run_dir: each run has a folder of its own; set run_dir of the sweep"),
    ("runs: [{}, {seed: 2}]\nsettings: {seed: [1]}\n",
     "runs[1].seed: settings.seed has values for every run already; remove one of them"),
    ("settings: {seed: [" + ", ".join(map(str, range(1001))) + "]}\n",
     "settings: 1,001 combinations, and a sweep has at most 1,000; leave values out"),
    ("metric: val-core/acc/mean@\n", "metric: val-core/acc/mean@ is no metric; did you mean 'val-core/acc/mean@1'?"),
    ("setting: {seed: [1]}\n", "setting: unknown key; did you mean settings?"),
    ("settings: [seed]\n", 'settings: expected a mapping, e.g. {a: b}, got ["seed"]'),
    ("runs: [seed]\n", "runs[0]: expected a mapping, e.g. {a: b}, got 'seed'"),
    ("settings: {a..b: 1}\n", "a..b=1: expected section.key=value"),
])  # fmt: skip
def test_a_mistake_is_one_line_and_found_before_anything_runs(sweep, tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(text)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{tmp_path / 'mine.yaml'}: 1 problem" and len(lines) == 2 and words in lines[1]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_runs_of_one_name_and_an_experiment_that_is_not_there(sweep, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"two runs would be called seed-1, .*\{experiment: NAME, ...\}"):
        sweep("settings: {seed: [1, 2, 1]}\n")
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such file"):
        sweep("settings: {seed: [1, 2]}\n", "experiment: gone.yaml\n")
    with pytest.raises(ConfigError, match="experiment: missing; YAML file of the experiment"):
        sweep("settings: {seed: [1, 2]}\n", "")


@pytest.mark.parametrize(("name", "number", "variants"), [
    ("lr_and_seed", 6, 3), ("gspo_grpo", 6, 2), ("successors", 84, 28), ("successors_moe", 7, 7), ("mixture", 18, 6),
    ("dynamic_sampling", 9, 3), ("staleness", 9, 3),
])  # fmt: skip
def test_a_shipped_sweep_has_as_many_runs_as_its_page_says(name: str, number: int, variants: int) -> None:
    runs = load_sweep(SWEEPS / f"{name}.yaml").runs
    assert (len(runs), len({run.variant for run in runs})) == (number, variants)


def test_every_shipped_sweep_is_looked_at() -> None:
    (mark,) = test_a_shipped_sweep_has_as_many_runs_as_its_page_says.pytestmark
    assert {name for name, *_ in mark.args[1]} == {path.stem for path in SWEEPS.iterdir()}


# ----- the processes

CHILD = """
import json, os, pathlib, signal, sys, time
folder, config, code, resumed = pathlib.Path(sys.argv[1]), *sys.argv[2:]
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.yaml").write_text(config)
(folder / "run.json").write_text('{"run_id": "1"}')
(folder / "metrics.jsonl").write_text('{"step": 1, "val-core/acc/mean@1": 0.5}\\n')
with (folder / "starts").open("a") as file:
    file.write(f"{resumed} {os.environ.get('ASCEND_RT_VISIBLE_DEVICES')} {os.getpid()}\\n")
signal.signal(signal.SIGTERM, lambda number, frame: ((folder / "stopped").touch(), os._exit(130)))
while not (folder.parent / "go").exists():
    time.sleep(0.02)
print("\\n".join(f"line {number}" for number in range(20)))
if code == "0":
    (folder / "summary.json").write_text(json.dumps({"finished": True, "steps": 4}))
sys.exit(int(code.replace("none", "0")))
"""


def child(codes: dict[str, str] | None = None) -> Callable[[SweepRun], list[str]]:
    """A run that waits for the file `go` in the sweep's folder and ends with its code; "none": 0 without a result."""
    return lambda run: ["-c", CHILD, str(run.folder), dump_config(run.config), (codes or {}).get(run.name, "0"),
                        str("resume=auto" in run.arguments())]  # fmt: skip


def starts(run: SweepRun) -> list[list[str]]:
    """(whether it was resumed, its cards, its process id) of each start."""
    path = run.folder / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < give_up, "nothing happened"
        time.sleep(0.02)


def test_a_failed_run_is_named_and_the_others_go_on(sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, ended = sweep(FOUR), []
    found.folder.mkdir(parents=True)
    (found.folder / "go").touch()
    codes = {FOUR_NAMES[1]: "3", FOUR_NAMES[2]: "none"}
    assert run_all(found.runs, [()], command=child(codes), ended=lambda: ended.append(1)) == FOUR_NAMES[1:3]
    assert len(ended) == 4 and [run.is_finished() for run in found.runs] == [True, False, False, True]
    said = capsys.readouterr().out
    assert f"[2/4] {FOUR_NAMES[1]}: begins, output in {found.runs[1].log}\n" in said
    assert f"[2/4] {FOUR_NAMES[1]}: failed with exit code 3; its output ends with:\n    line 12\n" in said
    assert f"[3/4] {FOUR_NAMES[2]}: failed, it ended without a result" in said
    assert f"[4/4] {FOUR_NAMES[3]}: finished in " in said
    again = [run for run in found.runs if not run.is_finished()]
    assert run_all(again, [()], command=child()) == []
    assert [[one[0] for one in starts(run)] for run in found.runs] == [["False"], ["False", "True"],
                                                                        ["False", "True"], ["False"]]  # fmt: skip


def test_jobs_have_cards_of_their_own(sweep) -> None:
    found = sweep(FOUR)
    found.folder.mkdir(parents=True)
    with Running(found.runs, [(0, 3), (1, 2)]):
        wait_for(lambda: starts(found.runs[0]) and starts(found.runs[1]))
        assert [starts(run)[0][1] for run in found.runs[:2]] == ["0,3", "1,2"]
        time.sleep(0.3)
        assert not starts(found.runs[2]), "two at a time"
        (found.folder / "go").touch()
        wait_for(lambda: all(run.is_finished() for run in found.runs))
    assert {starts(run)[0][1] for run in found.runs[2:]} <= {"0,3", "1,2"}


class Running:
    """The runs in a process of their own, which is `kill`ed at the end unless it has ended."""

    def __init__(self, runs: list[SweepRun], jobs: list[tuple[int, ...]]) -> None:
        self.process = multiprocessing.get_context("fork").Process(
            target=run_all, args=(runs, jobs), kwargs={"command": child()}
        )

    def __enter__(self) -> multiprocessing.Process:
        self.process.start()
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_stopped_leaves_no_run_behind_and_goes_on(sweep, number: signal.Signals) -> None:
    found = sweep(FOUR)
    found.folder.mkdir(parents=True)
    with Running(found.runs, [(), ()]) as process:
        wait_for(lambda: starts(found.runs[0]) and starts(found.runs[1]))
        children = [psutil.Process(int(starts(run)[0][2])) for run in found.runs[:2]]
        os.kill(process.pid, number)
        process.join()
        psutil.wait_procs(children, timeout=60)
        assert not any(one.is_running() for one in children)
    is_told = [(run.folder / "stopped").exists() for run in found.runs[:2]]
    assert is_told == [number == signal.SIGINT] * 2, "an interrupt lets runs end in order"
    (found.folder / "go").touch()
    assert run_all(found.runs, [(), ()], command=child()) == []
    assert [[one[0] for one in starts(run)] for run in found.runs] == [["False", "True"]] * 2 + [["False"]] * 2
    assert all(run.is_finished() for run in found.runs)


def test_a_folder_with_other_settings_is_refused_and_a_longer_run_goes_on(sweep) -> None:
    first = sweep(FOUR).runs[0]
    first.folder.mkdir(parents=True)
    (sweep(FOUR).folder / "go").touch()
    assert run_all([first], [()], command=child()) == []
    with pytest.raises(ConfigError, match=r"eval.num_samples: 2, the run has 1"):
        sweep(FOUR.replace("}", ", eval.num_samples: 2}")).runs[0].is_finished()
    assert not sweep(FOUR.replace("max_steps: 4", "max_steps: 6")).runs[0].is_finished(), "more steps are asked for"


# ----- cards


def on_cards(sweep) -> list[SweepRun]:
    """Two runs of four cards each."""
    text = "settings: {seed: [1, 2], device: Ascend, model.dtype: bfloat16}\n"
    return list(sweep(text, f"experiment: {PROJECT}/examples/arithmetic/gspo_4.yaml\n").runs)


def test_jobs_that_need_more_cards_than_are_free_are_refused(sweep) -> None:
    runs = on_cards(sweep)
    assert cards_of_jobs(runs, 2, [0, 1, 2, 3, 5, 6, 7, 8, 9]) == [(0, 1, 2, 3), (5, 6, 7, 8)]
    assert cards_of_jobs(runs, 1, []) == [()], "one at a time has the machine, as `mindgspo run`"
    with pytest.raises(ConfigError, match=r"--jobs 2: runs of 4 cards each need 8, and 7 are free here; .*--jobs 1"):
        cards_of_jobs(runs, 2, list(range(7)))
    with pytest.raises(ConfigError, match=r"and 3 are free here; change the plans"):
        cards_of_jobs(runs, 2, list(range(3)))
    assert cards_of_jobs(sweep(FOUR).runs, 3, []) == [()] * 3, "processes on the CPU"
