"""The section `eval`: accuracy on held-out problems.

What enters: plain values from `config.load`. What leaves: a frozen `EvalSection`, read by the trainer.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mindgspo.config.section import Section

PositiveInt = Annotated[int, Field(ge=1)]


OVERALL = "val-core/acc/mean@1"
"""The greedy accuracy over all problems of all sets."""

CHANGE = "val-core/acc/change"
"""Its change since the first evaluation of the run."""


class EvalSection(Section):
    """Accuracy on the held-out problems."""

    before: bool = True
    """Evaluate before the first step, too, so that there is something to compare with (verl: val_before_train; TRL:
    eval_on_start). After the last step there is always an evaluation."""
    every: int | None = Field(default=None, ge=1)
    """Steps between evaluations. None: only before the first and after the last step (verl: test_freq; TRL:
    eval_steps)."""
    num_samples: int = Field(default=1, ge=1)
    """Samples per problem for mean@n, pass@k, maj@k and best@k; 1: greedy answers only (verl: val_kwargs.n)."""
    pass_at_k: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1)
    """Values of k for which pass@k, and from 2 on maj@k and best@k, are reported; each at most num_samples."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of those samples (greedy accuracy ignores it). rollout.top_p and rollout.top_k hold for them, too."""
    best_metric: str = OVERALL
    """Metric by which the best evaluation is chosen; the higher the better. By default the greedy accuracy over all
    problems; val-core/aime/acc/mean@16, say, for one set or data source (TRL: metric_for_best_model)."""
    logged_problems: int | None = Field(default=8, ge=0)
    """Problems of each set whose answers are written to validation.jsonl at each evaluation, from the start. None: all
    (verl: log_val_generations)."""
