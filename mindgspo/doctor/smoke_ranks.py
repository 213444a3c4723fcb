"""What every rank does in the smoke test: kernels against numpy, then a sum over each group of the plans.

A tiny model's forward pass is called module by module (`models.trace`); numpy computes what each should return from
what it was given. The backward pass is held against a difference quotient, the optimizer against its formula.

Legend: C tokens, H hidden units, A query heads, B key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample, packed_tokens
from mindgspo.config import ExperimentConfig
from mindgspo.errors import TrainingError
from mindgspo.models.policy import build_model
from mindgspo.models.trace import trace_forward
from mindgspo.models.transformer import rope_tables
from mindgspo.models.weights import initialize_weights, load_weights
from mindgspo.parallel.collectives.graph import all_reduce
from mindgspo.parallel.collectives.host import GraphOfRanks
from mindgspo.parallel.plans.ranks import RankGrid, Ranks
from mindgspo.parallel.platform import heartbeat, runtime
from mindgspo.parallel.platform.cluster import start_device
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.trainer.build import build_backend
from mindgspo.types import Batch

_MODULE, _SLOPE, _STEP = 1e-4, 2e-2, 1e-5
"""Allowed of the largest number: what a module returns, float32; a slope by a quotient; what AdamW changes."""
_REACH = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison. error: largest difference, of the largest expected number."""

    name: str
    error: float
    allowed: float

    @property
    def is_right(self) -> bool:
        """Also false where it is not a number."""
        return self.error <= self.allowed

    def __str__(self) -> str:
        return f"{'ok' if self.is_right else 'WRONG':<6}{self.name}: off by {self.error:.1e}, allowed {self.allowed:g}"


def smoke_of_rank(config: ExperimentConfig) -> int:
    """All checks on this rank; rank 0 tells. config: of the smoke test's own experiment. Raises TrainingError for what
    is wrong, and whatever MindSpore raises."""
    start_device(config)
    heartbeat.enter("smoke test", 0)
    started = time.monotonic()
    checks = [*_kernel_checks(config), *_group_checks(config)]
    if runtime.rank() == 0:
        print(*checks, f"{len(checks)} checks in {time.monotonic() - started:.0f} s", sep="\n", flush=True)
    wrong = [str(check) for check in checks if not check.is_right]
    if wrong:
        raise TrainingError(f"rank {runtime.rank()} computes something else: " + "; ".join(wrong))
    return 0


def _kernel_checks(config: ExperimentConfig) -> Iterator[Check]:
    section = config.model
    model = build_model(section)
    initialize_weights(model, section, config.seed)
    weights = weights_as_numpy(model, section)
    backend = build_backend(config, model)
    batch = _batch(section.vocab_size, is_packed=backend.policy.is_packed)
    twin = _Twin(config, weights, batch)
    found: dict[str, np.ndarray] = {}
    by_operator: dict[str, float] = {}

    def compare(name: str, operator: str, returned: np.ndarray) -> None:
        found[name] = returned
        if name == "log_probs":
            returned = returned[batch.mask_NK]
        error = _error(returned, twin.expected(name, found))
        by_operator[operator] = max(error, by_operator.get(operator, 0.0))

    trace_forward(backend.policy, batch, compare)
    yield from (Check(name=operator, error=error, allowed=_MODULE) for operator, error in by_operator.items())

    own = np.where(batch.mask_NK, found["log_probs"], np.float32(0))
    batch = replace(batch, old_logp_NK=own)
    lr = 1e-3
    result = backend.update([batch], lr)
    state, optimizer = backend.state(), config.optimizer
    after = weights_as_numpy(model, section)
    largest, direction = 0.0, {}
    for name, before in weights.items():
        first, second = state[f"adamw.m.{name}"], state[f"adamw.v.{name}"]
        mean, square = first / (1 - optimizer.beta1), second / (1 - optimizer.beta2)
        step = lr * mean / (np.sqrt(square) + optimizer.eps)
        largest = max(largest, _error(after[name], before - step))
        direction[name] = mean
    yield Check(name="AdamW", error=largest, allowed=_STEP)
    norm = np.sqrt(sum(float((one.astype(np.float64) ** 2).sum()) for one in direction.values()))
    losses = []
    for sign in (1, -1):
        moved = {name: weights[name] + np.float32(sign * _REACH / norm) * direction[name] for name in weights}
        load_weights(model, section, moved, where=Path("smoke test"))
        losses.append(backend.update([batch], 0.0).loss)
    slope = (losses[0] - losses[1]) / (2 * _REACH)
    yield Check(name="gradients", error=abs(slope / result.grad_norm - 1), allowed=_SLOPE)


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / max(float(np.abs(expected).max()), 1e-30))


def _batch(vocab_size: int, *, is_packed: bool) -> Batch:
    """Four responses to four prompts."""
    random = np.random.default_rng(5)
    samples = [
        TrainingSample(
            prompt_ids=random.integers(2, vocab_size, 5 + number).astype(np.int32),
            response_ids=random.integers(2, vocab_size, 9 - number).astype(np.int32),
            rollout_logp=np.zeros(9 - number, np.float32),
            number=number,
        )
        for number in range(4)
    ]
    (batch,) = micro_batches(samples, BatchLayout(samples_per_micro_batch=4, length_multiple=16, pad_id=0))
    signs = np.array([1.0, -0.5, 0.25, -0.75], np.float32)[batch.samples_N][:, None]
    return replace(batch, advantages_NK=np.where(batch.mask_NK, signs, np.float32(0)))


class _Twin:
    """What each module of the model returns, in numpy, by its name in the trace."""

    def __init__(self, config: ExperimentConfig, weights: dict[str, np.ndarray], batch: Batch) -> None:
        self._model, self._weights, self._batch = config.model, weights, batch
        self._temperature = config.rollout.temperature
        packed = packed_tokens(batch)
        count = packed.place_M.max() + 1
        self._ids, self._positions = packed.ids_1M[0, :count], packed.positions_1M[0, :count]
        self._predict = packed.predict_P

    def expected(self, name: str, found: dict[str, np.ndarray]) -> np.ndarray:
        """found: what all modules so far have returned."""
        if name == "embed_tokens":
            return self._weights["model.embed_tokens.weight"][self._ids]
        if name == "log_probs":
            return self._log_probs(found["norm"])
        names = list(found)
        last = found[names[-2]]
        layer = ".".join(name.split(".")[:2])
        if name.endswith("(sum)"):
            delta = last
            x = next((found[one] for one in reversed(names[:-2]) if one.endswith("(sum)")), found["embed_tokens"])
            return x + delta
        if name.endswith("norm"):
            return self._rms_norm(last, f"model.{name}.weight")
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            return self._linear(found[f"{layer}.input_layernorm"], name).reshape(
                last.shape[0], -1, self._model.head_dim
            )
        if ".rotate " in name:
            return self._rotated(found[f"{layer}.self_attn.{'q' if 'queries' in name else 'k'}_proj"])
        if name.endswith(".attention"):
            attention = f"{layer}.self_attn"
            return self._attention(found[f"{attention}.rotate (queries)"], last, found[f"{attention}.v_proj"])
        if name.endswith(("gate_proj", "up_proj")):
            return self._linear(found[f"{layer}.post_attention_layernorm"], name)
        if name.endswith(".swiglu"):
            gate = found[f"{layer}.mlp.gate_proj"]
            return gate / (1 + np.exp(-gate)) * last
        assert name.endswith(("o_proj", "down_proj")), name
        return self._linear(last, name)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        out = x @ self._weights[f"model.{name}.weight"].T
        return out + self._weights.get(f"model.{name}.bias", 0)

    def _rms_norm(self, x: np.ndarray, weight: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self._model.rms_norm_eps) * self._weights[weight]

    def _rotated(self, x_CAD: np.ndarray) -> np.ndarray:
        cos, sin = (table[self._positions][:, None] for table in rope_tables(self._model))
        half = x_CAD.shape[-1] // 2
        return x_CAD * cos + np.concatenate([-x_CAD[..., half:], x_CAD[..., :half]], -1) * sin

    def _attention(self, query_CAD: np.ndarray, key_CBD: np.ndarray, value_CBD: np.ndarray) -> np.ndarray:
        group = query_CAD.shape[1] // key_CBD.shape[1]
        key, value = (np.repeat(one, group, axis=1) for one in (key_CBD, value_CBD))
        scores = np.einsum("qad,kad->aqk", query_CAD, key) / np.sqrt(query_CAD.shape[-1])
        sample, number = np.cumsum(self._positions == 0), np.arange(self._positions.size)
        sees = (sample[:, None] == sample) & (number[:, None] >= number)
        scores = np.where(sees, scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("aqk,kad->qad", share / share.sum(-1, keepdims=True), value)
        return out.reshape(out.shape[0], -1)

    def _log_probs(self, hidden_CH: np.ndarray) -> np.ndarray:
        table = self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])
        logits_PV = hidden_CH[self._predict] @ table.T / self._temperature
        largest = logits_PV.max(-1, keepdims=True)
        total = largest[:, 0] + np.log(np.exp(logits_PV - largest).sum(-1))
        logp_P = logits_PV[np.arange(len(total)), self._batch.targets_P] - total
        return logp_P[self._batch.place_NK][self._batch.mask_NK]


class _Sum(nn.Cell):
    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(ranks)

    def construct(self, x: Tensor) -> Tensor:
        return self.sum(x)


def _group_checks(config: ExperimentConfig) -> Iterator[Check]:
    """AllReduce over each group of the plans that this rank is in, in one order on all ranks."""
    rank, groups = runtime.rank(), {}
    for name, plan in (("train", config.plans.train), ("infer", config.plans.infer)):
        grid = RankGrid.of(plan)
        if grid.world_size != runtime.world_size():  # generated by servers of their own
            continue
        kinds: dict[str, Ranks] = {
            "world": tuple(range(grid.world_size)),
            "model": grid.model_group(rank),
            "context": grid.context_group(rank),
            "data": grid.data_group(rank),
            "pipeline": grid.pipeline_group(rank),
        }
        for kind, ranks in kinds.items():
            if len(ranks) > 1:
                groups.setdefault(ranks, f"{name} {kind}")
    for ranks, name in groups.items():
        graph = GraphOfRanks(_Sum(ranks), ranks)
        found = graph(Tensor(np.full(1024, rank + 1, np.float32))).asnumpy()
        expected = np.full(1024, sum(one + 1 for one in ranks), np.float32)
        yield Check(name=f"AllReduce, {name} group of {len(ranks)}", error=_error(found, expected), allowed=0.0)
