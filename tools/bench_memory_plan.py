"""Memory that `mindgspo plan` expects of one process on CPU, beside what such a process really has.

    python tools/bench_memory_plan.py [--parameters 30000000 100000000] [--rows 4] [--prompt 64] [--response 64]
                                      [--slots 16] [--layers 0] [--experts 0] [--recompute none|selective|full]
                                      [--reference] [--swap] [--alone]

For each size a Qwen2 of about so many parameters, float32, random weights, goes through two steps of rollout,
log-probs, updates and the copies of a checkpoint in a process of its own (`bench_memory_plan_child.py`); with --alone
each of the first three phases also runs in a process that does nothing else. All prompts and responses have the
greatest length that the configuration allows, which is what a plan assumes. --layers: instead of a number that suits
the size. --experts: a Qwen3-MoE with so many, of which 2 per token. --recompute: as in plans.train. --reference: with a
KL term. --swap: what a phase does not read is evicted.

Prints one JSON object. MiB above the process's base, which is taken after imports and one small graph: `expected` is
the plan's figure without its part for the process, `measured` the kernel's high-water mark of the resident set during
the phase in the second step. The exit code is 1 where they differ by more than 15 % of what was measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mindgspo.config import (
    AlgorithmSection,
    DataSection,
    DataSourceSection,
    ExperimentConfig,
    KLSection,
    ModelSection,
    ParallelPlan,
    PlansSection,
    RolloutSection,
    TrainerSection,
    dump_config,
    resolve,
)
from mindgspo.config.schema import SwapSection
from mindgspo.parallel.swap.states import Phase
from mindgspo.planner import MIB, Part, expected_memory

TOLERANCE = 0.15
CHILD = Path(__file__).with_name("bench_memory_plan_child.py")
RUN = (Phase.ROLLOUT, Phase.SCORE, Phase.UPDATE, Phase.SAVE)
ALONE = (Phase.ROLLOUT, Phase.SCORE, Phase.UPDATE)


def main() -> int:
    arguments = parse_arguments()
    report = []
    for parameters in arguments.parameters:
        config = experiment(model_section(parameters, arguments), arguments)
        for phases in [RUN, *([(phase,) for phase in ALONE] if arguments.alone else [])]:
            report.append(compared(config, phases))
    within = all(figures["within"] for process in report for figures in process["phases"].values())
    print(json.dumps({"tolerance": TOLERANCE, "within": within, "processes": report}, indent=2))
    return 0 if within else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[30_000_000, 100_000_000], help="about so many")
    parser.add_argument("--rows", type=int, default=4, help="of a micro-batch")
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--response", type=int, default=64, help="tokens")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--layers", type=int, default=0, help="0: a number that suits the size")
    parser.add_argument("--experts", type=int, default=0, help="of every layer; 0: none")
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--reference", action="store_true", help="with a reference policy")
    parser.add_argument("--swap", action="store_true")
    parser.add_argument("--alone", action="store_true", help="also each phase in a process of its own")
    return parser.parse_args()


def compared(config: ExperimentConfig, phases: Sequence[Phase]) -> dict:
    """The figures of one process that goes through these phases."""
    plan = expected_memory(config, phases=phases)
    measured = measure(config, phases)
    compared_phases = {}
    for phase in phases:
        parts = plan.classes[0].at(plan.level, phase).parts
        above = {part.value: size / MIB for part, size in parts.items() if part is not Part.RESERVE}
        expected, peak = sum(above.values()), measured["peaks"][phase.value]
        compared_phases[phase.value] = {
            "expected": round(expected, 1),
            "measured": round(peak, 1),
            "ratio": round(expected / peak, 3),
            "within": abs(expected - peak) <= TOLERANCE * peak,
            "parts": {name: round(size, 1) for name, size in above.items()},
        }
    return {
        "parameters": measured["parameters"],
        "process": "run" if len(phases) > 1 else phases[0].value,
        "base": round(measured["base"], 1),
        "phases": compared_phases,
    }


def measure(config: ExperimentConfig, phases: Sequence[Phase]) -> dict:
    """What the child found."""
    with tempfile.TemporaryDirectory(prefix="bench-memory-plan-") as folder:
        path = Path(folder) / "experiment.yaml"
        path.write_text(dump_config(config), encoding="utf-8")
        command = [sys.executable, str(CHILD), str(path), *(phase.value for phase in phases)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def model_section(parameters: int, arguments: argparse.Namespace) -> ModelSection:
    """A Qwen2 whose width goes with its size, with as many layers as that takes."""
    vocab, hidden, kv_heads = 8192, 768, 4
    if parameters < 80e6:
        hidden, kv_heads = (256, 1) if parameters < 20e6 else (512, 2)
    inner, kv = 4 * hidden, 64 * kv_heads
    experts, wide = {}, inner
    if arguments.experts:
        experts = {
            "architecture": "qwen3_moe",
            "num_experts": arguments.experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": inner // 4,
            "norm_topk_prob": True,
        }
        wide = inner // 4 * arguments.experts
    per_layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * wide + 3 * hidden + 2 * kv
    return ModelSection(
        **experts,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=arguments.layers or max(1, round((parameters - vocab * hidden) / per_layer)),
        num_attention_heads=hidden // 64,
        num_key_value_heads=kv_heads,
        max_position_embeddings=arguments.prompt + arguments.response,
        tie_word_embeddings=True,
    )


def experiment(model: ModelSection, arguments: argparse.Namespace) -> ExperimentConfig:
    """Two updates per step of two micro-batches each; every prompt fills the slots with its share of siblings."""
    siblings, prompts = 4, 4
    source = {"format": "arithmetic"}
    kl = KLSection(placement="loss") if arguments.reference else KLSection()
    return resolve(
        ExperimentConfig(
            experiment="bench-memory-plan",
            model=model,
            data=DataSection(
                train=DataSourceSection(**source, split="train"),
                eval=DataSourceSection(**source, split="test"),
                max_prompt_length=arguments.prompt,
            ),
            rollout=RolloutSection(
                prompts_per_step=prompts,
                num_generations=siblings,
                max_new_tokens=arguments.response,
                slots=arguments.slots,
            ),
            algorithm=AlgorithmSection(kl=kl),
            plans=PlansSection(train=ParallelPlan(recompute=arguments.recompute)),
            swap=SwapSection(enabled=arguments.swap),
            trainer=TrainerSection(
                prompts_per_mini_batch=2,
                samples_per_micro_batch=arguments.rows,
                length_multiple=16,
                max_steps=2,
            ),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
