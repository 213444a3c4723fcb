"""Teachers: frozen models that score the policy's own responses.

N  responses of a micro-batch    K  response-token slots    S  responses of the step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter

from mindgspo.config import ExperimentConfig
from mindgspo.config.distillation import TeacherSection
from mindgspo.config.distillation_rules import teacher_model, teacher_plan
from mindgspo.errors import ConfigError, TokenizerError
from mindgspo.models.model import Model
from mindgspo.models.policy import build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import fill_model, hold_in_compute_type
from mindgspo.parallel.plans.placement import Placement
from mindgspo.tokenization import Tokenizer, check_same_vocabulary
from mindgspo.trainer.dynamic_sampling import StepSamples
from mindgspo.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """One teacher, with its weights."""

    section: TeacherSection
    model: Model
    scorer: PolicyScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Teachers:
    """All teachers of a run."""

    teachers: tuple[Teacher, ...]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Their weights on this rank."""
        return tuple(one for teacher in self.teachers for one in teacher.model.get_parameters())

    def teaching(self, source: str) -> list[tuple[int, float]]:
        """Number and share of each teacher of a source; empty if it has none."""
        sections = [teacher.section for teacher in self.teachers]
        own = [n for n, one in enumerate(sections) if source in one.sources]
        own = own or [n for n, one in enumerate(sections) if not one.sources]
        total = sum(sections[n].weight for n in own)
        return [(n, sections[n].weight / total) for n in own]

    def log_probs(self, batches: Sequence[Batch], sources_S: Sequence[str]) -> list[np.ndarray]:
        """log sum_j share_j p_j of the sampled tokens, float64 [N, K] by micro-batch, NaN where masked or without a
        teacher. sources_S: source of each response by its number. All ranks call it."""
        shares = {source: dict(self.teaching(source)) for source in set(sources_S)}
        found = [np.full(batch.mask_NK.shape, -np.inf) for batch in batches]
        for number, teacher in enumerate(self.teachers):
            share_by_batch = [
                np.array([shares[sources_S[int(n)]].get(number, 0.0) if n >= 0 else 0.0 for n in batch.samples_N])
                for batch in batches
            ]
            taught = [index for index, share_N in enumerate(share_by_batch) if share_N.any()]
            scores = teacher.scorer.score([batches[index] for index in taught])
            for index, score in zip(taught, scores, strict=True):
                with np.errstate(divide="ignore"):
                    log_share_N1 = np.log(share_by_batch[index])[:, None]
                found[index] = np.logaddexp(found[index], log_share_N1 + score.logp_NK)
        return [
            np.where(batch.mask_NK & np.isfinite(logp_NK), logp_NK, np.nan)
            for batch, logp_NK in zip(batches, found, strict=True)
        ]


def sources_of(samples: StepSamples) -> list[str]:
    """The source of each response of a step by its number: its place in the list of data.train, else its row's
    data_source."""
    prompts = [group.prompt for group in samples.groups for _ in group.responses]
    return [prompt.source or prompt.data_source for prompt in prompts]


def build_teachers(config: ExperimentConfig, tokenizer: Tokenizer, rank: int) -> Teachers | None:
    """The teachers with their weights; None without distillation. Raises ConfigError for a teacher whose tokens are not
    the policy's, WeightsError for files that do not fit."""
    section = config.algorithm.distillation
    if section is None:
        return None
    teachers = []
    for number, one in enumerate(section.teachers):
        try:
            check_same_vocabulary(tokenizer, one.path)
        except TokenizerError as error:
            raise ConfigError(f"algorithm.distillation.teachers[{number}].path: {error}") from None
        model_section = teacher_model(one, config.model)
        model = build_model(model_section, Placement(plan=teacher_plan(one, config), rank=rank))
        hold_in_compute_type(model)
        fill_model(model, model_section, config.seed)
        scorer = PolicyScorer(model, temperature=config.rollout.temperature)
        teachers.append(Teacher(section=one, model=model, scorer=scorer))
    return Teachers(teachers=tuple(teachers))
