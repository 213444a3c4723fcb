"""The section `algorithm.distillation`: teachers that say, token by token, how they would have answered.

The policy samples; a teacher scores what it sampled (on-policy distillation: Agarwal et al., arXiv 2306.13649; Lu et
al., "On-Policy Distillation", 2025).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from mindgspo.config.plan import ParallelPlan
from mindgspo.config.section import Section


class TeacherSection(Section):
    """A frozen model with the policy's vocabulary, on the cards that train or behind a server."""

    path: Path | None = None
    """Hugging Face folder, or name on a hub, of a model for the cards that train. Its sizes are its own; its
    tokens are those of the policy."""
    url: str | None = None
    """Instead of path: address of a server that returns log-probs of given ids, e.g. http://10.0.0.2:8000. Its tokens
    are compared with the policy's when the run starts; rollout.temperature must be 1."""
    api: Literal["mindgspo", "vllm"] = "mindgspo"
    """The server's API: that of `mindgspo serve` or vLLM (docs/rollout_servers.md)."""
    api_key_file: Path | None = None
    """File with the server's key. None: the variable MINDGSPO_API_KEY, if that is set and the run starts no servers."""
    sources: tuple[str, ...] = ()
    """Sources of prompts that it teaches: names of the list in data.train, else the rows' data_source. Empty: those
    that no other teacher names."""
    weight: float = Field(default=1.0, gt=0)
    """Its share where several teach one source: their log-prob is that of the mixture of their distributions. With
    loss top_k a source has one teacher."""
    plan: ParallelPlan | None = None
    """Plan of a teacher with a path, on the cards of plans.train. None: that of the reference policy."""


class DistillationSection(Section):
    """Reverse KL to teachers on the policy's own responses."""

    teachers: tuple[TeacherSection, ...] = Field(min_length=1)
    """The teachers, e.g. [{path: models/Qwen3-32B}] (verl: distillation.teacher_models)."""
    loss: Literal["k1", "top_k"] = "k1"
    """k1: log teacher - log old, the estimate k1 with the opposite sign, times `coef`, is added to the advantage of
    each token after all normalisation; with gspo the ratio stays that of the response, and each token has its own
    gradient, as in gspo_token. top_k: the KL over the teacher's likeliest tokens and all others as one, times `coef`,
    is added to the loss, aggregated like it, with its exact gradient (verl: distillation_loss.loss_mode)."""
    top_k: int = Field(default=64, ge=1)
    """For loss top_k only: number of likeliest tokens. The arrays of a step take 8 bytes per response token and each of
    them (verl: distillation_loss.topk)."""
    coef: float = Field(default=1.0, gt=0)
    """Factor of the teachers' part (verl: distillation_loss_coef)."""
    with_rewards: bool = True
    """Whether advantages from rewards count beside it (verl: use_task_rewards). False: the teachers alone; prompts that
    none of them teaches are left untrained."""
