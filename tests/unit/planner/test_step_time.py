"""Seconds of a step: the roofline by hand, calibration by a run, text and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markdown_pages import tables
from planned_experiments import experiment_of, qwen2, teacher_folder

from mindgspo.cli import main
from mindgspo.config import ExperimentConfig, dump_config, load_config
from mindgspo.errors import ConfigError, RunFolderError
from mindgspo.models.operations import Operations
from mindgspo.planner.rank_work import RankWork, held_bytes
from mindgspo.planner.smallest_change import changed
from mindgspo.planner.time import roofline
from mindgspo.planner.time.estimate import estimate_step
from mindgspo.planner.time.roofline import CARDS, FITTED, FittedRates, Load, phase_loads, phase_seconds
from mindgspo.swap.states import Holding

PROJECT = Path(__file__).resolve().parents[3]
ARITHMETIC = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
QWEN3_32B = PROJECT / "examples" / "dapo_math" / "gspo_qwen3_32b.yaml"
A2 = CARDS["A2"]


# ----- The roofline
def small(**train: int | str) -> ExperimentConfig:
    """8 responses in rows of 192 slots: 64 of prompt and 128 of response."""
    cards = train.get("model_parallel", 1) * train.get("pipeline_stage", 1)
    return experiment_of(qwen2(dtype="bfloat16"), train=train, infer={"data_parallel": cards}, device="Ascend", rows=2,
                         prompt=64, response=128, prompts=2, group=4)  # fmt: skip


def loads_of(experiment: ExperimentConfig, lengths_N: np.ndarray | None = None) -> dict[str, list[Load]]:
    return phase_loads(experiment, A2, np.full(8, 128) if lengths_N is None else lengths_N, 64)


def seconds_of(experiment: ExperimentConfig, lengths_N: np.ndarray | None = None) -> dict[str, float]:
    return phase_seconds(experiment, A2, np.full(8, 128) if lengths_N is None else lengths_N, 64)


def operations_of(experiment: ExperimentConfig, phase: str, lengths_N: np.ndarray | None = None) -> float:
    return sum(load.operations for load in loads_of(experiment, lengths_N)[phase])


def test_seconds_by_hand() -> None:
    """Launches of a training pass are hidden behind longer work, those of a decode step are not."""
    rates = FittedRates(peak_share=0.5, decode_layer=0.1, train_layer=0.2, host=4.0)
    load = Load(operations=2.0, moved=1.0, decode_layers=3, train_layers=10, host_bytes=8, fixed=0.5)
    assert load.seconds(rates) == pytest.approx(2.0 / 0.5 + 1.0 + 3 * 0.1 + 8 / 4.0 + 0.5)
    assert replace(load, train_layers=30).seconds(rates) == pytest.approx(30 * 0.2 + 3 * 0.1 + 8 / 4.0 + 0.5)


def test_training_by_hand() -> None:
    """8 layers: attention has 2 x 256 x 32 x (8 + 4) weights, feed-forward 3 x 256 x 768; a table has 1,024 rows. 8
    samples are 4 micro-batches of 2."""
    experiment = small()
    trunk, head, pair = 2 * 8 * (196_608 + 589_824), 2 * 1024 * 256, 4 * 8 * 8 * 32
    assert Operations.of(experiment.model) == Operations(trunk=trunk, head=head, pair=pair)
    found = loads_of(experiment)
    forward = 8 * (192 * trunk + 128 * head + 192 * 192 / 2 * pair)
    assert found["old log-probs"] == [Load(operations=pytest.approx(forward / A2.peak), train_layers=4 * 8)]
    passes, optimizer = found["update"]
    assert passes == Load(operations=pytest.approx(3 * forward / A2.peak), train_layers=3 * 4 * 8)
    weights = 8 * (196_608 + 589_824 + 2 * 256 + 256 + 2 * 128) + 2 * 1024 * 256 + 256
    assert optimizer == Load(moved=pytest.approx(28 * weights / (A2.memory * roofline.MEMORY_SHARE)))
    assert found["reward, advantages"] == [Load(fixed=8 * roofline.RESPONSE_SECONDS)]
    assert "reference" not in found and "swap" not in found
    assert seconds_of(experiment)["old log-probs"] == pytest.approx(32 * FITTED.train_layer), "so little is launches"


def test_a_swap_moves_what_neighbouring_phases_do_not_share() -> None:
    """By both ways: the cache and the weights of generation once each, the trained weights, gradients and moments once
    around scoring, update and reshard."""
    experiment = changed(
        small(), {"swap.enabled": True, "plans.train.model_parallel": 2, "plans.infer.data_parallel": 2}
    )
    held = held_bytes(RankWork.of(experiment, 0))
    assert held[Holding.ROLLOUT_WEIGHTS] > 0 and held[Holding.REFERENCE_WEIGHTS] == 0
    once = sum(held[each] for each in (Holding.KV_CACHE, Holding.ROLLOUT_WEIGHTS, Holding.ACTOR_WEIGHTS,
                                       Holding.GRADIENTS, Holding.MOMENTS))  # fmt: skip
    assert loads_of(experiment)["swap"] == [Load(host_bytes=2 * once)]
    shared = changed(small(), {"swap.enabled": True})
    held = held_bytes(RankWork.of(shared, 0))
    once = held[Holding.KV_CACHE] + held[Holding.GRADIENTS] + held[Holding.MOMENTS]
    assert loads_of(shared)["swap"] == [Load(host_bytes=2 * once)], "generation reads the trained weights"


def test_generation_by_hand() -> None:
    """One card reads all float32 weights but the input table; the cache has 2 x 8 x 4 x 32 numbers of a token."""
    experiment = changed(small(), {"rollout.slots": 4})
    memory, forward = A2.memory * roofline.MEMORY_SHARE, A2.peak * FITTED.peak_share
    read = 4 * (8 * (196_608 + 589_824 + 2 * 256 + 256 + 2 * 128) + 1024 * 256 + 256)
    trunk, head = 2 * 8 * (196_608 + 589_824), 2 * 1024 * 256
    by_hand = 2 * 128 * (read / memory + 8 * FITTED.decode_layer)  # 8 responses in 4 slots: two rounds
    by_hand += 8 * 128 * (trunk + head) / forward + 2 * 64 * trunk / forward
    by_hand += 8 * 128 * (64 + 64) * (2 * 8 * 4 * 32 * 2) / memory
    found = seconds_of(experiment)
    assert found["generation"] == pytest.approx(by_hand) and "weights" not in found, "one set of weights"
    straggler = seconds_of(changed(experiment, {"rollout.slots": 8}), np.array([16] * 7 + [128]))
    assert straggler["generation"] == pytest.approx(by_hand / 2, rel=0.01), "the longest response decides"
    divided = seconds_of(changed(experiment, {"plans.train.model_parallel": 2, "plans.infer.model_parallel": 2}))
    assert divided["generation"] < found["generation"] and divided["weights"] > 0


def test_what_makes_training_slower_or_faster() -> None:
    def update(**train: int | str) -> float:
        return operations_of(small(**train), "update")

    assert update(recompute="full") == pytest.approx(4 / 3 * update())
    assert update(model_parallel=2) == pytest.approx(update() / 2)
    assert loads_of(small(model_parallel=2))["update"][0].moved > 0, "sums over links are added"
    pipeline = small(pipeline_stage=2, micro_batch_num=2)
    of_rows = [changed(pipeline, {"trainer.samples_per_micro_batch": rows}) for rows in (4, 2)]
    two, four = (operations_of(experiment, "update") for experiment in of_rows)
    assert four < two, "less of the time goes by while the pipeline fills"
    two, four = (loads_of(experiment)["update"][0].train_layers for experiment in of_rows)
    assert (two, four) == (4 * 4 * (2 + 1), 4 * 4 * (4 + 1)), "4 layers, 4 passes, and a micro-batch more to fill"
    short = np.array([16] * 7 + [128])
    assert operations_of(small(), "update", short) < update(), "rows are as long as their longest"


def test_a_reference_and_the_samplers_log_probs() -> None:
    found = seconds_of(changed(small(), {"algorithm.kl.placement": "loss", "algorithm.old_log_probs": "sampler"}))
    assert "old log-probs" not in found and found["reference"] > 0


def test_teachers_are_forward_passes_of_models_of_their_own(tmp_path: Path) -> None:
    paths = [teacher_folder(tmp_path / str(layers), qwen2(num_hidden_layers=layers)) for layers in (8, 16)]

    def found(*teachers: dict[str, str]) -> dict[str, list[Load]]:
        algorithm = {"distillation": {"teachers": teachers}} if teachers else {}
        model = qwen2(dtype="bfloat16")
        return loads_of(experiment_of(model, device="Ascend", rows=2, prompt=64, response=128, prompts=2, group=4,
                                      algorithm=algorithm))  # fmt: skip

    none, ((one,), (two,)) = found(), [found({"path": path})["teachers"] for path in paths]
    assert "teachers" not in none and [one] == none["old log-probs"]
    trunk, pair = 2 * 8 * (196_608 + 589_824), 4 * 8 * 8 * 32  # of eight layers more
    more = 8 * (192 * trunk + 192 * 192 / 2 * pair) / A2.peak
    assert two == Load(operations=pytest.approx(one.operations + more), train_layers=2 * one.train_layers)
    both = found({"path": paths[0]}, {"path": paths[1]}, {"url": "http://10.0.0.2:8000"})
    assert both["teachers"] == [one, two], "a server's time is not known"
    assert found({"url": "http://10.0.0.2:8000"}) == none


def test_servers_generate_beside_training() -> None:
    beside = estimate_step(load_config(QWEN3_32B, ["trainer.schedule=bounded"], check_files=False), card="A3")
    assert beside.cards == 128 and beside.is_overlapped
    longer = max(beside.phases["generation"], beside.phases["update"] + beside.phases["old log-probs"])
    assert longer < beside.seconds < sum(beside.phases.values())


@pytest.mark.parametrize("page", ["planning.md", "planning_cn.md"])
def test_the_constants_of_the_docs_are_those_of_the_code(page: str) -> None:
    text = (PROJECT / "docs" / page).read_text()
    (table,) = (found for found in tables(text) if len(found[0]) == 3 and "msmodeling" in str(found))
    values = [row[1] for row in table[1:]]
    a2, a3 = CARDS["A2"], CARDS["A3"]
    numbers = [
        *(f"{card.peak / 1e12:.1f}" for card in (a2, a3)), f"{a2.memory / 2**40:.1f} TiB/s",
        *(f"{rate / 1e9:.0f} GB/s" for rate in (a3.link, a2.outer)), f"{roofline.MEMORY_SHARE}",
        f"{roofline.LINK_SHARE}", f"{FITTED.peak_share}", f"{1e3 * FITTED.decode_layer:.2f} ms",
        f"{1e3 * FITTED.train_layer:.1f} ms", f"{FITTED.host / 1e9:.2f} GB/s",
        f"{1e3 * roofline.RESPONSE_SECONDS:.1f} ms",
    ]  # fmt: skip
    assert [number for number in numbers if not any(number in value for value in values)] == []


# ----- A run that calibrates
ROW = {"timing_s/gen": 2.0, "timing_s/reward": 0.25, "timing_s/adv": 0.25, "timing_s/old_log_prob": 1.0,
       "timing_s/update_actor": 4.0, "timing_s/update_weights": 0.5, "timing_s/step": 9.0,
       "response_length/mean": 20.0, "response_length/max": 22.0, "prompt_length/mean": 25.2}  # fmt: skip


def run_folder(folder: Path, *overrides: str, rows: int = 4, **changes: float) -> Path:
    """A run of the quickstart whose first step compiled."""
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(load_config(ARITHMETIC, overrides, check_files=False)))
    lines = [{"step": step, **ROW, **changes} for step in range(1, rows + 1)]
    lines[0] |= {"timing_s/step": 90.0, "timing_s/gen": 60.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_tells_its_own_seconds_and_scales_to_others(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    own = estimate_step(load_config(ARITHMETIC, check_files=False), rates=run)
    assert own.seconds == pytest.approx(9.0), "without the first step"
    assert own.phases == pytest.approx({"generation": 2.0, "reward, advantages": 0.5, "old log-probs": 1.0,
                                        "update": 4.0, "weights": 0.5, "the rest": 1.0})  # fmt: skip
    assert own.response_tokens == pytest.approx(20, abs=0.1)
    twice = estimate_step(load_config(ARITHMETIC, ["rollout.prompts_per_step=64"], check_files=False), rates=run)
    assert twice.phases["reward, advantages"] == pytest.approx(1.0)
    assert twice.phases["update"] == pytest.approx(8.0, rel=0.05) and twice.phases["the rest"] == 1.0


def test_runs_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    experiment = load_config(ARITHMETIC, check_files=False)
    with pytest.raises(RunFolderError, match="not every step has timing_s/gen"):
        estimate_step(experiment, rates=run_folder(tmp_path / "partial", **{"timing_s/gen": 0.0}))
    with pytest.raises(RunFolderError, match="its responses came from servers"):
        estimate_step(experiment, rates=run_folder(tmp_path / "served", "rollout.servers.urls=[http://a:1]"))
    with pytest.raises(ConfigError, match="ran on device CPU, this experiment has device Ascend"):
        estimate_step(load_config(QWEN3_32B, check_files=False), rates=run_folder(tmp_path / "cpu"))


# ----- As it is printed
def test_a_plan_shows_time_and_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(QWEN3_32B), "--card", "A3", "--set", "trainer.max_steps=100"]) == 0
    text = capsys.readouterr().out
    assert "seconds of a step on 64 dies of Atlas A3 (910C): 64 prompts x 16 responses of 7,3" in text
    for words in ("  generation ", "  old log-probs ", "  update ", "  weights ", "  together "):
        assert words in text
    assert "tokens per second and card: " in text and "100 steps: " in text and "Never measured with this suite" in text


def test_a_plan_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--rates", str(run_folder(tmp_path / "run"))]
    assert main(["plan", str(ARITHMETIC), "--json", "--memory-gb", "16", *rates]) == 0
    found = json.loads(capsys.readouterr().out)
    (memory,), time = found["memory"], found["time"]
    assert memory["fits"] and memory["phase"] == "save" and memory["smallest_change"] == {}
    assert memory["needed"] == max(memory["levels"]["swap off"].values()) <= memory["capacity"] == 16 << 30
    assert time["seconds"] == pytest.approx(9.0) and time["card_hours"] == pytest.approx(40 * 9.0 / 3600)
    assert main(["plan", str(ARITHMETIC), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"] is None, "nothing is known about the machine"


_OF_CONFIG_JSON = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                   "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
                   "tie_word_embeddings")  # fmt: skip


def test_a_plan_needs_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither data nor weights: where model.path holds config.json alone, and where it does not exist."""
    for path in (tmp_path / "model", tmp_path / "nothing"):
        if path.name == "model":
            path.mkdir()
            model = load_config(PROJECT / "examples/gsm8k/gspo_qwen2_5_7b.yaml", check_files=False).model
            sizes = {name: getattr(model, name) for name in type(model).model_fields if name in _OF_CONFIG_JSON}
            config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", **sizes}
            (path / "config.json").write_text(json.dumps(config))
        arguments = ["--set", f"model.path={path}", "--set", f"tokenizer.path={path}"]
        assert main(["plan", str(PROJECT / "examples/gsm8k/gspo_qwen2_5_7b.yaml"), *arguments]) == 0
        assert "card-hours" in capsys.readouterr().out
