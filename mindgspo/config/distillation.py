"""The section `algorithm.distillation`: teachers that say, token by token, how they would have answered.

The policy samples; a teacher scores what it sampled (on-policy distillation: Agarwal et al., arXiv 2306.13649; Lu et
al., "On-Policy Distillation", 2025).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from mindgspo.config.plan import ParallelPlan
from mindgspo.config.section import Section


class TeacherSection(Section):
    """A frozen model with the policy's vocabulary."""

    path: Path
    """Hugging Face folder. Its sizes are its own; its tokens are those of the policy."""
    sources: tuple[str, ...] = ()
    """Sources of prompts that it teaches: names of the list in data.train, else the rows' data_source. Empty: those
    that no other teacher names."""
    weight: float = Field(default=1.0, gt=0)
    """Its share where several teach one source: their log-prob is that of the mixture of their distributions."""
    plan: ParallelPlan | None = None
    """Its plan, on the cards of plans.train. None: that of the reference policy."""


class DistillationSection(Section):
    """Reverse KL to teachers on the policy's own responses: log teacher - log old, the estimate k1 with the opposite
    sign, times `coef`, is added to the advantage of each token after all normalisation."""

    teachers: tuple[TeacherSection, ...] = Field(min_length=1)
    """The teachers, e.g. [{path: models/Qwen3-32B}] (verl: distillation.teacher_models)."""
    coef: float = Field(default=1.0, gt=0)
    """Factor of the teachers' part (verl: distillation_loss_coef)."""
    with_rewards: bool = True
    """Whether advantages from rewards count beside it (verl: use_task_rewards). False: the teachers alone; prompts that
    none of them teaches are left untrained."""
