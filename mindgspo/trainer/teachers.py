"""Teachers: frozen models, here or behind servers, that score the policy's own responses.

N  responses of a micro-batch    K  response-token slots    A  a teacher's likeliest tokens    S  responses of the step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from mindspore import Parameter

from mindgspo.config import ExperimentConfig
from mindgspo.config.distillation import TeacherSection
from mindgspo.config.distillation_rules import KEY, teacher_model, teacher_plan
from mindgspo.errors import ConfigError, TokenizerError
from mindgspo.models.model import Model
from mindgspo.models.policy import build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import fill_model, hold_in_compute_type
from mindgspo.parallel.plans.placement import Placement
from mindgspo.tokenization import Tokenizer, check_same_vocabulary
from mindgspo.trainer.batches import MiniBatches, flattened, regrouped
from mindgspo.trainer.dynamic_sampling import StepSamples
from mindgspo.types import Batch, Float32Array, Int32Array

if TYPE_CHECKING:
    from mindgspo.rollout.server_scorer import ServerScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """One teacher."""

    section: TeacherSection
    scorer: PolicyScorer | ServerScorer
    model: Model | None = None
    """Its model on the cards that train; None behind a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherScores:
    """What the teachers say of a micro-batch, under softmax(logits / temperature) of the sampling temperature.

    Example: with loss top_k and top_k 2, a token whose teacher gives 0.7 to id 5 and 0.2 to id 9 has top_ids [5, 9] and
    top_logp [-0.36, -1.61].
    """

    logp_NK: np.ndarray
    """float64, of the sampled tokens; NaN where masked or without a teacher."""
    top_ids_NKA: Int32Array | None = None
    """int32, the teacher's `top_k` likeliest ids of the policy's vocabulary, distinct; -1 where masked, without a
    teacher, and where it gave fewer. None unless algorithm.distillation.loss is top_k."""
    top_logp_NKA: Float32Array | None = None
    """float32, their log-probs; 0 where the id is -1. The rest to 1 is the mass of all other tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teachers:
    """All teachers of a run."""

    teachers: tuple[Teacher, ...]
    top_k: int = 0
    """Likeliest tokens to find; 0: none."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Their weights on this rank."""
        models = [teacher.model for teacher in self.teachers if teacher.model is not None]
        return tuple(one for model in models for one in model.get_parameters())

    def teaching(self, source: str) -> list[tuple[int, float]]:
        """Number and share of each teacher of a source; empty if it has none."""
        sections = [teacher.section for teacher in self.teachers]
        own = [n for n, one in enumerate(sections) if source in one.sources]
        own = own or [n for n, one in enumerate(sections) if not one.sources]
        total = sum(sections[n].weight for n in own)
        return [(n, sections[n].weight / total) for n in own]

    def scores(self, batches: Sequence[Batch], sources_S: Sequence[str]) -> list[TeacherScores]:
        """The scores of each micro-batch; log-probs are log sum_j share_j p_j, likeliest tokens those of the one
        teacher of a source. sources_S: source of each response by its number. All ranks call it."""
        shares = {source: dict(self.teaching(source)) for source in set(sources_S)}
        found = [np.full(batch.mask_NK.shape, -np.inf) for batch in batches]
        shapes = [(*batch.mask_NK.shape, self.top_k) for batch in batches]
        top_ids, top_logp = ([np.full(shape, one) for shape in shapes] for one in (np.int32(-1), np.float32(0)))
        for number, teacher in enumerate(self.teachers):
            share_by_batch = [
                np.array([shares[sources_S[int(n)]].get(number, 0.0) if n >= 0 else 0.0 for n in batch.samples_N])
                for batch in batches
            ]
            taught = [index for index, share_N in enumerate(share_by_batch) if share_N.any()]
            scores = teacher.scorer.score([_only(batches[index], share_by_batch[index] > 0) for index in taught])
            for index, score in zip(taught, scores, strict=True):
                with np.errstate(divide="ignore"):
                    log_share_N1 = np.log(share_by_batch[index])[:, None]
                found[index] = np.logaddexp(found[index], log_share_N1 + score.logp_NK)
                if self.top_k:
                    assert score.top_ids_NKA is not None and score.top_logp_NKA is not None, "no likeliest tokens"
                    is_own_NK1 = (batches[index].mask_NK & (share_by_batch[index] > 0)[:, None])[:, :, None]
                    is_told_NKA = is_own_NK1 & (score.top_ids_NKA >= 0)
                    np.copyto(top_ids[index], score.top_ids_NKA, where=is_told_NKA)
                    np.copyto(top_logp[index], score.top_logp_NKA, where=is_told_NKA)
        logp = [
            np.where(batch.mask_NK & np.isfinite(logp_NK), logp_NK, np.nan)
            for batch, logp_NK in zip(batches, found, strict=True)
        ]
        if not self.top_k:
            return [TeacherScores(logp_NK=logp_NK) for logp_NK in logp]
        return [
            TeacherScores(logp_NK=logp_NK, top_ids_NKA=ids_NKA, top_logp_NKA=top_logp_NKA)
            for logp_NK, ids_NKA, top_logp_NKA in zip(logp, top_ids, top_logp, strict=True)
        ]


def with_likeliest(mini_batches: MiniBatches, scores: Sequence[TeacherScores]) -> MiniBatches:
    """The batches with the teachers' likeliest tokens, which a loss reads."""
    filled = [
        replace(batch, teacher_ids_NKA=one.top_ids_NKA, teacher_logp_NKA=one.top_logp_NKA)
        for batch, one in zip(flattened(mini_batches), scores, strict=True)
    ]
    return regrouped(filled, mini_batches)


def _only(batch: Batch, is_taught_N: np.ndarray) -> Batch:
    """A batch in which other samples have no token to be scored: servers are not asked for them."""
    return replace(batch, mask_NK=batch.mask_NK & is_taught_N[:, None])


def sources_of(samples: StepSamples) -> list[str]:
    """The source of each response of a step by its number: its place in the list of data.train, else its row's
    data_source."""
    prompts = [group.prompt for group in samples.groups for _ in group.responses]
    return [prompt.source or prompt.data_source for prompt in prompts]


def build_teachers(config: ExperimentConfig, tokenizer: Tokenizer, rank: int) -> Teachers | None:
    """The teachers with their weights or servers; None without distillation. Raises ConfigError for a teacher whose
    tokens are not the policy's, WeightsError for files that do not fit, RolloutError for a server that fails."""
    section = config.algorithm.distillation
    if section is None:
        return None
    teachers, top_k = [], config.algorithm.teacher_top_k
    for number, one in enumerate(section.teachers):
        key = f"{KEY}.teachers[{number}]"
        if one.path is None:
            from mindgspo.rollout.server_scorer import open_server_scorer  # the HTTP library is not needed otherwise

            served = open_server_scorer(config, one, tokenizer, key, top_k=top_k)
            teachers.append(Teacher(section=one, scorer=served))
            continue
        try:
            check_same_vocabulary(tokenizer, one.path)
        except TokenizerError as error:
            raise ConfigError(f"{key}.path: {error}") from None
        model_section = teacher_model(one, config.model)
        model = build_model(model_section, Placement(plan=teacher_plan(one, config), rank=rank))
        hold_in_compute_type(model)
        fill_model(model, model_section, config.seed)
        likeliest = (top_k, config.model.vocab_size) if top_k else None
        scorer = PolicyScorer(model, temperature=config.rollout.temperature, likeliest=likeliest)
        teachers.append(Teacher(section=one, model=model, scorer=scorer))
    return Teachers(teachers=tuple(teachers), top_k=top_k)
