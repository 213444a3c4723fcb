"""What an infer plan samples from a plan's trained weights, on CPU ranks and on emulated cards."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn
from plan_cases import prompts_of

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.config.schema import ReshardSection
from mindgspo.models.policy import build_model
from mindgspo.models.weights import hold_in_compute_type
from mindgspo.parallel.ops.device import attention_segments, takes_packed
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import runtime
from mindgspo.rollout.build import ReplicatedEngine
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.protocol import Purpose, RandomStream, RolloutEngine, SamplingSettings
from mindgspo.rollout.weight_transfer import WeightTransfer

MAX_NEW_TOKENS = 12


class PlanSampler:
    """The infer plan's model and engine.

    num_samples: of each prompt. cache_dtype: of keys and values; None: the model's. merges: whether the model of more
    than one process has no adapters, and gets merged weights.
    """

    def __init__(
        self,
        plan: ParallelPlan,
        section: ModelSection,
        trained: nn.Cell,
        *,
        num_samples: int,
        cache_dtype: str | None = None,
        merges: bool = False,
    ) -> None:
        place = Placement(plan=plan, rank=runtime.rank())
        self.trained = trained
        self.prompts = prompts_of(section)
        model = trained
        if plan.world_size > 1:
            own = section.base if merges else section
            model = build_model(own, place)
            hold_in_compute_type(model)
        native = NativeEngine(
            model, eos_ids=(1,), num_slots=16, prefill_width=4, max_prompt_length=8, max_new_tokens=MAX_NEW_TOKENS,
            length_multiple=8, cache_dtype=cache_dtype,
        )  # fmt: skip
        self.engine: RolloutEngine = native
        if plan.world_size > 1:
            transfer = WeightTransfer(
                trained, model, own, ReshardSection(bucket_mb=1, verify="full"), merges=own is not section
            )
            self.engine = ReplicatedEngine(native, place, transfer.push)
        self.settings = SamplingSettings(
            num_samples=num_samples,
            temperature=1.0,
            max_new_tokens=MAX_NEW_TOKENS,
            stream=RandomStream(seed=7, purpose=Purpose.TRAINING, step=1),
        )

    def sample(self, version: int) -> dict[str, np.ndarray]:
        """Brings the trained weights and generates: ids int32 [sequences, MAX_NEW_TOKENS], -1 behind an end, and logp
        float32, their log-probs."""
        self.engine.load_weights(version)
        rollout = self.engine.generate(self.prompts, self.settings, weight_version=version)
        responses = [response for group in rollout.responses for response in group]
        ids_NT = np.full((len(responses), MAX_NEW_TOKENS), -1, np.int32)
        logp_NT = np.zeros(ids_NT.shape, np.float32)
        for row, response in enumerate(responses):
            ids_NT[row, : response.length] = response.ids
            logp_NT[row, : response.length] = response.logprobs
        return {"ids": ids_NT, "logp": logp_NT}

    def margins(self, ids_NT: np.ndarray) -> np.ndarray:
        """How far the uniform of each token lies from the nearer edge of that token's stretch of the cumulative
        distribution; at most rounding beyond it. In float64, on CPU, where the trained model is whole.

        ids_NT: int32 [sequences, MAX_NEW_TOKENS] as `sample` makes them. Returns the same shape; infinite behind an
        end.
        """
        num_samples = self.settings.num_samples
        prompts = [prompt for prompt in self.prompts for _ in range(num_samples)]
        width = max(prompt.ids.size for prompt in prompts) + MAX_NEW_TOKENS
        ids_RT, segments_RT = np.zeros((2, len(prompts), width), np.int32)
        for row, (prompt, ids_T) in enumerate(zip(prompts, ids_NT, strict=True)):
            whole = np.concatenate([prompt.ids, ids_T[ids_T >= 0]])
            ids_RT[row, : whole.size], segments_RT[row, : whole.size] = whole, 1
        positions_RT = np.tile(np.arange(width, dtype=np.int32), (len(prompts), 1))
        segments = attention_segments(segments_RT, is_packed=takes_packed(self.trained))
        hidden = self.trained(Tensor(ids_RT), Tensor(positions_RT), Tensor(segments))
        table_VH = self.trained.output_weight().asnumpy().astype(np.float64)
        logits_RTV = hidden.asnumpy().reshape(len(prompts), width, -1) @ table_VH.T
        probs_RTV = np.exp(logits_RTV - logits_RTV.max(-1, keepdims=True))
        cdf_RTV = np.cumsum(probs_RTV / probs_RTV.sum(-1, keepdims=True), -1)
        margins_NT = np.full(ids_NT.shape, np.inf)
        for row, prompt in enumerate(prompts):
            uniforms = self.settings.stream.uniforms(prompt.index, row % num_samples, MAX_NEW_TOKENS)
            for column in np.flatnonzero(ids_NT[row] >= 0):
                cdf_V, token = cdf_RTV[row, prompt.ids.size + column - 1], ids_NT[row, column]
                below = cdf_V[token - 1] if token > 0 else 0.0
                margins_NT[row, column] = min(uniforms[column] - below, cdf_V[token] - uniforms[column])
        return margins_NT
