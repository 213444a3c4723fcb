"""`mindgspo run` on a tiny experiment, as a user starts it: what the run folder holds and what is printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from running import mindgspo, read_lines, succeeded, tree

from mindgspo.config import config_mapping, load_config
from mindgspo.metrics import unknown_names
from mindgspo.metrics.glossary import glossary_name, metrics
from mindgspo.tensor_files.writer import read_safetensors

# KL, dual clip, correction, experts, schedules, the filter, several ranks and several samples are not used by the run.
UNUSED = re.compile(
    r"actor/(kl.*|opsm_masked_seq|pg_clipfrac_lower|updates_skipped)|critic/(kl|reference_.*)|"
    r"(curriculum|distillation|env|lora|train-aux|train-core)/.*|actor/distillation_kl|training/exact_logprobs_tokens|"
    r"perf/(cpu_memory_used_max_gb|max_memory_allocated_gb|mfu/actor|reshard_mb)|reward/extra/.*|"
    r"rollout_corr/(weight_.*|ess|clipped_share)|"
    r"(router|sampling|schedule|staleness)/.*|samples/(begun|dropped.*|earlier|expired|filtered/.*|kept|waiting)|"
    r"val-core/<source>/(acc/(maj|pass)|reward/best)@<n>"
)


def test_the_run_folder_holds_what_is_promised(finished_run) -> None:
    root = finished_run.root
    assert finished_run.output.splitlines()[-1] == f"report: {root / 'report.html'}"
    lines = {"metrics.jsonl", "samples.jsonl", "validation.jsonl"}
    promised = {"config.yaml", "summary.json", "environment.jsonl", "reward.png", "report.html", "samples.html"}
    assert {path.name for path in root.iterdir()} == (
        lines | promised | {"checkpoints", "export", "data", "run.json", ".lock"}
    )
    assert {path.name for path in (root / "checkpoints").iterdir()} == {"step_00000002", "step_00000004"}
    assert (root / "reward.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    page = (root / "report.html").read_text(encoding="utf-8")
    assert "Held-out accuracy" in page and "data:image/png;base64," in page
    saved = load_config(root / "config.yaml")
    assert config_mapping(saved) == config_mapping(load_config(finished_run.config))
    assert (saved.algorithm.clip_low, saved.algorithm.clip_high) == (3e-4, 4e-4)


def test_metrics_have_known_names_and_one_training_line_per_step(finished_run) -> None:
    lines = read_lines(finished_run.root / "metrics.jsonl")
    assert unknown_names(key for line in lines for key in line) == []
    seen = {glossary_name(key) for line in lines for key in line}
    assert [name for name in metrics().keys() - seen if not UNUSED.fullmatch(name)] == [], "declared and not there"
    training = [line for line in lines if "actor/pg_loss" in line]
    assert [line["step"] for line in training] == [1, 2, 3, 4]
    assert [line["step"] for line in lines if "val-core/openai/gsm8k/acc/mean@1" in line] == [0, 2, 4]
    for line in training:
        assert line["samples/generated"] == 16 == line["samples/trained"] + line["samples/filtered"]
        assert line["rollout/prefill_calls"] == 4, "siblings share one prefill"
        assert line["actor/updates"] == 2
        assert line["actor/first_ratio_error_max"] < 1e-5
        assert line["training/rollout_logprob_diff_max"] < 1e-4
        assert line["actor/entropy"] > 0
    assert [line["training/updates"] for line in training] == [2, 4, 6, 8]
    assert [line["training/epoch"] for line in training] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    # Without unequal rewards nothing is trained, and other tests of this folder would show nothing.
    assert all(line["actor/grad_norm"] > 0 for line in training)


def test_the_warm_up_leaves_its_last_figures(finished_run) -> None:
    (line,) = [line for line in read_lines(finished_run.root / "metrics.jsonl") if "sft/loss" in line]
    assert (line["step"], line["sft/updates"], line["sft/accuracy"]) == (0, 40, 0.0)
    assert 0 < line["sft/loss"] < 1, "untrained it is ln(384) = 5.95"
    assert "warm-up    20/40" in finished_run.output


def test_samples_tell_every_logged_response(finished_run) -> None:
    lines = read_lines(finished_run.root / "samples.jsonl")
    assert [line["step"] for line in lines] == [step for step in (1, 2, 3, 4) for _ in range(2 * 4)]
    for line in lines:
        assert line["prompt"].startswith("<|im_start|>user\nTom has ")
        assert line["score"] == (1.0 if line["verdict"] == "correct" else 0.0)
        assert (line["extracted"] == line["answer"]) == (line["verdict"] == "correct")
        assert 1 <= line["length"] <= 8
        assert line["response"].endswith("<|im_end|>") == (line["finish_reason"] == "stop")


def test_answers_to_held_out_problems_are_written_down_and_every_evaluation_ends_in_a_verdict(finished_run) -> None:
    lines = read_lines(finished_run.root / "validation.jsonl")
    assert [line["step"] for line in lines] == [step for step in (0, 2, 4) for _ in range(6 * 3)]
    assert [line["sample"] for line in lines[:18]] == ["greedy"] * 6 + [0, 1] * 6
    assert {line["set"] for line in lines} == {"eval"}
    correct = dict.fromkeys((0, 2, 4), 0)
    for line in lines:
        correct[line["step"]] += line["sample"] == "greedy" and line["verdict"] == "correct"
    evaluations = [line for line in read_lines(finished_run.root / "metrics.jsonl") if "val-core/acc/mean@1" in line]
    accuracies = {line["step"]: line["val-core/acc/mean@1"] for line in evaluations}
    assert accuracies == {step: found / 6 for step, found in correct.items()}
    changes = [line.get("val-core/acc/change") for line in evaluations]
    assert changes[0] is None
    assert changes[1:] == pytest.approx([accuracies[step] - accuracies[0] for step in (2, 4)])
    said = [line for line in finished_run.output.splitlines() if line.startswith("evaluation at step")]
    assert [line.split(":")[0] for line in said] == [f"evaluation at step {step}" for step in (0, 2, 4)]
    assert all("points since the first (95 % interval" in line for line in said[1:])
    summary = json.loads((finished_run.root / "summary.json").read_text())
    best = max(accuracies.values())
    assert (summary["best_metric"], summary["best_value"]) == ("val-core/acc/mean@1", best)
    assert summary["best_step"] == min(step for step, value in accuracies.items() if value == best)
    assert f"best {best:.1%}" in said[-1]


def test_the_summary_agrees_with_the_metrics(finished_run) -> None:
    summary = json.loads((finished_run.root / "summary.json").read_text())
    lines = read_lines(finished_run.root / "metrics.jsonl")
    accuracies = [line[key] for line in lines for key in line if key == "val-core/openai/gsm8k/acc/mean@1"]
    assert summary["finished"] is True
    assert (summary["accuracy_before"], summary["accuracy_after"]) == (accuracies[0], accuracies[-1])
    assert (summary["steps"], summary["updates"], summary["eval_problems"], summary["seed"]) == (4, 8, 6, 1)
    assert summary["tokens"] == sum(line.get("perf/total_num_tokens", 0) for line in lines)
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / summary["training_seconds"])
    assert 0 < summary["training_seconds"] < summary["seconds"] < 3600
    assert summary["peak_rss_mb"] > 100


def test_the_run_is_judged_line_by_line_by_a_target_file(finished_run, tmp_path: Path) -> None:
    lines = [line for line in read_lines(finished_run.root / "metrics.jsonl") if line["step"] in (2, 3)]
    mean = sum(line.get("response_length/mean", 0.0) for line in lines) / 2
    target = tmp_path / "target.yaml"
    target.write_text(
        "run: itself\nsource: metrics.jsonl\nsteps: [2, 3]\nmetrics:\n"
        f"  response_length/mean: {{value: {mean!r}, below: 0, above: 0}}\n"
        "  actor/updates: {value: 4, below_percent: 10}\n"
        "  perf/max_memory_allocated_gb: {value: 1.0, above: 1, over: last}\n"
    )
    done = mindgspo("compare", finished_run.root, "--target", target, cwd=tmp_path)
    verdicts = [line.split("  ")[-1].strip() for line in done.stdout.splitlines()]
    assert done.returncode == 1 and done.stderr == "", done.stderr
    assert verdicts[2:] == ["pass", "FAIL", "FAIL: not recorded", "1 of 3 metrics pass"], done.stdout


def test_the_export_is_the_last_checkpoint_and_loads_again(finished_run, cpu_runtime: None) -> None:
    from mindgspo.config.huggingface_config import read_model_section
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import load_huggingface
    from mindgspo.rollout.weight_transfer import weights_as_numpy

    export = finished_run.root / "export"
    section = read_model_section(export)
    model = build_model(section)
    load_huggingface(model, section, export)
    saved = read_safetensors(export)
    before, after = (
        read_safetensors(finished_run.root / f"checkpoints/step_0000000{step}/parameters.safetensors")
        for step in (2, 4)
    )
    assert saved.keys() == after.keys()
    assert all(np.array_equal(saved[name], after[name]) for name in saved)
    assert any(not np.array_equal(saved[name], before[name]) for name in saved), "nothing was trained"
    assert all(np.array_equal(array, saved[name]) for name, array in weights_as_numpy(model, section).items())


def test_sft_runs_the_warm_up_alone_on_several_held_out_sets(finished_run, experiment: Path) -> None:
    """The same held-out rows as the whole run's, under a name, and others that are too hard."""
    sets = "{held: {format: gsm8k, path: held_out.jsonl}, sums: {format: arithmetic, split: test, max_rows: 10}}"
    best = ("--set", "eval.best_metric=val-core/held/acc/mean@2", "--set", "eval.logged_problems=1")
    done = succeeded(
        "sft", experiment, "--set", "data.eval=null", "--set", f"data.eval={sets}", *best, cwd=experiment.parent
    )
    root = experiment.parent / "runs" / "tiny-sft"
    assert done.stdout.splitlines()[-1] == f"report: {root / 'report.html'}"
    summary = json.loads((root / "summary.json").read_text())
    whole = json.loads((finished_run.root / "summary.json").read_text())
    assert (summary["algorithm"], summary["steps"], summary["updates"]) == ("sft", 0, 0)
    before, after = [line for line in read_lines(root / "metrics.jsonl") if "val-core/held/acc/mean@1" in line]
    assert before["val-core/held/acc/mean@1"] == before["val-core/sums/acc/mean@1"] == 0
    assert after["val-core/held/acc/mean@1"] == whole["accuracy_before"] > after["val-core/sums/acc/mean@1"] == 0
    assert after["val-core/acc/mean@1"] == summary["accuracy_after"] == pytest.approx(6 / 16 * whole["accuracy_before"])
    assert summary["best_value"] == after["val-core/held/acc/mean@2"]
    assert "warn: none of the 10 problems of sums is solved" in done.stdout
    logged = [(line["set"], line["prompt_index"]) for line in read_lines(root / "validation.jsonl")]
    assert logged == 2 * (3 * [("held", 0)] + 3 * [("sums", 0)])
    assert (root / "export" / "model.safetensors").is_file()
    assert (root / "reward.png").is_file()


def test_the_last_checkpoint_converts_to_the_export(finished_run, tmp_path: Path) -> None:
    checkpoint = finished_run.root / "checkpoints" / "step_00000004"
    succeeded("convert", "weights", checkpoint, "out", cwd=tmp_path)
    exported, converted = tree(finished_run.root / "export"), tree(tmp_path / "out")
    assert exported.keys() == converted.keys()
    # The marks of ownership differ: a run may replace its own export, and nothing else.
    assert {name for name in exported if exported[name] != converted[name]} == {"mindgspo_export.json"}


@pytest.mark.slow
def test_a_run_in_bfloat16_passes_its_own_checks(experiment: Path) -> None:
    """Sampler and trainer round alike, so the checks of float32 hold; and small updates are not lost to rounding."""
    sets = ["model.dtype=bfloat16", "trainer.max_steps=2", "algorithm.kl={placement: loss, coef: 0.01}"]
    succeeded("run", experiment, *(word for one in sets for word in ("--set", one)), cwd=experiment.parent)
    root = experiment.parent / "runs" / "tiny"
    assert load_config(root / "config.yaml").rollout.cache_dtype == "bfloat16"
    training = [line for line in read_lines(root / "metrics.jsonl") if "actor/pg_loss" in line]
    assert [line["step"] for line in training] == [1, 2]
    for line in training:
        assert line["training/rollout_logprob_diff_max"] == line["actor/first_ratio_error_max"] == 0.0
        assert line["actor/grad_norm"] > 0
    for name, array in read_safetensors(next((root / "export").glob("*.safetensors"))).items():
        assert array.dtype == np.float32, name
        if array.ndim > 1:
            assert (array.view(np.uint32) & 0xFFFF).any(), f"{name}: trained weights are not rounded"
