"""What a step costs: the roofline by hand, the steps of docs/planning.md, text and JSON of `mindgspo plan`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from markdown_pages import tables
from planned_experiments import QWEN2_5_7B, experiment_of, qwen2

from mindgspo.cli import main
from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import ConfigError
from mindgspo.models.operations import Operations
from mindgspo.planner import roofline
from mindgspo.planner.cost import StepCost, step_cost
from mindgspo.planner.lengths import NAMED, Lognormal
from mindgspo.planner.probe import Probe
from mindgspo.planner.rates import speeds_of
from mindgspo.planner.roofline import CARDS, card_of, decode_rates, training_seconds
from mindgspo.planner.smallest_change import changed

PROJECT = Path(__file__).resolve().parents[3]
ARITHMETIC = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
QWEN3_32B = PROJECT / "examples" / "dapo_math" / "gspo_qwen3_32b.yaml"
A2 = CARDS["A2"]


# ----- The roofline
def small(**train: int | str) -> ExperimentConfig:
    """8 responses in rows of 192 slots: 64 of prompt and 128 of response."""
    return experiment_of(
        qwen2(dtype="bfloat16"), train=train, device="Ascend", rows=2, prompt=64, response=128, prompts=2, group=4
    )


def test_training_by_hand() -> None:
    """8 layers: attention has 2 x 256 x 32 x (8 + 4) weights, feed-forward 3 x 256 x 768; a table has 1,024 rows."""
    experiment = small()
    trunk, head, pair = 2 * 8 * (196_608 + 589_824), 2 * 1024 * 256, 4 * 8 * 8 * 32
    assert Operations.of(experiment.model) == Operations(trunk=trunk, head=head, pair=pair)
    found = training_seconds(experiment, A2, np.full(8, 128), 64)
    forward = 8 * (192 * trunk + 128 * head + 192 * 192 / 2 * pair)
    assert found["old log-probs"] == pytest.approx(forward / (A2.peak * roofline.FORWARD_SHARE))
    weights = 8 * (196_608 + 589_824 + 2 * 256 + 256 + 2 * 128) + 2 * 1024 * 256 + 256
    optimizer = 28 * weights / (A2.memory * roofline.MEMORY_SHARE)
    assert found["update"] == pytest.approx(3 * forward / (A2.peak * roofline.UPDATE_SHARE) + optimizer)
    assert found["reward, advantages"] == pytest.approx(8 * roofline.RESPONSE_SECONDS) and "reference" not in found


def test_what_makes_training_slower_or_faster() -> None:
    def update(**train: int | str) -> float:
        return training_seconds(small(**train), A2, np.full(8, 128), 64)["update"]

    assert update(recompute="full") > 1.2 * update()
    assert update() / 2 < update(model_parallel=2), "sums over links are added"
    pipeline = small(pipeline_stage=2, micro_batch_num=2)
    two, four = (
        training_seconds(changed(pipeline, {"trainer.samples_per_micro_batch": rows}), A2, np.full(8, 128), 64)[
            "update"
        ]
        for rows in (4, 2)
    )
    assert four < two, "less of the time goes by while the pipeline fills"
    short_and_long = np.array([16] * 7 + [128])
    assert training_seconds(small(), A2, short_and_long, 64)["update"] < update(), "rows are as long as their longest"


def test_a_reference_and_the_samplers_log_probs() -> None:
    kl = {"algorithm.kl.placement": "loss", "algorithm.old_log_probs": "sampler"}
    found = training_seconds(changed(small(), kl), A2, np.full(8, 128), 64)
    assert "old log-probs" not in found and found["reference"] > 0


def test_decoding_by_hand() -> None:
    """One card reads all float32 weights but the input table; the cache has 2 x 8 x 4 x 32 numbers of a token."""
    experiment = small()
    rates = decode_rates(experiment, A2)
    read = 4 * (8 * (196_608 + 589_824 + 2 * 256 + 256 + 2 * 128) + 1024 * 256 + 256)
    memory = A2.memory * roofline.MEMORY_SHARE
    assert rates.decode_step == pytest.approx(read / memory + 8 * roofline.LAYER_SECONDS)
    assert rates.decode_context == pytest.approx(2 * 8 * 4 * 32 * 2 / memory)
    assert rates.push_weights == 0, "one set of weights"
    both = decode_rates(changed(experiment, {"plans.train.model_parallel": 2, "plans.infer.model_parallel": 2}), A2)
    assert both.decode_step < rates.decode_step and both.push_weights > 0


def test_a_card_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--card: no card 'A1' \(A2, A3\)$"):
        card_of("A1")


# ----- What was published
def published_32b() -> StepCost:
    """As it was run: 16 replicas with sequences over 4 dies, samples in rows of 22,528 tokens."""
    settings = {"plans.train.data_parallel": 16, "plans.train.model_parallel": 1, "plans.train.pipeline_stage": 1,
                "plans.train.context_parallel": 4, "plans.train.micro_batch_num": 1,
                "plans.train.use_seq_parallel": False, "trainer.samples_per_micro_batch": None,
                "trainer.max_tokens_per_micro_batch": 22528, "trainer.packing": True}  # fmt: skip
    return step_cost(changed(load_config(QWEN3_32B, check_files=False), settings), card="A3")


def published_7b(folder: Path) -> StepCost:
    """GMPO on 4 cards: 256 prompts x 2 responses of up to 1,024 tokens, 2 updates, a KL term; 451 tokens per sample."""
    experiment = experiment_of(
        QWEN2_5_7B, train={"model_parallel": 4, "recompute": "full"}, infer={"data_parallel": 4}, device="Ascend",
        prompt=512, response=1024, slots=512, group=2, prompts=256,
        algorithm={"name": "gmpo", "kl": {"placement": "loss"}},
    )  # fmt: skip
    settings = {"trainer.prompts_per_mini_batch": 128, "trainer.samples_per_micro_batch": None,
                "trainer.max_tokens_per_micro_batch": 16384, "trainer.packing": True}  # fmt: skip
    shape = {**NAMED["qwen3_32b_dapo"], "median": 260.0}
    drawn = Lognormal(**shape, max_new_tokens=1024, note="").draw(np.random.default_rng(0), 4000, 1)
    (folder / "lengths.txt").write_text("\n".join(map(str, drawn.ravel().tolist())))
    return step_cost(
        changed(experiment, settings), lengths=str(folder / "lengths.txt"), rates=("prompt_tokens=130",), card="A2"
    )


PUBLISHED_32B = {"generation": 1306.6, "old log-probs": 116.2, "update": 303.9, "weights": 8.7}


def test_the_fitted_step_is_reproduced() -> None:
    """By phase and in total; the slowest replica generated for 1,306.6 s, all of it with weights took 1,315.2 s."""
    cost = published_32b()
    for phase, seconds in PUBLISHED_32B.items():
        assert cost.phases[phase] == pytest.approx(seconds, rel=0.25), phase
    assert cost.seconds == pytest.approx(1738, rel=0.25) and cost.cards == 64
    assert cost.tokens_per_card == pytest.approx(69.4, rel=0.25) and cost.where == "64 dies of Atlas A3 (910C)"


@pytest.mark.parametrize("page", ["planning.md", "planning_cn.md"])
def test_the_tables_of_the_docs_are_what_is_forecast(page: str, tmp_path: Path) -> None:
    """Forecast beside published, in seconds and tokens per second and card."""
    found = tables((PROJECT / "docs" / page).read_text())
    (of_32b,) = (table for table in found if len(table[0]) == 4 and "1,738" in str(table))
    (of_7b,) = (table for table in found if len(table[0]) == 4 and "238.8" in str(table))
    forecasts = published_32b()
    own = step_cost(load_config(QWEN3_32B, check_files=False), card="A3")
    phases = ["generation", "old log-probs", "update", "weights"]
    for (_, _, as_run, as_planned), phase in zip(of_32b[1:], [*phases, None], strict=False):
        for text, cost in ((as_run, forecasts), (as_planned, own)):
            assert text == f"{cost.seconds if phase is None else cost.phases[phase]:,.0f}", (page, phase)
    cost = published_7b(tmp_path)
    assert of_7b[1][2:] == [f"{cost.seconds:,.0f}", f"{242.1354 / cost.seconds:.2f}"]
    assert of_7b[2][2:] == [f"{cost.tokens_per_card:,.0f}", f"{cost.tokens_per_card / 238.7716:.2f}"]


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


# ----- As it is printed
def test_a_plan_tells_time_and_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(QWEN3_32B), "--card", "A3", "--set", "trainer.max_steps=100"]) == 0
    text = capsys.readouterr().out
    assert "seconds of a step on 64 dies of Atlas A3 (910C): 64 prompts x 16 responses of 7,3" in text
    for words in ("  generation ", "  old log-probs ", "  update ", "  weights ", "  together "):
        assert words in text
    assert "tokens per second and card: " in text and "of the peak (MFU)" in text and "100 steps: " in text
    assert "not measured on this model or suite" in text


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--rates", "decode_step=0.001", "--rates", "train_step=0.1"]
    assert main(["plan", str(ARITHMETIC), "--json", "--memory-gb", "16", *rates]) == 0
    found = json.loads(capsys.readouterr().out)
    (memory,), time = found["memory"], found["time"]
    assert memory["fits"] and memory["phase"] == "save" and memory["smallest_change"] == {}
    assert memory["needed"] == max(memory["levels"]["swap off"].values()) <= memory["capacity"] == 16 << 30
    assert time["phases"]["training"] == pytest.approx(0.1) and time["mfu"] is None
    assert time["card_hours"] == pytest.approx(40 * time["seconds"] / 3600)
    assert main(["plan", str(ARITHMETIC), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"] is None, "nothing is known about the machine"


def test_a_plan_of_servers_counts_their_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(QWEN3_32B), "--json", "--set", "trainer.schedule=bounded"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [side["side"] for side in found["memory"]] == ["training", "each server"]
    assert found["time"]["cards"] == 128 and found["time"]["mfu"] > 0


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


# ----- The probe
def probed(lengths: Sequence[Sequence[int]] = ((20,), (22,))) -> Probe:
    """Three steps of 80 decode steps and 4,000 tokens: 2 ms per decode step, 50 us per token, 30 us per token trained,
    of which 24 are the update's."""
    alone = {"steps": 20, "tokens": 160, "prompt_tokens": 25, "seconds": 20 * 0.002 + 160 * 5e-5 + 25 * 8e-6}
    gen, tokens = 80 * 0.002 + 4000 * 5e-5, 10_000
    row = {"timing_s/gen": gen, "timing_s/step": gen + 3e-5 * tokens + 0.01, "timing_s/update_actor": 2.4e-5 * tokens,
           "timing_s/reward": 4e-6 * tokens, "timing_s/adv": 0.0, "timing_s/old_log_prob": 1e-6 * tokens,
           "timing_s/update_weights": 0.01, "rollout/decode_steps": 80, "perf/gen_tokens_per_second": 4000 / gen,
           "perf/total_num_tokens": tokens, "prompt_length/mean": 25.2}  # fmt: skip
    slow = {**row, "timing_s/update_actor": 9.0, "timing_s/step": gen + 9.1}
    return Probe(steps=(row, slow, row), alone=(alone,) * 3, lengths=tuple(np.array(each) for each in lengths))


def test_a_probe_tells_rates_phases_and_lengths() -> None:
    experiment = load_config(ARITHMETIC, check_files=False)
    speeds = speeds_of(experiment, (), lengths_PG=np.full((32, 8), 20), card=A2, probe=probed())
    rates = speeds.rates
    assert (rates.decode_step, rates.decode_sequence) == pytest.approx((0.002, 5e-5), rel=0.1), "prefill is an estimate"
    assert rates.train_token == pytest.approx(3e-5) and rates.push_weights == pytest.approx(0.01)
    assert speeds.phases == pytest.approx(
        {"reward, advantages": 0.04, "old log-probs": 0.01, "update": 0.24, "the rest": 0.01}
    ), "one slow step does not count"
    cost = step_cost(experiment, probe=probed())
    assert cost.mean_length == pytest.approx(21, abs=0.2) and cost.notes[0].startswith("lengths: worked solutions, ")
    assert cost.phases["update"] == pytest.approx(0.24 * 256 * 46 / 10_000, rel=0.02) and cost.mfu is None
    own = step_cost(experiment, probe=probed([(3, 4), (5, 6)]))
    assert own.notes[0].startswith("lengths: the model's own: 4 responses, mean 4, ")


@pytest.mark.slow
def test_a_probe_measures_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """The quickstart's own steps; solutions of its sums have 18 to 22 tokens."""
    assert main(["plan", str(ARITHMETIC), "--probe", "--json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert {"generation", "update", "weights"} <= set(time["phases"]) and time["seconds"] > 0
    assert time["mean_response_tokens"] == pytest.approx(20.3, abs=0.2) and time["prompt_tokens"] == 25


TWO = ["plans.train.data_parallel=2", "plans.infer.data_parallel=2", "trainer.samples_per_micro_batch=32"]


@pytest.mark.parametrize("settings, message", [
    (["device=Ascend", "model.dtype=bfloat16"], "--probe: measures device CPU; device is Ascend, whose rates"),
    (TWO, "--probe: measures one process; with several, or with servers that generate, give --rates"),
    (["model.path=nowhere"], f"{ARITHMETIC}: 1 problem\n  model.path: "),
])  # fmt: skip
def test_probes_that_cannot_be_are_refused(
    capsys: pytest.CaptureFixture[str], settings: Sequence[str], message: str
) -> None:
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert main(["plan", str(ARITHMETIC), "--probe", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")
