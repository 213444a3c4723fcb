"""Responses of a random model, and the trainer's log-probs of them: with a model, a cache and rows of many kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from small_plans import drawn_model, small_model

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.types import Batch, Float32Array, Prompt, Response

NUM_SLOTS, MAX_PROMPT, MAX_NEW = 5, 9, 24
PLAIN = BatchLayout(samples_per_micro_batch=7, length_multiple=4, pad_id=0)
PACKED = BatchLayout(max_tokens_per_micro_batch=96, packing=True, length_multiple=4, pad_id=0)
DENSE = {"tie_word_embeddings": True, "initializer_range": 0.2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """policy: the trainer's, which found `trainer_logp_NK`. form: `SamplerForm` of the sampler."""

    batches: Sequence[Batch]
    responses: Sequence[Response]
    trainer_logp_NK: Sequence[Float32Array]
    form: Any
    policy: Any
    preemptions: int

    def require(self, **changes: Any) -> int:
        from mindgspo.trainer.exact_log_probs import ExactLogProbs, where_they_part

        exact = ExactLogProbs(every=1, locate=lambda token: where_they_part(self.policy, self.form, token))
        given = {"step": 3, "version": 1, **changes}
        return exact.require(self.batches, self.trainer_logp_NK, self.responses, **given)


def make_case(
    *,
    layout: BatchLayout = PLAIN,
    temperature: float = 1.0,
    cache_dtype: str | None = None,
    merges: bool = False,
    prefixes: int = 0,
    change: Any = None,
    sampler: dict[str, Any] | None = None,
    **model: Any,
) -> Case:
    """prefixes: tokens after which each response is interrupted, and continued as another request. change: applied to
    the model between sampling and scoring. sampler: further arguments of the engine."""
    from mindgspo.models.scoring import PolicyScorer
    from mindgspo.rollout.engine import NativeEngine
    from mindgspo.rollout.trace import SamplerForm

    section = small_model(**{**DENSE, **model})
    made = drawn_model(section, seed=5)
    draw_adapters(made)
    engine = NativeEngine(
        made, eos_ids=(3, 11), num_slots=NUM_SLOTS, prefill_width=2, max_prompt_length=MAX_PROMPT,
        max_new_tokens=MAX_NEW, length_multiple=4, cache_dtype=cache_dtype, merges_adapters=merges, **(sampler or {}),
    )  # fmt: skip
    engine.load_weights(1)
    random = np.random.default_rng(0)
    prompts = [
        Prompt(index=10 + i, ids=random.integers(0, section.vocab_size, 1 + i).astype(np.int32), text="", answer="",
               data_source="")
        for i in range(MAX_PROMPT)
    ]  # fmt: skip
    stream = RandomStream(seed=9, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=4, temperature=temperature, max_new_tokens=MAX_NEW, stream=stream)
    groups, preemptions = responses_of(engine, prompts, settings, prefixes)
    if change is not None:
        change(made)
    samples = [
        TrainingSample(prompt_ids=prompt.ids, response_ids=one.ids, rollout_logp=one.logprobs, number=4 * i + k)
        for i, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
        for k, one in enumerate(group)
    ]
    batches = micro_batches(samples, layout)
    scorer = PolicyScorer(made, temperature=temperature)
    form = SamplerForm(
        num_slots=NUM_SLOTS, cache_dtype=cache_dtype or section.dtype, temperature=temperature, merges_adapters=merges
    )
    return Case(
        batches=batches, responses=[one for group in groups for one in group],
        trainer_logp_NK=[score.logp_NK for score in scorer.score(batches)], form=form, policy=scorer.policy,
        preemptions=preemptions,
    )  # fmt: skip


def draw_adapters(model: Any) -> None:
    """B of every adapter, which begins with zeros."""
    from mindgspo.parallel.platform.parameter_memory import set_values

    random = np.random.default_rng(4)
    for weight in model.get_parameters():
        if "lora_B" in weight.name:
            set_values(weight, random.normal(0, 0.1, weight.shape).astype(np.float32))


def responses_of(
    engine: Any, prompts: Sequence[Prompt], settings: SamplingSettings, prefixes: int
) -> tuple[list[tuple[Response, ...]], int]:
    """The responses, and the number of pre-emptions; with prefixes, each in two requests."""
    from mindgspo.rollout.service import Request

    rollout = engine.generate(prompts, settings, weight_version=1)
    if not prefixes:
        return list(rollout.responses), rollout.counters.preemptions
    decoding = engine.begin(settings)
    number = 0
    for prompt, group in zip(prompts, rollout.responses, strict=True):
        for one in group:
            if one.length > prefixes:
                decoding.add(Request(
                    number=number, prompt=prompt, samples=(one.sample_index,), settings=settings,
                    prefix=one.ids[:prefixes],
                ))  # fmt: skip
            number += 1
    pieces = {}
    while not decoding.done:
        decoding.advance()
        pieces |= {ended.request.number: ended.pieces[0] for ended in decoding.ended()}
    assert pieces, "no response is long enough"
    every = [one for group in rollout.responses for one in group]
    whole = [
        one if (piece := pieces.get(number)) is None else replace(
            one, ids=np.concatenate([one.ids[:prefixes], piece.ids]),
            logprobs=np.concatenate([one.logprobs[:prefixes], piece.logprobs]),
        )
        for number, one in enumerate(every)
    ]  # fmt: skip
    assert all((ours.ids == theirs.ids).all() for ours, theirs in zip(whole, every, strict=True))
    return [tuple(whole[start : start + 4]) for start in range(0, len(whole), 4)], 0
