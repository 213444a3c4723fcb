"""One program for two judges: what a backend makes of the models of a folder. Started by `test_mindformers_backend`.

    python compare.py native|mindformers FOLDER RESULT.npz

Every sub-folder is a Hugging Face model. Of each, under `<sub-folder>/<what>[/<weight>]`: its logits, the log-probs and
entropies of response tokens, and the loss, gradients and weights of one GSPO update.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import TrainingSample, lay_out, scattered
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.load import with_recipe
from mindgspo.models.names import parameter_shapes
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import load_huggingface
from mindgspo.parallel.ops.device import attention_segments, takes_packed
from mindgspo.parallel.platform.runtime import set_up_runtime
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.types import Batch

LONGEST, PAD_ID, TEMPERATURE = 32, 0, 0.9
WIDE_CLIP = {"clip_low": 0.05, "clip_high": 0.08, "allow_wide_clip": True}


def main(backend: str, folder: Path, result: Path) -> None:
    set_up_runtime("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)  # for what is called as it is
    found = {}
    for model_dir in sorted(path for path in folder.iterdir() if path.is_dir()):
        section = read_model_section(model_dir)
        model = built(backend, section)
        load_huggingface(model, section, model_dir)
        found |= {f"{model_dir.name}/{name}": array for name, array in measured(model, section).items()}
    np.savez(result, **found)


def built(backend: str, section: ModelSection) -> nn.Cell:
    if backend == "native":
        return build_model(section)
    from mindgspo.integrations.mindformers.model import build_mindformers_model

    return build_mindformers_model(section, longest_row=LONGEST)


def measured(model: nn.Cell, section: ModelSection) -> dict[str, np.ndarray]:
    batches = samples_of(section)
    scores = PolicyScorer(model, temperature=TEMPERATURE).score(batches)
    found = {"logits": logits_of(model, section)}
    found["logp"] = np.concatenate([score.logp_NK.ravel() for score in scores])
    found["entropy"] = np.concatenate([score.entropy_NK.ravel() for score in scores])
    # The old policy is the rounded present one, off by up to 0.1: the same for both, some responses are clipped.
    rng = np.random.default_rng(5)
    batches = [
        replace(batch, old_logp_NK=moved(batch, np.round(score.logp_NK, 2), rng))
        for batch, score in zip(batches, scores, strict=True)
    ]
    loss = build_policy_loss(with_recipe(AlgorithmSection(**WIDE_CLIP), max_new_tokens=16))
    # eps: of a gradient that is rounding noise Adam would otherwise make a step as long as any.
    optimizer = OptimizerSection(lr=1e-4, beta1=0.5, eps=1e-6, weight_decay=0.1, max_grad_norm=0.5)
    updater = Updater(PolicyLogProbs(model, temperature=TEMPERATURE, with_entropy=False), loss, optimizer)
    result = updater.step(batches, lr=1e-4)
    found |= {"loss": np.array(result.loss), "grad_norm": np.array(result.grad_norm)}
    found["clipped"] = np.array(result.metrics["pg_clipfrac_seq"])
    moments = updater.state()
    found |= {f"first_moment/{name}": moments[f"adamw.m.{name}"] for name in parameter_shapes(section)}
    return found | {f"weight/{name}": array for name, array in weights_as_numpy(model, section).items()}


def moved(batch: Batch, logp_NK: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    shifted = logp_NK + rng.normal(0, 0.1, (len(logp_NK), 1))
    return np.where(batch.mask_NK, shifted, 0).astype(np.float32)


def logits_of(model: nn.Cell, section: ModelSection) -> np.ndarray:
    """By the backend's own head, where it has one."""
    ids_RT = np.random.default_rng(3).integers(0, section.vocab_size, (2, LONGEST - 9)).astype(np.int32)
    if hasattr(model, "net"):
        return model.net(Tensor(ids_RT))[0].asnumpy().reshape(-1, section.vocab_size)
    positions_RT = np.tile(np.arange(ids_RT.shape[1], dtype=np.int32), (len(ids_RT), 1))
    segments = attention_segments(np.ones_like(ids_RT), is_packed=takes_packed(model))
    hidden_MH = model(Tensor(ids_RT), Tensor(positions_RT), Tensor(segments)).asnumpy()
    return hidden_MH @ model.output_weight().asnumpy().T


def samples_of(section: ModelSection) -> list[Batch]:
    """Eight samples in three micro-batches. The pad id is also a token of prompts and responses."""
    rng = np.random.default_rng(4)
    samples = []
    for number in range(8):
        ids = rng.integers(0, section.vocab_size, rng.integers(8, 25)).astype(np.int32)
        ids[[1, -2]] = PAD_ID
        prompt = int(rng.integers(2, 6))
        samples.append(
            TrainingSample(
                prompt_ids=ids[:prompt],
                response_ids=ids[prompt:],
                rollout_logp=np.zeros(ids.size - prompt, np.float32),
                number=number,
            )
        )
    advantages = [np.full(sample.response_ids.size, rng.normal(), np.float32) for sample in samples]
    batches = lay_out(samples, samples_per_micro_batch=3, length_multiple=16, pad_id=PAD_ID)
    return [replace(batch, advantages_NK=scattered(batch, advantages)) for batch in batches]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
