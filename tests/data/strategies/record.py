#!/usr/bin/env python3
"""How `compiled.tar.xz` and `compiled.json` were made: MindSpore 2.10.0's own strategy files of all shipped plans,
written by its compiler of divided graphs (`AutoParallel(..., parallel_mode="semi_auto")`) on 26 November 2026.

    python tests/data/strategies/record.py [CONFIG ...]

It ran at commit 17012b4, the last to hand whole graphs to that compiler, and does so in a checkout of it alone. Each
configuration was made small (see `miniature`): its plans, its families' weights, its heads and experts stay, and so
does what decides about a layout. Every weight that has 64 KB or more in the real model, from which on MindSpore cuts it
over replicas, has so here; what has less there has less here. The test of these files holds the real sizes against
them, too.

Of the three graphs that have strategy files, train, with AdamW and the sums of gradients, was compiled for the first
and the last rank of each stage; reference, log-probs under the plan of training, for the first; rollout, log-probs
under the plan of generation, for the first and the last of all. One process per rank compiles its graphs.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CONFIGS = (
    *sorted(path.name for path in (ROOT / "model_configs").glob("*.yaml")),
    *("arithmetic/gspo_4.yaml", "arithmetic/gspo_8.yaml", "arithmetic/gspo_8_cards.yaml"),
    *("dapo_math/gspo_qwen2_5_32b_32k.yaml", "dapo_math/gspo_qwen2_5_7b_128k.yaml", "dapo_math/gspo_qwen3_32b.yaml"),
)
_SMALL = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False, "dtype": "bfloat16"}  # fmt: skip
_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
_DENSE = _SMALL | {"architecture": "qwen2", "head_dim": 16}
_MIXTURE = _SMALL | _EXPERTS | {"architecture": "qwen3_moe", "head_dim": 32}
_SHARDED_SEQUENCE = {"use_seq_parallel": True, "optimizer_shard": True}
# Legal plans that nothing shipped has: few key heads on many ranks, a reference policy on its own, experts in all ways.
OTHERS = {
    "1x8x1": (_DENSE, {"train": {"model_parallel": 8}, "infer": {"model_parallel": 8, "vocab_emb_dp": False}}),
    "8x1x1 with a reference of 2x4x1": (_DENSE, {"train": {"data_parallel": 8}, "infer": {"data_parallel": 8},
        "reference": {"data_parallel": 2, "model_parallel": 4}}),
    "2x4x1, experts split": (_MIXTURE, {"train": {"data_parallel": 2, "model_parallel": 4, "expert_parallel": 2},
        "infer": {"data_parallel": 2, "model_parallel": 4}}),
    "4x2x1, experts split, all at once": (_MIXTURE, {"train": {"data_parallel": 4, "model_parallel": 2,
        "expert_parallel": 2} | _SHARDED_SEQUENCE, "infer": {"data_parallel": 8}}),
    "4x1x2, experts split": (_MIXTURE, {"train": {"data_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 2,
        "expert_parallel": 4}, "infer": {"data_parallel": 8}}),
    "2x4x1, whole experts over all": (_MIXTURE, {"train": {"data_parallel": 2, "model_parallel": 4,
        "expert_parallel": 8, "expert_tensor_parallel": 1} | _SHARDED_SEQUENCE,
        "infer": {"data_parallel": 2, "model_parallel": 4, "expert_parallel": 4, "expert_tensor_parallel": 1}}),
    "2x4x1, two blocks of whole experts": (_MIXTURE, {"train": {"data_parallel": 2, "model_parallel": 4,
        "expert_parallel": 2, "expert_tensor_parallel": 1, "optimizer_shard": True}, "infer": {"data_parallel": 8}}),
}  # fmt: skip


def path_of(config: str) -> Path:
    return ROOT / ("examples" if "/" in config else "model_configs") / config


def sections_of(config: str) -> dict:
    """The sections `model` and `plans` that are compiled."""
    from mindgspo.config import load_model_and_plans

    if config in OTHERS:
        return dict(zip(("model", "plans"), OTHERS[config], strict=True))
    return miniature(*load_model_and_plans(path_of(config)))


def miniature(model, plans) -> dict:
    """Those of the small twin: one layer per stage, or two where there is one stage, heads
    of 16 or 32 numbers, small widths and tables."""
    heads = model.num_attention_heads
    head_dim = 32 if model.num_key_value_heads <= 2 else 16
    kept = ("architecture", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings")
    experts = ("num_experts", "num_experts_per_tok", "norm_topk_prob")
    small = {name: getattr(model, name) for name in kept}
    small |= {"head_dim": head_dim, "hidden_size": heads * head_dim, "intermediate_size": 256}
    small |= {"vocab_size": 512, "dtype": "bfloat16"}
    small["num_hidden_layers"] = plans.train.pipeline_stage if plans.train.pipeline_stage > 1 else 2
    if model.num_experts is not None:
        small |= {name: getattr(model, name) for name in experts} | {"moe_intermediate_size": 64}
    return {"model": small, "plans": {name: set_fields(getattr(plans, name)) for name in ("train", "infer")}}


def set_fields(plan) -> dict:
    return plan.model_dump(exclude_defaults=True)


def write_experiment(path: Path, sections: dict) -> None:
    """On Ascend, with the quickstart's data and tokenizer; a sample per micro-batch, so that compiles are short."""
    content = {
        "include": str(ROOT / "examples" / "arithmetic" / "gspo.yaml"),
        "experiment": "golden",
        "device": "Ascend",
        **sections,
        "rollout": {"slots": 64, "prompts_per_step": 64},
        "trainer": {"samples_per_micro_batch": 2, "prompts_per_mini_batch": 64},
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def build(config, graph: str, rank: int, *, strategy_path: Path):
    """Called in the process of the dry run: compiles the first of the graphs and hands out the last one. graph: their
    names, with + between them."""
    from mindgspo.dryrun.graphs import build_graph

    *first, last = graph.split("+")
    for name in first:
        part = build_graph(config, name, rank, strategy_path=path_in(strategy_path.parents[1], name, rank))
        part.cell.compile(*part.inputs)
    return build_graph(config, last, rank, strategy_path=path_in(strategy_path.parents[1], last, rank))


def path_in(folder: Path, graph: str, rank: int) -> Path:
    """Where MindSpore writes."""
    path = folder / graph / f"{rank}.ckpt"
    path.parent.mkdir(exist_ok=True)
    return path


def recorded(plan) -> dict[int, str]:
    """{rank: its graphs} of a training plan: of each stage the first rank and the last."""
    each = plan.world_size // plan.pipeline_stage
    found = {}
    for rank in range(plan.world_size):
        if rank % each == 0:
            found[rank] = "reference+train"
        elif rank % each == each - 1:
            found[rank] = "train"
    for rank in (0, plan.world_size - 1):
        found[rank] = f"rollout+{found[rank]}"
    return found


def main() -> None:
    from mindgspo.config import ParallelPlan
    from mindgspo.dryrun import find_toolchain, run_child

    toolchain = find_toolchain()
    work = Path(sys.argv[1])
    done = {}
    for config in sys.argv[2:] or (*CONFIGS, *OTHERS):
        sections = sections_of(config)
        plan = ParallelPlan(**sections["plans"]["train"])
        if plan.world_size == 1:
            continue
        done[config] = sections
        folder = folder_of(work, config)
        folder.mkdir(parents=True, exist_ok=True)
        write_experiment(folder / "experiment.yaml", sections)
        for rank, graphs in recorded(plan).items():
            result = run_child(
                toolchain, folder, config=folder / "experiment.yaml", graph=graphs, rank=rank,
                world_size=plan.world_size, builder="record:build", import_folders=(HERE,),
            )  # fmt: skip
            assert result.failure is None, (config, rank, result.failure)
            print(f"{config} rank {rank}: {result.seconds:.0f} s", flush=True)
    write(work, done)


def folder_of(work: Path, config: str) -> Path:
    return work / config.replace("/", "-").removesuffix(".yaml")


def write(work: Path, done: dict) -> None:
    from mindgspo.strategy.file import read_strategy

    with tarfile.open(HERE / "compiled.tar.xz", "w:xz") as archive:
        for config in done:
            folder = folder_of(work, config)
            for path in sorted(folder.glob("*/[0-9]*.ckpt")):
                assert read_strategy(path).stages
                content = path.read_bytes()
                entry = tarfile.TarInfo(str(path.relative_to(work)))
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    record = {"mindspore": "2.10.0", "commit": "17012b4", "date": "2026-11-26", "configurations": done}
    (HERE / "compiled.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
