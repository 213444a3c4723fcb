"""Runs that are stopped, resumed, repeated, refused or replaced."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from running import PROJECT, command, environment, mindgspo, read_lines, reproducible, succeeded, tree
from thread_ranks import until


def test_a_run_stopped_twice_ends_as_an_uninterrupted_one(finished_run, experiment: Path, stopped_at) -> None:
    root = experiment.parent / "runs" / "tiny"
    # Ctrl-C after the warm-up, before the first step.
    code, output, errors = stopped_at(experiment, root / "checkpoints" / "step_00000000", signal.SIGINT)
    assert code == 130, errors
    assert errors.strip() == "interrupted; what was saved stays, go on with --set resume=auto"
    assert "warm-up    40/40" in output
    # kill -9 after the second step.
    code, output, errors = stopped_at(experiment, root / "checkpoints" / "step_00000002", signal.SIGKILL)
    assert code == -signal.SIGKILL, errors
    assert "resumed at step 0" in output and "warm-up" not in output
    assert not (root / "summary.json").exists()
    # What a run that was killed later, in the middle of a line, would have left beyond its checkpoint.
    for name in ("metrics.jsonl", "samples.jsonl", "validation.jsonl"):
        with (root / name).open("a") as file:
            file.write('{"step": 5, "actor/pg_loss": 9.0}\n{"step": 6, "act')
    done = succeeded("run", experiment, "--set", "resume=auto", cwd=experiment.parent)
    assert "resumed at step" in done.stdout and "warm-up" not in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {root / 'report.html'}"
    for name in ("metrics.jsonl", "samples.jsonl", "validation.jsonl"):
        ours, theirs = read_lines(root / name), read_lines(finished_run.root / name)
        assert reproducible(ours) == reproducible(theirs), name
    weights = Path("export") / "model.safetensors"
    assert (root / weights).read_bytes() == (finished_run.root / weights).read_bytes()
    summary = json.loads((root / "summary.json").read_text())
    whole = json.loads((finished_run.root / "summary.json").read_text())
    clocks = {"seconds", "training_seconds", "tokens_per_second", "peak_rss_mb"}
    assert {key: summary[key] for key in summary.keys() - clocks} == {key: whole[key] for key in whole.keys() - clocks}
    assert summary["training_seconds"] < summary["seconds"] < 600, "seconds are those of the run's processes"


@pytest.fixture
def folder(finished_run, tmp_path: Path) -> Path:
    """A copy of the finished run and its experiment."""
    return shutil.copytree(finished_run.folder, tmp_path / "copy")


def test_a_run_stopped_after_its_last_checkpoint_only_finishes(finished_run, folder: Path) -> None:
    root = folder / "runs" / "tiny"
    for name in ("summary.json", "report.html", "reward.png"):
        (root / name).unlink()
    before = tree(root)
    done = mindgspo("run", folder / "tiny.yaml", "--set", "resume=auto", cwd=folder)
    assert done.returncode == 1, "the copied YAML names other data paths"
    assert "data.train.path: " in done.stderr and tree(root) == before
    config = root / "config.yaml"  # the run's own settings, which name the original data
    succeeded("run", config, "--set", "resume=auto", "--set", f"run_dir={root}", cwd=folder)
    after = tree(root)
    for name in ("metrics.jsonl", "samples.jsonl", "validation.jsonl", "export/model.safetensors"):
        assert after[name] == before[name], name
    assert json.loads(after["summary.json"])["accuracy_after"] == pytest.approx(
        json.loads((finished_run.root / "summary.json").read_text())["accuracy_after"]
    )
    (root / "report.html").unlink()
    succeeded("run", config, "--set", "resume=auto", "--set", f"run_dir={root}", cwd=folder)
    assert (root / "report.html").is_file()


def test_overwrite_moves_the_run_aside_and_another_seed_gives_another_run(finished_run, folder: Path) -> None:
    done = succeeded("run", folder / "tiny.yaml", "--overwrite", "--set", "seed=2", cwd=folder)
    (aside,) = (folder / "runs").glob("tiny.old-*")
    assert f"the former run was moved to {aside}" in done.stdout
    assert tree(aside) == tree(finished_run.root)
    ours = reproducible(read_lines(folder / "runs" / "tiny" / "metrics.jsonl"))
    theirs = reproducible(read_lines(finished_run.root / "metrics.jsonl"))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    assert all(one != other for one, other in zip(ours, theirs, strict=True) if "actor/pg_loss" in one)


def test_a_resumed_run_must_be_the_same_experiment(folder: Path) -> None:
    (folder / "runs" / "tiny" / "summary.json").unlink()
    before = tree(folder)
    arguments = ("--set", "resume=auto", "--set", "rollout.top_k=6", "--set", "logging.groups_per_step=1")
    done = mindgspo("run", folder / "tiny.yaml", *arguments, cwd=folder)
    assert done.returncode == 1
    assert "rollout.top_k: 6, the run has 0" in done.stderr
    assert "groups_per_step" not in done.stderr, "what does not change the computation is free"
    assert tree(folder) == before


@pytest.fixture(scope="module")
def far_step(finished_run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that lies in no run folder, so that nothing but itself can be compared."""
    path = tmp_path_factory.mktemp("far") / "step_00000002"
    shutil.copytree(finished_run.root / "checkpoints" / "step_00000002", path)
    return path


@pytest.mark.parametrize(("overrides", "said"), [
    (("model.intermediate_size=96",), "mlp.down_proj.weight: the model has (32, 96), the file (32, 64)"),
    (("model.num_hidden_layers=3",), "model.layers.2.mlp.down_proj.weight"),
    (("data.train.max_rows=8",), "it was trained on other rows of data.train (10, here 8, with other content"),
    (("trainer.max_steps=1",), "was saved after step 2, the run asks for 1, so there is nothing to train"),
], ids=["shapes", "names", "data", "steps"])  # fmt: skip
def test_a_checkpoint_of_something_else_is_refused_before_a_folder_holds_a_run(
    finished_run, far_step: Path, tmp_path: Path, overrides: tuple[str, ...], said: str
) -> None:
    root = tmp_path / "run"
    done = finished_run.again(f"resume={far_step}", f"run_dir={root}", "warmup=null", *overrides)
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr and str(far_step) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (root / "config.yaml").exists() and not (root / "checkpoints").exists(), "another start may use it"


def test_another_tokenizer_is_refused_also_for_weights_alone(finished_run, far_step: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run.folder / "tokenizer", tmp_path / "tokenizer")
    path = next((tmp_path / "tokenizer").glob("tokenizer_config.json"))
    path.write_text(path.read_text().rstrip() + "\n\n")
    overrides = (f"resume={far_step}", "restore=weights", f"run_dir={tmp_path / 'run'}")
    done = finished_run.again(*overrides, f"tokenizer.path={tmp_path / 'tokenizer'}")
    assert done.returncode == 1
    assert "with another tokenizer" in done.stderr and "tokenizer_config.json: another content" in done.stderr


@pytest.mark.parametrize(("settings", "code", "said"), [
    (("resume=auto",), 0, ("this run is finished", "ROOT/report.html")),
    ((), 1, ("error: ROOT already holds a finished run", "--set resume=auto", "--set run_dir=...", "--overwrite")),
    (("resume=auto", "trainer.max_steps=3"), 1, ("trainer.max_steps: 3, the run has 4",)),
], ids=["says so", "is refused", "fewer steps"])  # fmt: skip
def test_a_finished_run_stays_as_it_is(
    finished_run, settings: tuple[str, ...], code: int, said: tuple[str, ...]
) -> None:
    before = tree(finished_run.folder)
    done = finished_run.again(*settings)
    assert (done.returncode, done.stderr if code == 0 else done.stdout) == (code, "")
    assert all(text.replace("ROOT", str(finished_run.root)) in done.stdout + done.stderr for text in said)
    assert tree(finished_run.folder) == before


def test_another_reward_is_told_and_the_run_goes_on(finished_run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    step = finished_run.root / "checkpoints" / "step_00000004"
    done = finished_run.again(f"resume={step}", f"run_dir={root}", "reward.weights=[0.5]")
    assert done.returncode == 0, done.stderr
    assert "warning: reward.weights: [0.5], the run has [1.0]" in done.stdout
    assert json.loads((root / "summary.json").read_text())["steps"] == 4


def test_weights_alone_begin_a_run_at_step_0_without_a_warm_up(finished_run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    more = ("trainer.max_steps=1", "optimizer.lr=1e-4", "seed=7")  # another experiment
    done = finished_run.again(f"resume={finished_run.root}", "restore=weights", f"run_dir={root}", *more)
    assert done.returncode == 0, done.stderr
    newest = finished_run.root / "checkpoints" / "step_00000004"
    assert f"restore=weights: weights of step 4 from {newest}" in done.stdout
    assert "warm-up " not in done.stdout.replace("without a warm-up", "")
    assert {line["step"] for line in read_lines(root / "metrics.jsonl")} == {0, 1}
    before = read_lines(finished_run.root / "metrics.jsonl")[-1]
    first = read_lines(root / "metrics.jsonl")[0]
    assert first["val-core/acc/mean@1"] == before["val-core/acc/mean@1"], "the same weights"


@pytest.mark.slow
def test_a_sweep_killed_in_the_middle_goes_on_where_it_was(tmp_path: Path) -> None:
    """Two seeds of two learning rates of the quickstart, two steps each."""
    file, root = tmp_path / "rates.yaml", tmp_path / "runs" / "rates"
    warmed_up = PROJECT / "examples/arithmetic/warmed_up"
    file.write_text(f"""
experiment: quickstart
settings:
  optimizer.lr: [1e-5, 5e-5]
  seed: [1, 2]
  warmup: null
  model.path: {warmed_up}
  trainer.max_steps: 2
  trainer.save_every: 1
  data.eval.max_rows: 32
  rollout.prompts_per_step: 8
""")
    names = [f"lr-{rate}_seed-{seed}" for rate in ("1e-05", "5e-05") for seed in (1, 2)]
    process = subprocess.Popen(command("sweep", file), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    try:
        assert until(lambda: (root / names[1] / "checkpoints" / "step_00000001").exists())
    finally:
        process.kill()
        process.wait()
    first = tree(root / names[0])
    done = succeeded("sweep", file, cwd=tmp_path)
    assert "4 runs in runs/rates, 1 of them finished" in done.stdout
    assert [name for name in names if f"{name}: begins" in done.stdout] == names[1:]
    assert "resumed at step" in (root / f"{names[1]}.log").read_text()
    assert tree(root / names[0]) == first
    lines = done.stdout.splitlines()
    assert lines[-1] == "page: runs/rates/comparison.html"
    table = lines[lines.index("") + 2 : -2]
    accuracies = [
        json.loads((root / line.split()[0] / "summary.json").read_text())["accuracy_after"] for line in table[:4]
    ]
    assert {line.split()[0] for line in table[:4]} == set(names) and accuracies == sorted(accuracies, reverse=True)
    assert sorted(line.split(",")[0] for line in table[4:]) == ["lr-1e-05", "lr-5e-05"]
    page = (root / "comparison.html").read_text()
    assert all(name in page for name in names)
    assert "4 of them finished" in succeeded("sweep", file, cwd=tmp_path).stdout
