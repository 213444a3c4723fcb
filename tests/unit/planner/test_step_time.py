"""Seconds of a step: the roofline by hand, the steps of docs/planning.md, calibration by a run, text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from markdown_pages import tables
from planned_experiments import QWEN2_5_7B, experiment_of, qwen2, teacher_folder

from mindgspo.cli import main
from mindgspo.config import ExperimentConfig, dump_config, load_config
from mindgspo.errors import ConfigError, RunFolderError
from mindgspo.models.operations import Operations
from mindgspo.planner.smallest_change import changed
from mindgspo.planner.time import roofline
from mindgspo.planner.time.estimate import StepEstimate, estimate_step, response_lengths
from mindgspo.planner.time.roofline import CARDS, phase_seconds

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


def seconds_of(experiment: ExperimentConfig, lengths_N: np.ndarray | None = None) -> dict[str, float]:
    return phase_seconds(experiment, A2, np.full(8, 128) if lengths_N is None else lengths_N, 64)


def test_training_by_hand() -> None:
    """8 layers: attention has 2 x 256 x 32 x (8 + 4) weights, feed-forward 3 x 256 x 768; a table has 1,024 rows."""
    experiment = small()
    trunk, head, pair = 2 * 8 * (196_608 + 589_824), 2 * 1024 * 256, 4 * 8 * 8 * 32
    assert Operations.of(experiment.model) == Operations(trunk=trunk, head=head, pair=pair)
    found = seconds_of(experiment)
    forward = 8 * (192 * trunk + 128 * head + 192 * 192 / 2 * pair)
    assert found["old log-probs"] == pytest.approx(forward / (A2.peak * roofline.FORWARD_SHARE))
    weights = 8 * (196_608 + 589_824 + 2 * 256 + 256 + 2 * 128) + 2 * 1024 * 256 + 256
    optimizer = 28 * weights / (A2.memory * roofline.MEMORY_SHARE)
    assert found["update"] == pytest.approx(3 * forward / (A2.peak * roofline.UPDATE_SHARE) + optimizer)
    assert found["reward, advantages"] == pytest.approx(8 * roofline.RESPONSE_SECONDS) and "reference" not in found


def test_generation_by_hand() -> None:
    """One card reads all float32 weights but the input table; the cache has 2 x 8 x 4 x 32 numbers of a token."""
    experiment = changed(small(), {"rollout.slots": 4})
    memory, forward = A2.memory * roofline.MEMORY_SHARE, A2.peak * roofline.FORWARD_SHARE
    read = 4 * (8 * (196_608 + 589_824 + 2 * 256 + 256 + 2 * 128) + 1024 * 256 + 256)
    trunk, head = 2 * 8 * (196_608 + 589_824), 2 * 1024 * 256
    by_hand = 2 * 128 * (read / memory + 8 * roofline.LAYER_SECONDS)  # 8 responses in 4 slots: two rounds
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
        return seconds_of(small(**train))["update"]

    assert update(recompute="full") > 1.2 * update()
    assert update() / 2 < update(model_parallel=2), "sums over links are added"
    pipeline = small(pipeline_stage=2, micro_batch_num=2)
    two, four = (seconds_of(changed(pipeline, {"trainer.samples_per_micro_batch": rows}))["update"] for rows in (4, 2))
    assert four < two, "less of the time goes by while the pipeline fills"
    assert seconds_of(small(), np.array([16] * 7 + [128]))["update"] < update(), "rows are as long as their longest"


def test_a_reference_and_the_samplers_log_probs() -> None:
    found = seconds_of(changed(small(), {"algorithm.kl.placement": "loss", "algorithm.old_log_probs": "sampler"}))
    assert "old log-probs" not in found and found["reference"] > 0


def test_teachers_are_forward_passes_of_models_of_their_own(tmp_path: Path) -> None:
    paths = [teacher_folder(tmp_path / str(layers), qwen2(num_hidden_layers=layers)) for layers in (8, 16)]

    def found(*teachers: dict[str, str]) -> dict[str, float]:
        algorithm = {"distillation": {"teachers": teachers}} if teachers else {}
        model = qwen2(dtype="bfloat16")
        return seconds_of(experiment_of(model, device="Ascend", rows=2, prompt=64, response=128, prompts=2, group=4,
                                        algorithm=algorithm))  # fmt: skip

    none, (one, two) = found(), [found({"path": path})["teachers"] for path in paths]
    assert "teachers" not in none and one == pytest.approx(none["old log-probs"])
    trunk, pair = 2 * 8 * (196_608 + 589_824), 4 * 8 * 8 * 32  # of eight layers more
    more = 8 * (192 * trunk + 192 * 192 / 2 * pair) / (A2.peak * roofline.FORWARD_SHARE)
    assert two == pytest.approx(one + more)
    both = found({"path": paths[0]}, {"path": paths[1]}, {"url": "http://10.0.0.2:8000"})
    assert both["teachers"] == pytest.approx(one + two), "a server's time is not known"
    assert found({"url": "http://10.0.0.2:8000"}) == none


def test_servers_generate_beside_training() -> None:
    beside = estimate_step(load_config(QWEN3_32B, ["trainer.schedule=bounded"], check_files=False), card="A3")
    assert beside.cards == 128 and beside.is_overlapped
    longer = max(beside.phases["generation"], beside.phases["update"] + beside.phases["old log-probs"])
    assert longer < beside.seconds < sum(beside.phases.values())


# ----- The published steps
def published_32b() -> StepEstimate:
    """As it was run: 16 replicas with sequences over 4 dies, samples in rows of 22,528 tokens."""
    settings = {"plans.train.data_parallel": 16, "plans.train.model_parallel": 1, "plans.train.pipeline_stage": 1,
                "plans.train.context_parallel": 4, "plans.train.micro_batch_num": 1,
                "plans.train.use_seq_parallel": False, "trainer.samples_per_micro_batch": None,
                "trainer.max_tokens_per_micro_batch": 22528, "trainer.packing": True}  # fmt: skip
    return estimate_step(changed(load_config(QWEN3_32B, check_files=False), settings), card="A3")


def published_7b() -> tuple[float, float]:
    """Seconds of a step, and tokens per second and card, of GMPO on 4 cards: 256 prompts x 2 responses of up to 1,024
    tokens, 2 updates, a KL term; 451 tokens per sample."""
    experiment = experiment_of(
        QWEN2_5_7B, train={"model_parallel": 4, "recompute": "full"}, infer={"data_parallel": 4}, device="Ascend",
        prompt=512, response=1024, slots=512, group=2, prompts=256,
        algorithm={"name": "gmpo", "kl": {"placement": "loss"}},
    )  # fmt: skip
    settings = {"trainer.prompts_per_mini_batch": 128, "trainer.samples_per_micro_batch": None,
                "trainer.max_tokens_per_micro_batch": 16384, "trainer.packing": True}  # fmt: skip
    experiment = changed(experiment, settings)
    seconds = sum(phase_seconds(experiment, A2, response_lengths(experiment, 321, 1024), 130).values())
    return seconds, 512 * 451.6 / seconds / 4


@pytest.mark.parametrize("page", ["planning.md", "planning_cn.md"])
def test_the_tables_of_the_docs_are_what_is_estimated(page: str) -> None:
    """The fitted step within 1 % of what was published, and how far the other one is off."""
    found = tables((PROJECT / "docs" / page).read_text())
    (of_32b,) = (table for table in found if len(table[0]) == 4 and "1,738" in str(table))
    (of_7b,) = (table for table in found if len(table[0]) == 4 and "238.8" in str(table))
    as_run, as_shipped = published_32b(), estimate_step(load_config(QWEN3_32B, check_files=False), card="A3")
    phases = ["generation", "old log-probs", "update", "weights"]
    for (_, published, *cells), phase in zip(of_32b[1:], [*phases, None], strict=True):
        own = as_run.seconds if phase is None else as_run.phases[phase]
        assert own == pytest.approx(float(published.replace(",", "")), rel=0.01)
        other = as_shipped.seconds if phase is None else as_shipped.phases[phase]
        assert cells == [f"{own:,.0f}", f"{other:,.0f}"], phase
    seconds, speed = published_7b()
    assert of_7b[1][2:] == [f"{seconds:,.0f}", f"{242.1354 / seconds:.2f}"]
    assert of_7b[2][2:] == [f"{speed:,.0f}", f"{speed / 238.7716:.2f}"]


@pytest.mark.parametrize("page", ["planning.md", "planning_cn.md"])
def test_the_constants_of_the_docs_are_those_of_the_code(page: str) -> None:
    text = (PROJECT / "docs" / page).read_text()
    (table,) = (found for found in tables(text) if len(found[0]) == 3 and "msmodeling" in str(found))
    values = [row[1] for row in table[1:]]
    a2, a3 = CARDS["A2"], CARDS["A3"]
    numbers = [
        *(f"{card.peak / 1e12:.1f}" for card in (a2, a3)), f"{a2.memory / 2**40:.1f} TiB/s",
        *(f"{rate / 1e9:.0f} GB/s" for rate in (a3.link, a2.outer)), f"{roofline.MEMORY_SHARE}",
        f"{roofline.LINK_SHARE}", f"{roofline.FORWARD_SHARE}", f"{roofline.UPDATE_SHARE}",
        f"{1e3 * roofline.LAYER_SECONDS:.2f} ms", f"{roofline.WEIGHTS_RATE / 1e9:.2f} GB/s",
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
    assert "tokens per second and card: " in text and "100 steps: " in text and "Not measured with this suite" in text


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
