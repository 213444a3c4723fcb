#!/usr/bin/env python3
"""How `mindformers.tar.xz` and `mindformers.json` were made: the strategy files of MindFormers' own Qwen2
(`LlamaForCausalLM` of mindformers 1.9.0), divided by MindSpore 2.10.0's compiler on 26 November 2026.

    python tests/data/strategies/record_mindformers.py WORK_FOLDER FOLDER_OF_MINDFORMERS

It ran at commit 17012b4. FOLDER_OF_MINDFORMERS: `pip install --target` of mindformers without MindSpore, which it wants
as 2.9. Its layers shard their operators themselves, by their `parallel_config`; what is set around them is what its
trainer sets: semi_auto_parallel, full batches, its AdamW, MindSpore's optimizer shards. Sequences are 128 tokens.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIZES = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4}  # fmt: skip
CASES = {
    "1x4x2": {"plan": {"model_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 2}},
    "2x2x2, optimizer sharded": {"plan": {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2,
        "micro_batch_num": 2, "optimizer_shard": True}},
    "4x2x1, all at once": {"plan": {"data_parallel": 4, "model_parallel": 2, "optimizer_shard": True,
        "use_seq_parallel": True, "vocab_emb_dp": False}},
    "2x4x1, tied": {"plan": {"data_parallel": 2, "model_parallel": 4, "vocab_emb_dp": False, "optimizer_shard": True},
        "is_tied": True},
}  # fmt: skip


@dataclass
class Graph:
    cell: Any
    inputs: tuple


def build(config, graph: str, rank: int, *, strategy_path: Path) -> Graph:
    """Called in the process of the dry run, as rank `rank`."""
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn
    from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell, _VirtualDatasetCell

    case = CASES[graph]
    plan = dict(case["plan"])
    shards, stages = plan.pop("optimizer_shard", False), plan.get("pipeline_stage", 1)
    data, micro = plan.get("data_parallel", 1), plan.get("micro_batch_num", 1)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", full_batch=True, pipeline_stages=stages, enable_parallel_optimizer=shards,
        strategy_ckpt_config={"save_file": str(strategy_path), "only_trainable_params": False},
        **({"parallel_optimizer_config": {"optimizer_weight_shard_size": data}} if shards else {}),
    )  # fmt: skip
    from mindformers.core.optim import AdamW
    from mindformers.models.llama.llama import LlamaForCausalLM
    from mindformers.models.llama.llama_config import LlamaConfig
    from mindformers.modules.transformer import TransformerOpParallelConfig

    net = LlamaForCausalLM(
        LlamaConfig(
            batch_size=2, seq_length=128, vocab_size=SIZES["vocab_size"], hidden_size=SIZES["hidden_size"],
            intermediate_size=SIZES["intermediate_size"], num_layers=SIZES["num_hidden_layers"],
            num_heads=SIZES["num_attention_heads"], n_kv_heads=SIZES["num_key_value_heads"],
            qkv_has_bias=True, qkv_concat=False, use_flash_attention=True,
            tie_word_embeddings=case.get("is_tied", False), compute_dtype="bfloat16", param_init_type="float32",
            pad_token_id=0, parallel_config=TransformerOpParallelConfig(**plan),
        )
    )  # fmt: skip
    trained = net.trainable_params()
    if stages > 1:
        net = nn.PipelineCell(net, micro)
    net = _VirtualDatasetCell(net)
    step = (_TrainGradAccuStepCell if stages > 1 else nn.TrainOneStepCell)(net, AdamW(trained, learning_rate=1e-3))
    return Graph(step.set_train(), (Tensor(np.ones((2 * data * micro, 129), np.int32)),))


def main() -> None:
    from mindgspo.dryrun import find_toolchain, run_child

    work, mindformers = Path(sys.argv[1]), Path(sys.argv[2])
    done = {}
    for name, case in CASES.items():
        stages = case["plan"].get("pipeline_stage", 1)
        for rank in sorted({edge for s in range(stages) for edge in (s * 8 // stages, (s + 1) * 8 // stages - 1)}):
            result = run_child(
                find_toolchain(), work, config=None, graph=name, rank=rank, world_size=8,
                builder="record_mindformers:build", import_folders=(HERE, mindformers),
            )  # fmt: skip
            if result.failure is not None:
                print(name, rank, "FAILED", result.failure.phase, result.failure.kind, result.failure.text[-1500:])
                break
            print(name, rank, f"{result.seconds:.0f} s", flush=True)
        else:
            done[name] = case
    with tarfile.open(HERE / "mindformers.tar.xz", "w:xz") as archive:
        for name in done:
            for path in sorted((work / name).glob("strategy_*.ckpt")):
                content = path.read_bytes()
                entry = tarfile.TarInfo(f"{name}/{path.name.removeprefix('strategy_')}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    record = {"mindformers": "1.9.0", "mindspore": "2.10.0", "date": "2026-11-26", "sizes": SIZES, "cases": done}
    (HERE / "mindformers.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
