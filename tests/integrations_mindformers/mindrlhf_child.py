"""MindRLHF's own classes around this project's cell. MINDGSPO_MINDRLHF_SOURCE and
MINDGSPO_MINDFORMERS_SOURCE name the source trees.

    python mindrlhf_child.py compare OUT.npz    loss and gradients of its GRPOModel and of ours with name="grpo"
    python mindrlhf_child.py train OUT.npz      one TrainWorker.train() of GSPO
    python mindrlhf_child.py names OUT.npz      names and shapes of what its TrainWorker saves

A tiny Qwen2 of MindFormers' cells is the policy. R rows of T token slots, P samples a row.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import yaml
from mindspore import Tensor

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mindrlhf"
ROWS, LENGTH, PACKED, VOCAB = 2, 24, 2, 61
MODEL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "n_kv_heads": 2,
    "seq_length": LENGTH,
    "max_position_embedding": LENGTH,
    "rms_norm_eps": 1e-6,
    "theta": 10000.0,
    "qkv_has_bias": True,
    "qkv_concat": False,
    "pad_token_id": -1,  # which no token has: MindFormers masks those that have it
    "use_past": False,
    "fused_rms_norm": False,
    "input_sliced_sig": True,
    "use_flash_attention": False,
    "use_rope_slice": True,  # the other form multiplies matrices that a CPU does not broadcast
    "use_attn_mask_compression": False,
    "use_eod_attn_mask_compression": False,
    "compute_dtype": "float32",
    "param_init_type": "float32",
    "layernorm_compute_type": "float32",
    "softmax_compute_type": "float32",
    "rotary_dtype": "float32",
}
SIZES = {
    "data_parallel": 1,
    "model_parallel": 1,
    "pipeline_stage": 1,
    "micro_batch_num": 1,
    "context_parallel": 1,
    "use_seq_parallel": False,
    "vocab_emb_dp": True,
}


def settings(folder: Path, *, beta: float = 0.0) -> object:
    """MindRLHF's GRPOConfig for one card, two samples to a row, read from files as it reads them."""
    from mindrlhf.configs.grpo_configs import GRPOConfig

    model = {"model_config": {"type": "LlamaConfig", **MODEL}, "arch": {"type": "LlamaForCausalLM"}}
    finetune = {"run_mode": "train", "use_parallel": False, "model": model}
    (folder / "model.yaml").write_text(yaml.safe_dump(finetune), encoding="utf-8")
    written = {
        "rl_config": {
            "use_parallel": False,
            "seq_length": LENGTH,
            "pack_num": PACKED,
            "batch_size": ROWS,
            "beta": beta,
            "enable_oldpolicy": True,
            "num_iterations": 1,
        },
        "actor_config": {
            "load": "",
            "save": "",
            "model_config": str(folder / "model.yaml"),
            "use_eod_attn_mask_compression": False,
            "enable_parallel_optimizer": False,
            "parallel_config": SIZES,
            "recompute_config": {"recompute": False},
            "lr_schedule": {"lr": 1e-3, "min_lr": 1e-10, "warmup_step": 0, "lr_decay_style": "constant"},
        },
        "generate_config": {"sampling_config": {"pad_token_id": 0}},
    }
    (folder / "grpo.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    return GRPOConfig(str(folder / "grpo.yaml"))


def batch() -> list[np.ndarray]:
    """Two rows of two samples, as MindRLHF's experience maker packs them: the eight inputs of the train cell."""
    rng = np.random.default_rng(3)
    ids = rng.integers(1, VOCAB, (ROWS, LENGTH + 1))
    index = np.repeat([[0] * (LENGTH // 2) + [1] * (LENGTH // 2)], ROWS, axis=0)
    mask = np.zeros((ROWS, LENGTH))
    mask[:, 3:11] = 1
    mask[:, 15:22] = 1
    advantages = np.where(index == 0, 0.7, -1.1) * np.array([[1.0], [1.4]])
    # A fresh model gives every token about log(1 / VOCAB). The ratio is then on the side of 1 that is not clipped.
    old = -np.log(VOCAB) + 0.1 * np.sign(advantages) + rng.normal(0, 0.01, (ROWS, LENGTH))
    reference = -4.0 + rng.normal(0, 0.1, (ROWS, LENGTH))
    ends = np.array([[LENGTH // 2, LENGTH]] * ROWS)
    lengths = np.array([[8, 7]] * ROWS)
    arrays = (ids, mask, reference * mask, advantages, ends, index, lengths, old * mask)
    kinds = (np.int32, np.int32, np.float32, np.float32, np.int32, np.int32, np.int32, np.float32)
    return [np.ascontiguousarray(array, dtype=kind) for array, kind in zip(arrays, kinds, strict=True)]


def worker(config: object):
    """The TrainWorker of README.md: with our train cell in the place of its own."""
    import mindrlhf.worker.train_worker as module
    from gspo_model import GSPOModelTrain

    module.GRPOModelTrain = GSPOModelTrain
    made = module.TrainWorker(config, SimpleNamespace(model_name="qwen", tensor_writer=None))
    # MindSpore's check for overflow has no form for a CPU; of those for cards, the one in plain operators runs there.
    made.grpo_with_grad.ascend_910b_target, made.grpo_with_grad.enable_allfinite = True, False
    made.grpo_with_grad._ascend_check_overflow_mode = "INFNAN_MODE"
    return made


def compare(folder: Path) -> dict[str, np.ndarray]:
    from gspo_model import GSPOModel
    from mindformers import LlamaConfig
    from mindrlhf.models.grpo_models import CausalLMHybrid, GRPOModel

    from mindgspo.config import AlgorithmSection

    config = settings(folder, beta=0.1)
    model = LlamaConfig(**MODEL)
    model.model_name = "llama"
    policy = CausalLMHybrid(model, config)
    rng = np.random.default_rng(5)
    for parameter in policy.trainable_params():
        if "norm" not in parameter.name:
            parameter.set_data(Tensor(rng.normal(0, 0.2, parameter.shape).astype(np.float32)))
    clip = {"clip_low": config.rl_config.epsilon_low, "clip_high": config.rl_config.epsilon_high}
    ours = GSPOModel(config, policy, AlgorithmSection(name="grpo", loss_agg_mode="seq-mean-token-mean", **clip))
    inputs = [Tensor(array) for array in batch()]
    logp = policy(inputs[0][:, :-1], None, None, None, False, False, inputs[0][:, 1:], inputs[4], False, False)
    # Old log-probs near the present ones, so that some tokens are clipped and others are not.
    noise = rng.normal(0, 0.25, logp.shape).astype(np.float32)
    inputs[7] = (logp + Tensor(noise)) * inputs[1]
    inputs[2] = (logp + Tensor(rng.normal(0, 0.1, logp.shape).astype(np.float32))) * inputs[1]
    found = {}
    for name, cell in (("theirs", GRPOModel(config, policy)), ("ours", ours)):
        cell.set_train(True)
        weights = ms.ParameterTuple(policy.trainable_params())
        loss, gradients = ms.value_and_grad(cell, None, weights)(*inputs)
        found[f"{name}.loss"] = loss.asnumpy()
        for weight, gradient in zip(weights, gradients, strict=True):
            found[f"{name}.grad.{weight.name.partition('.layers.')[2] or weight.name}"] = gradient.asnumpy()
    return found


def train(folder: Path) -> dict[str, np.ndarray]:
    trained = worker(settings(folder))
    parameters = trained.grpo_with_grad.network.trainable_params()
    before = {parameter.name: parameter.asnumpy().copy() for parameter in parameters}
    from mindrlhf.worker.worker import GRPOData

    columns = batch()
    trained.push_to_store([GRPOData(*(column[row] for column in columns)) for row in range(ROWS)])
    trained.train()
    moved = {name: np.abs(parameter.asnumpy() - before[name]).max() for name, parameter in
             ((one.name, one) for one in parameters)}  # fmt: skip
    return {f"moved.{name}": value for name, value in moved.items()}


def names(folder: Path) -> dict[str, np.ndarray]:
    trained = worker(settings(folder))
    policy = trained.grpo_model_train.grpo_model_train.policy_model.model
    found = {f"weight.{one.name}": np.array(one.shape) for one in policy.get_parameters()}
    state = {f"state.{one.name}": np.array(one.shape) for one in trained.grpo_with_grad.optimizer.get_parameters()}
    return {**found, **state}


if __name__ == "__main__":
    sys.path[:0] = [str(EXAMPLE), os.environ["MINDGSPO_MINDRLHF_SOURCE"], os.environ["MINDGSPO_MINDFORMERS_SOURCE"]]
    os.environ["RUN_MODE"] = "train"  # MindRLHF's worker sets it before its model is made
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    target = Path(sys.argv[2])
    np.savez(target, **{"compare": compare, "train": train, "names": names}[sys.argv[1]](target.parent))
